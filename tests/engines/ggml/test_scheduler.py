"""Where nodes run and what is copied: weights decide, cards come before the host."""

from __future__ import annotations

from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed, placed
from vramcast.engines.ggml.scheduler import CUDA, HOST, Machine, assign, reserve

MIB = 1 << 20


def machine(*, cards: int = 1, offloads: bool = False, copies: int = 1) -> Machine:
    return Machine(
        memories=(*(CUDA,) * cards, HOST), supports=lambda tensor, card: True, offloads=lambda tensor: offloads,
        copies=copies,
    )


def two_products(first: int, second: int) -> tuple[Graph, Tensor, Tensor]:
    """x W1 W2 with the weights on two backends."""
    graph = Graph()
    low = ops.mul_mat(placed("f16", 512, 512, home=first, weight=True), fed("f32", 512, 256))
    high = ops.mul_mat(placed("f16", 512, 512, home=second, weight=True), ops.like("norm", low))
    graph.expand(high)
    return graph, low, high


def test_a_product_runs_where_its_weight_is() -> None:
    graph, low, high = two_products(0, 1)
    assign(graph, machine(cards=2))
    assert (low.backend, high.backend) == (0, 1)


def test_host_weights_are_brought_to_the_first_card_only_when_it_is_worth_it() -> None:
    weight = 512 * 512 * 2
    stay = reserve(two_products(1, 0)[0], machine())
    bring = reserve(two_products(1, 0)[0], machine(offloads=True))
    assert bring[0] >= weight + MIB > stay[0]
    assert bring[1] < stay[1]


def test_overlapping_batches_keep_four_copies_of_every_input() -> None:
    inputs = 512 * 256 * 4
    once = reserve(two_products(0, 1)[0], machine(cards=2))
    four = reserve(two_products(0, 1)[0], machine(cards=2, copies=4))
    assert four[2] - once[2] == 3 * inputs
    assert four[1] > once[1]
