"""Mixture of experts as torchtitan runs it: rows sorted by expert, exchanged between ranks, padded, put back in order.

Symbols:  T tokens   k experts per token   R rows that this rank sends: T k, divided over ranks that split them
[moe] pytorch/torchtitan torchtitan/models/common/moe/moe.py `MoE.forward`, `TokenChoiceTopKRouter.forward`
[permute] models/common/moe/utils.py `_permute`, `_unpermute`: a row of zeros behind the others, then rows by expert
[exchange] distributed/expert_parallel.py `ExpertParallel`, `ReordererSequenceParallel`
Balanced load: as many rows come in as go out.
"""

from __future__ import annotations

from vramcast.blocks.mlp import mlp_block
from vramcast.blocks.sizes import Dispatch, Sizes
from vramcast.domain.model import MoE
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.units import ceil_div

FP32 = 4
INT64 = 8


def routed_experts(
    graph: Graph, x: Value, routing: Value, *, spec: MoE, sizes: Sizes, dispatch: Dispatch
) -> Value:
    """What the chosen experts make of all tokens (T, H), scored and summed.

    Args:
        graph: the block under construction
        x: normed states of all tokens
        routing: (T, k) scores
        spec: experts
        sizes: local sizes and implementations
        dispatch: ranks and form
    """
    width = x.num_bytes // sizes.tokens
    rows = ceil_div(sizes.tokens * spec.top_k, dispatch.row_ranks)
    order = graph.value("moe.order", rows * INT64, gradient_bytes=0)
    states = graph.call("index", [x], [graph.value("moe.gathered", rows * width)], extra=[order])
    if dispatch.ranks > 1:
        states = graph.call("all_to_all", [states], [graph.value("moe.received", rows * width)])
    states = graph.call("cat", [states], [graph.value("moe.received_and_zeros", rows * width)])
    sorted_rows = graph.value("moe.sorted", rows * width)
    permutation = graph.value("moe.permutation", rows * INT64, gradient_bytes=0)
    states = graph.call("index", [states], [sorted_rows], extra=[permutation])
    local = sizes._replace(tp=1) if dispatch.row_ranks > 1 or dispatch.ranks > 1 else sizes
    out = mlp_block(
        graph, states, spec=spec.expert, sizes=local, tokens=rows, owner="moe.experts", copies=spec.num_experts
    )
    out = graph.call("index_put", [out], [graph.value("moe.unsorted", rows * width)])
    if dispatch.ranks > 1:
        out = graph.call("all_to_all", [out], [graph.value("moe.returned", rows * width)])
    return (_in_order if dispatch.in_order else _scattered)(graph, out, routing, spec=spec, sizes=sizes)


def _in_order(graph: Graph, out: Value, routing: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """All tokens' rows in their order, in fp32, times their scores as a batch of products."""
    elements, hidden = sizes.tokens * spec.top_k * sizes.hidden, sizes.tokens * sizes.hidden
    width = sizes.numerics.compute
    ordered = graph.call("index_put", [out], [graph.value("moe.in_order", elements * width)])
    wide = cast(graph, ordered, elements=elements, to_bytes=FP32, name="moe.in_order_fp32")
    total = graph.value("moe.combined_fp32", hidden * FP32)
    graph.call("bmm", [routing, wide], [total], saved=[routing, wide])
    graph.hold(ordered)
    return cast(graph, total, elements=hidden, to_bytes=width, name="moe.combined")


def _scattered(graph: Graph, out: Value, routing: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Rows in fp32 times their scores, added to where their tokens are."""
    width = sizes.numerics.compute
    elements = out.num_bytes // width
    wide = cast(graph, out, elements=elements, to_bytes=FP32, name="moe.returned_fp32")
    scored = aten.multiply(graph, wide, routing, num_bytes=elements * FP32, name="moe.scored_fp32")
    narrow = cast(graph, scored, elements=elements, to_bytes=width, name="moe.scored")
    graph.hold(out)
    total = graph.value("moe.combined", sizes.tokens * sizes.hidden * width)
    return graph.call("scatter_add", [narrow], [total])
