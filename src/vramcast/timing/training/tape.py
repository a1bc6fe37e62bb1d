"""Operators of a layer as eager engines run them, read off the tape that memory comes from; casts to float8.

Stable: `in_8_bits`, `conversions`.

Every input, weight and gradient of an output is read for its largest value and again for the cast. Compiled, the
first read happens in the kernel that writes the tensor, where that is a norm, a gate, a sum or a rotation; one cast
serves all products that read a value. Products then read one byte where they read two.
Left out: recipes with a scale a row, experts (they stay in 16 bits), casts of a rank's shard under float8 all-gather.

The tape (`blocks.transformer.decoder_layer`) is written once for a few tokens; everything on it but attention grows
with the tokens, so that bytes and operations for one token serve every micro-batch.

[ao] pytorch/ao @36027d8 torchao/testing/training/roofline_utils.py `get_tensor_memory_traffic_ovhd_s`, tensorwise;
torchao/float8/float8_linear.py `matmul_with_hp_or_float8_args`: backward casts input, weight and gradient again;
float8_utils.py `tensor_to_amax`, `amax_to_scale`, `to_fp8_saturated`; float8_ops.py `preprocess_addmm`: layouts.
[fusion] pytorch #111122: the largest value is found in the kernel of a norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parts import Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.model import Layer
from vramcast.operators.graph import Operator as Taped
from vramcast.operators.graph import Value
from vramcast.operators.linear import QUANTISED, Storage
from vramcast.timing.training.parts import Operator, part_of

ALIGNED: Final = 16
"""Features that 8-bit products need a multiple of; other linears stay as they are."""


class Cast(Struct, frozen=True):
    """Bytes of one element of each tensor of a product, and kernels."""

    largest: float  # where a kernel of its own looks for the largest value
    input_forward: float
    input_backward: float
    gradient: float
    weight_forward: float
    weight_backward: float
    kernels: float  # forward: of input and weight
    backward_kernels: float
    shared: bool  # one cast of an input serves all products that read it


CASTS: Final[dict[str, Cast]] = {
    # inputs and gradients: 2 read, 1 written in each of two layouts; weights: 2 for the largest value, 3 a pass [ao]
    "compiled": Cast(
        largest=2.0, input_forward=4.0, input_backward=0.0, gradient=4.0, weight_forward=5.0, weight_backward=3.0,
        kernels=5.0, backward_kernels=3.0, shared=True,
    ),
    "compiled, gathered": Cast(
        largest=2.0, input_forward=4.0, input_backward=0.0, gradient=4.0, weight_forward=0.0, weight_backward=2.0,
        kernels=2.0, backward_kernels=3.0, shared=True,
    ),
    # abs 4, max 2, to fp32 6, times scale 8, clamp 8, cast 5, in 11 kernels; a turned layout 2 more
    "eager": Cast(
        largest=0.0, input_forward=33.0, input_backward=35.0, gradient=68.0, weight_forward=33.0, weight_backward=35.0,
        kernels=22.0, backward_kernels=47.0, shared=False,
    ),
    "eager, gathered": Cast(
        largest=0.0, input_forward=33.0, input_backward=35.0, gradient=68.0, weight_forward=0.0, weight_backward=2.0,
        kernels=11.0, backward_kernels=37.0, shared=False,
    ),
}
"""How float8 linears run -> what their casts move. Weights gathered in 8 bits are cast before; backward turns them."""

OWN_KERNELS: Final = frozenset({
    "linear", "flash_attention", "efficient_attention", "cudnn_attention", "repeat_kv", "scan", "all_gather",
})
"""Operators in whose kernels nothing else can be computed."""

PASSED_ON: Final = frozenset({"slice", "view", "chunk"})


def converts(found: Taped, rows: int) -> bool:
    """Whether it is a linear that torchao swaps: neither the experts' grouped product nor the router."""
    path = found.outputs[0].name if found.outputs else ""
    features = (found.outputs[0].num_bytes // 2 // rows, found.inputs[0].num_bytes // 2 // rows) if path else (1, 1)
    return (
        found.name == "linear" and bool(found.flops) and "experts" not in path and not path.endswith("router")
        and not any(count % ALIGNED for count in features)
    )


def in_8_bits(operator: Operator, found: Taped, rows: int) -> Operator:
    """The product that reads one byte of every operand: x and W, then the gradient twice, W and x."""
    if not converts(found, rows):
        return operator
    columns, out = (value.num_bytes / 2 / rows for value in (found.inputs[0], found.outputs[0]))
    weights = columns * out
    return replace(
        operator, bytes=operator.bytes - columns, backward_bytes=operator.backward_bytes - columns - 2 * out,
        weight_bytes=operator.weight_bytes - weights,
        backward_weight_bytes=operator.backward_weight_bytes - weights,
    )


def conversions(operators: Sequence[Taped], rows: int, cast: Cast) -> Iterator[Operator]:
    """One operator for the casts around every product, for one token.

    Args:
        operators: the tape of a layer
        rows: tokens it is written for, in 16 bits
        cast: how they run
    """
    seen: set[int] = set()
    for found in operators:
        if not converts(found, rows):
            continue
        x, y = found.inputs[0], found.outputs[0]
        columns, out = x.num_bytes / 2 / rows, y.num_bytes / 2 / rows
        first = id(x.storage) not in seen or not cast.shared
        seen.add(id(x.storage))
        entering = columns * (cast.input_forward + cast.largest * _written_alone(x, operators)) if first else 0.0
        leaving = out * (cast.gradient + cast.largest * _read_alone(y, operators))
        yield Operator(
            "conversion", "pointwise", part_of(y.name), bytes=entering,
            backward_bytes=leaving + columns * cast.input_backward, kernels=cast.kernels,
            backward_kernels=cast.backward_kernels, weight_bytes=columns * out * cast.weight_forward,
            backward_weight_bytes=columns * out * cast.weight_backward,
        )


def _written_alone(x: Value, operators: Sequence[Taped]) -> bool:
    """Whether a kernel writes x that cannot look for its largest value."""
    writer = next((found for found in operators if x in found.outputs), None)
    if writer is not None and writer.name in PASSED_ON:
        return _written_alone(writer.inputs[0], operators)
    return writer is not None and writer.name in OWN_KERNELS


def _read_alone(y: Value, operators: Sequence[Taped]) -> bool:
    """Whether only such kernels read y, and so write its gradient."""
    readers = [found for found in operators if y in found.inputs and found.differentiable]
    return bool(readers) and all(found.name in OWN_KERNELS for found in readers)


TOKENS: Final = 64
"""Rows of the tape for every rank of a tensor-parallel group."""

NOTHING_MOVES: Final = frozenset({"hold", "slice", "view", "chunk", "promote"})

TRANSFERS: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})

SHIFTED: Final = 4
"""Bytes of an element of what the first kernel that unpacks a weight writes [GPTQ in operators/linear.py]."""

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
    return _taped(layer, replace(sizes, batch=1, seq_len=TOKENS * sizes.tp, keys=None, caches=False), casts)


@lru_cache(maxsize=512)
def _taped(layer: Layer, sizes: Sizes, casts: str) -> tuple[Operator, ...]:
    rows = sizes.tokens
    tape = decoder_layer(layer.without_indexer, sizes)
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
