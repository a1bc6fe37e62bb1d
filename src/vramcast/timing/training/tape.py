"""Operators of a layer as eager engines run them, read off the tape that memory comes from.

The tape (`blocks.transformer.decoder_layer`) is written once for a few tokens; everything on it but attention grows
with the tokens, so that bytes and operations for one token serve every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from vramcast.blocks.sizes import Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.model import Layer, MultiLatentAttention
from vramcast.operators.graph import Operator as Taped
from vramcast.operators.quantised import QUANTISED, Storage
from vramcast.timing.training.float8 import CASTS, conversions, in_8_bits
from vramcast.timing.training.parts import Operator, part_of

TOKENS: Final = 64
"""Rows of the tape for every rank of a tensor-parallel group."""

NOTHING_MOVES: Final = frozenset({"hold", "slice", "view", "chunk", "promote"})

TRANSFERS: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})

SHIFTED: Final = 4
"""Bytes of an element of what the first kernel that unpacks a weight writes [GPTQ in operators/quantised.py]."""

ATTENTION: Final = frozenset({
    "flash_attention", "efficient_attention", "cudnn_attention", "repeat_kv", "scan", "causal_conv1d", "matmul",
    "attention.softmax", "softmax", "scale", "mask",
})
"""Counted by `timing.training.operators`, for they grow with the square of the sequence."""


def taped(layer: Layer, sizes: Sizes, casts: str = "") -> tuple[Operator, ...]:
    """Bytes and operations of one token for every operator but attention and transfers.

    Args:
        layer: its parts; an indexer's few vectors are left out
        sizes: element widths and implementations; batch and length do not matter
        casts: how float8 linears run, key of `float8.CASTS`; empty: products compute in `sizes`' width
    """
    return _taped(layer, sizes._replace(batch=1, seq_len=TOKENS * sizes.tp, keys=None, caches=False), casts)


@lru_cache(maxsize=512)
def _taped(layer: Layer, sizes: Sizes, casts: str) -> tuple[Operator, ...]:
    from msgspec.structs import replace

    mixer = layer.mixer
    if isinstance(mixer, MultiLatentAttention) and mixer.indexer_heads:
        layer = replace(layer, mixer=replace(mixer, indexer_heads=0))
    rows = sizes.tokens
    tape = decoder_layer(layer, sizes)
    found = [
        in_8_bits(_operator(taped_one, rows, sizes), taped_one, rows) if casts else _operator(taped_one, rows, sizes)
        for taped_one in tape.operators
        if taped_one.name not in NOTHING_MOVES | TRANSFERS | ATTENTION
    ]
    if casts:
        found += conversions(tape.operators, rows, CASTS[casts])
    return (*found, *_sums(tape.operators, rows, sizes))


def _sums(operators: list[Taped], rows: int, sizes: Sizes) -> Iterator[Operator]:
    """Weight gradients are cast to the weight's dtype under autocast and added to those of earlier micro-batches."""
    width, kept = sizes.numerics.compute, sizes.numerics.weight
    moved = 3.0 * kept + (width + kept if kept != width else 0)
    for found in operators:
        if found.flops and _learns(found):
            path = found.outputs[0].name
            yield Operator(
                f"{path}.gradient", "pointwise", "gradient", kernels=0.0, backward_kernels=1.0 + (kept != width),
                backward_weight_bytes=moved * _weights(found, rows, sizes),
            )


def _learns(found: Taped) -> bool:
    return bool(found.weight_gradients or found.saved_weight_gradients)


def _weights(found: Taped, rows: int, sizes: Sizes) -> float:
    """Elements: those of the gradients; a product of experts has more than its operations tell."""
    told = sum(tensor.num_bytes for tensor in found.weight_gradients) / sizes.numerics.compute
    return max(told, found.flops / 2 / rows)


def _operator(found: Taped, rows: int, sizes: Sizes) -> Operator:
    width = sizes.numerics.compute
    moved = sum(value.num_bytes for value in (*found.inputs, *found.outputs))
    flows = found.differentiable and not found.passes_gradient
    gradients = sum(value.gradient_bytes for value in (*found.inputs, *found.outputs)) if flows else 0
    back = gradients + sum(value.num_bytes for value in found.saved) if gradients else 0
    path = found.outputs[0].name if found.outputs else found.name
    if found.name == "unpack":
        return _by_kernels(found, path, QUANTISED[sizes.stored])
    if found.name == "quantised_linear":
        beside = 2.0 * sum(tensor.num_bytes for tensor in found.temporaries)  # written and read
        return _unpacked(found, path, rows, moved=moved, beside=beside, width=width)
    if not found.flops:
        return Operator(
            found.name, "pointwise", part_of(path), bytes=moved / rows, backward_bytes=back / rows,
            backward_kernels=float(back > 0),
        )
    learns = _learns(found)
    passes = learns + (found.inputs[0].gradient_bytes > 0)
    weight = _weights(found, rows, sizes)
    # a weight is read in every product; under autocast it is cast from fp32 first, once for both passes
    cast = (sizes.numerics.weight + width) * weight if sizes.numerics.autocast and not sizes.frozen else 0.0
    written = width * weight if learns else 0.0
    kind = "grouped" if "experts" in path else "product"
    return Operator(
        path, kind, part_of(path), found.flops / rows, moved / rows, passes * found.flops / rows,
        passes * moved / rows, kernels=1.0 + (cast > 0), backward_kernels=float(passes),
        weight_bytes=width * weight + cast, backward_weight_bytes=passes * width * weight + written,
    )


def _by_kernels(found: Taped, path: str, storage: Storage) -> Operator:
    """What unpacks a weight before its product; again in backward, unless the product saved the weight."""
    again = 0.0 if storage.weight_saved else 1.0
    moved, kernels = storage.moved * found.temporaries[0].num_bytes / SHIFTED, float(storage.kernels)
    return Operator(
        path, "pointwise", part_of(path), kernels=kernels, backward_kernels=again * kernels, weight_bytes=moved,
        backward_weight_bytes=again * moved,
    )


def _unpacked(found: Taped, path: str, rows: int, *, moved: int, beside: float, width: int) -> Operator:
    """A product with weights of few bits, which its kernels unpack: again in backward."""
    kernels = 1.0 + 2 * len(found.temporaries)
    weight = beside + width * found.flops / 2 / rows
    flops, bytes_ = found.flops / rows, moved / rows
    return Operator(path, "product", part_of(path), flops, bytes_, flops, bytes_, kernels, kernels, weight, weight)
