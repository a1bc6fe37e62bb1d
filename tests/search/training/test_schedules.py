"""The moments of a schedule hold its highest point, whatever the passes are like."""

from __future__ import annotations

from vramcast.parallel.pipeline import Slots
from vramcast.search.training.schedules import moments


def highest(slots: Slots, kept: list[int], forward_peaks: list[int], backward_peaks: list[int]) -> int:
    """The step walked slot by slot."""
    live = top = 0
    for slot in (*slots.warmup, *slots.steady * slots.repeats, *slots.cooldown):
        if slot.forward:
            top = max(top, live + forward_peaks[slot.chunk])
            live += kept[slot.chunk]
        else:
            top = max(top, live + backward_peaks[slot.chunk])
            live -= kept[slot.chunk]
    assert live == 0
    return top


def test_chunks_that_are_alike_count_together() -> None:
    apart = moments(stage=0, stages=16, kinds=(0, 1, 2, 3), micro_batches=48)
    together = moments(stage=0, stages=16, kinds=(0, 0, 0, 0), micro_batches=48)
    assert len(together) <= 2 < len(apart)
    assert {sum(moment.held) for moment in together} <= {sum(moment.held) for moment in apart}
