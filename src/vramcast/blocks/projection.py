"""Linear layers of a block: plain, frozen, quantised, with an adapter."""

from __future__ import annotations

from vramcast.blocks.sizes import Sizes
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Dense, linear


def project(
    graph: Graph, path: str, x: Value, *, tokens: int, shape: tuple[int, int], sizes: Sizes, bias: bool = False
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
    """
    dense = Dense(shape[0], shape[1], bias, not sizes.frozen)
    return linear(graph, path, x, tokens=tokens, dense=dense, numerics=sizes.numerics)
