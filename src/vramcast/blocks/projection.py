"""Linear layers of a block: learned, frozen, stored in few bits, with an adapter."""

from __future__ import annotations

from vramcast.blocks.sizes import Sizes
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Dense, cast, linear
from vramcast.operators.quantised import QUANTISED


def project(
    graph: Graph, path: str, x: Value, *, tokens: int, shape: tuple[int, int], sizes: Sizes, bias: bool = False,
    copies: int = 1,
) -> Value:
    """y = W x for the weight called `path`, as the run's sizes say it is stored and trained.

    Args:
        graph: the block under construction
        path: of the weight in its layer, "attention.q"
        x: input, (tokens, shape[1])
        tokens: rows of x [tokens]
        shape: local (out, in) features
        sizes: element widths, freezing, adapters
        bias: whether a bias is added
        copies: weights of that shape in one grouped product
    """
    out_features, in_features = shape
    learns = not sizes.frozen or sizes.trains(path)
    if sizes.packs(path) and not learns:
        y = _unpacked(graph, path, x, tokens=tokens, shape=shape, sizes=sizes, copies=copies if sizes.stacked else 1)
    else:
        dense = Dense(out_features, in_features, bias, learns, copies=copies)
        y = linear(graph, path, x, tokens=tokens, dense=dense, numerics=sizes.numerics)
    adapter = sizes.adapter
    if adapter is None or path not in adapter.targets:
        return y
    from vramcast.operators.lora import ADAPTERS, Target  # 3 ms that most questions never need

    storage = QUANTISED[sizes.stored] if sizes.packs(path) and not learns else None
    target = Target(path, tokens, out_features, in_features, y.num_bytes // (tokens * out_features))
    if storage is not None:
        target = target._replace(packed=storage.follows_input, cloned=storage.cloned)
    y.gradient_bytes = y.num_bytes
    return ADAPTERS[adapter.method].forward(graph, x, y, target, adapter)


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
    if before:
        graph.call("unpack", [x], [], temporaries=before, differentiable=False)
    saved = [x] if storage.input_saved and x.gradient_bytes else []
    flops = 2 * tokens * shape[0] * shape[1]
    if storage.weight_saved:
        graph.call("unpack", [x], [], temporaries=tensors[1:], differentiable=False)
        weight = graph.value(f"{path}.unpacked", tensors[0].num_bytes, gradient_bytes=0)
        kept = [weight] if x.gradient_bytes else []
        return graph.call("quantised_linear", [x], [y], saved=saved, extra=kept, flops=flops)
    graph.call(
        "quantised_linear", [x], [y], saved=saved, temporaries=tensors, backward_temporaries=tensors, flops=flops
    )
    return cast(graph, y, elements=outputs, to_bytes=own_width, name=f"{path}.output") if storage.follows_input else y
