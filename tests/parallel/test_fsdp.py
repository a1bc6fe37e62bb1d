"""FSDP2's gathers and reductions around a model's pieces."""

from __future__ import annotations

from tests.peaks import live_at_peak
from vramcast.domain.program import Alloc, Category, Free, Tensor, live_at_end
from vramcast.parallel.fsdp import Fsdp, Stage, backward, forward, unit

MIB = 1 << 20
KEPT = Tensor(name="saved", num_bytes=MIB, category=Category.ACTIVATIONS)
GRADIENT = Tensor(name="gradient", num_bytes=2 * 8 * MIB, category=Category.GRADIENTS)


def stages(layers: int, *, reshard: bool = True, ranks: int = 8) -> list[Stage]:
    plan = Fsdp(ranks)
    layer = unit("layers", [("weight", (1024, 8192))], plan)
    head = unit("head", [("output", (2048, 8192))], plan)
    end = Tensor(name="head gradient", num_bytes=2 * 16 * MIB, category=Category.GRADIENTS)
    return [
        Stage((layer,), (Alloc(KEPT),), (Free(KEPT), Alloc(GRADIENT)), (GRADIENT,), layers, reshard=reshard),
        Stage((head,), (), (Alloc(end),), (end,), reshard=False),
    ]


def test_at_most_two_gathers_overlap_in_forward() -> None:
    found = stages(7)
    live = live_at_peak(forward(found[:1]))
    gathered = [count for tensor, count in live.items() if tensor.name == "all-gather output"]
    assert all(count <= 2 for count in gathered)


def test_one_rank_gathers_nothing() -> None:
    names = {tensor.name for tensor in live_at_peak(forward(stages(3, ranks=1)))}
    assert "all-gather output" not in names


def test_later_micro_batches_add_to_the_sharded_gradients() -> None:
    found = stages(3)
    later = forward(found) + backward(found, first=False)
    assert not live_at_end(later)
