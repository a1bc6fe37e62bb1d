"""Linear layers of a block: learned, frozen, stored in few bits, with an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.parameters.targets import JOINED, has, matrices, parts_of
from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import Layer
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Dense, cast, linear
from vramcast.operators.lora import ADAPTERS, Adapter, Target, folded
from vramcast.operators.quantised import QUANTISED

EXPERTS: Final = "moe.experts."
"""Paths of weights that every expert has one of."""


def project(
    graph: Graph, path: str, x: Value, *, tokens: int, shape: tuple[int, int], sizes: Sizes, bias: bool = False,
    copies: int = 1,
) -> Value:
    """y = W x for the weight called `path`, as the run's sizes say it is stored and trained.

    Args:
        path: of the weight in its layer, "attention.q", or of several that one product makes, "attention.qkv"
        x: input, (tokens, shape[1])
        tokens: rows of x [tokens]
        shape: local (out, in) features
        sizes: element widths, freezing, adapters
        bias: whether a bias is added
        copies: weights of that shape in one grouped product
    """
    out_features, in_features = shape
    learns, adapter = not sizes.frozen or sizes.trains(path), adapter_of(sizes, path)
    packed = sizes.packs(path) and not learns
    if adapter is not None and adapter.stacked and path.startswith(EXPERTS) and not packed:
        target = Target(path, tokens, out_features, in_features, sizes.numerics.compute, copies)
        return folded(graph, x, target, adapter)
    if packed:
        y = _unpacked(graph, path, x, tokens=tokens, shape=shape, sizes=sizes, copies=copies if sizes.stacked else 1)
    else:
        dense = Dense(out_features, in_features, bias, learns, copies=copies)
        y = linear(graph, path, x, tokens=tokens, dense=dense, numerics=sizes.numerics)
    if adapter is None:
        return y
    target = Target(path, tokens, out_features, in_features, y.num_bytes // (tokens * out_features), copies)
    if packed:
        storage = QUANTISED[sizes.stored]
        target = target._replace(packed=storage.follows_input, cloned=storage.cloned)
    y.gradient_bytes = y.num_bytes
    return ADAPTERS[adapter.method].forward(graph, x, y, target, adapter)


def adapter_of(sizes: Sizes, path: str) -> Adapter | None:
    """What corrects the product called `path`; None: nothing.

    Stacked experts whose gate and up are named apart get one correction of both, of twice the rank [PEFT
    src/peft/utils/transformers_weight_conversion.py `_convert_peft_config_moe`].
    """
    adapter = sizes.adapter
    if adapter is not None and path.startswith(EXPERTS) and (rank := adapter.option("expert_rank")):
        adapter = adapter._replace(rank=round(rank), dropout=0.0)
    if adapter is None or path in adapter.targets:
        return adapter
    parts = JOINED.get(path, ())
    if adapter.stacked and path.startswith(EXPERTS) and parts and all(part in adapter.targets for part in parts):
        return adapter._replace(rank=adapter.rank * len(parts))
    return None


def corrected(sizes: Sizes, layer: Layer, hidden: int) -> Iterator[tuple[str, Adapter]]:
    """The products of a layer that adapters correct, those of several weights first."""
    paths, claimed = matrices(layer, hidden), set[str]()
    for path in (*JOINED, *paths):
        adapter, parts = adapter_of(sizes, path), parts_of(path)
        if adapter is not None and has(paths, path) and claimed.isdisjoint(parts):
            claimed.update(parts)
            yield path, adapter


def _unpacked(
    graph: Graph, path: str, x: Value, *, tokens: int, shape: tuple[int, int], sizes: Sizes, copies: int
) -> Value:
    """A product with a weight that is unpacked forward and again backward, and saved where its product says so.

    `copies` weights of the shape are unpacked at once.
    """
    storage, elements = QUANTISED[sizes.stored], shape[0] * shape[1] * copies
    inputs, outputs = tokens * shape[1], tokens * shape[0]
    own_width, size = x.num_bytes // inputs, outputs * sizes.numerics.compute
    x = cast(graph, x, elements=inputs, to_bytes=sizes.numerics.compute, name=f"{path}.input")
    y = graph.value(path, size, gradient_bytes=size if x.gradient_bytes else 0)
    found = storage.unpacked_bytes(elements) + storage.beside_bytes(inputs, outputs)
    tensors = [graph.tensor(f"{path}.{name}", count) for name, count in found]
    before = [graph.tensor(f"{path}.{name}", count) for name, count in storage.before_bytes(elements)]
    if before and not storage.weight_saved:
        graph.call("unpack", [x], [], temporaries=before, differentiable=False)
    saved = [x] if storage.input_saved and x.gradient_bytes else []
    flops = 2 * tokens * shape[0] * shape[1]
    if storage.weight_saved:
        graph.call("unpack", [x], [], temporaries=[*before, *tensors[1:]], differentiable=False)
        weight = graph.value(f"{path}.unpacked", tensors[0].num_bytes, gradient_bytes=0)
        kept = [weight] if x.gradient_bytes else []
        return graph.call("quantised_linear", [x], [y], saved=saved, extra=kept, flops=flops)
    graph.call(
        "quantised_linear", [x], [y], saved=saved, temporaries=tensors, backward_temporaries=tensors, flops=flops
    )
    if before and y.gradient_bytes:  # unpacked again ahead of the product's backward
        y = graph.call("unpacked_again", [y], [graph.view(y, f"{path}.product")], passes_gradient=True,
                       backward_temporaries=before)
    return cast(graph, y, elements=outputs, to_bytes=own_width, name=f"{path}.output") if storage.follows_input else y
