"""The moments of a schedule hold its highest point, whatever the passes are like."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.parallel.pipeline import Slots, interleaved, one_forward_one_backward
from vramcast.search.training.schedules import enough, moments


def slots_of(stage: int, stages: int, chunks: int, micro_batches: int) -> Slots:
    if chunks == 1:
        return one_forward_one_backward(stage=stage, stages=stages, micro_batches=micro_batches)
    return interleaved(stage=stage, stages=stages, micro_batches=micro_batches, chunks=chunks, group=stages)


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


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(1, 3), st.integers(1, 8))
def test_the_moments_hold_the_highest_point_of_the_whole_step(
    data: st.DataObject, stages: int, chunks: int, groups: int
) -> None:
    chunks = chunks if stages > 1 else 1
    micro_batches = groups * stages
    stage = data.draw(st.integers(0, stages - 1))
    sizes = st.lists(st.integers(1, 1000), min_size=chunks, max_size=chunks)
    kept, more, again = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    forward_peaks = [size + extra for size, extra in zip(kept, more, strict=True)]
    found = max(
        sum(count * size for count, size in zip(moment.held, kept, strict=True))
        + (forward_peaks if moment.slot.forward else again)[moment.slot.chunk]
        for moment in moments(
            stage=stage, stages=stages, kinds=tuple(range(chunks)),
            micro_batches=min(micro_batches, enough(stages=stages, chunks=chunks)),
        )
    )
    assert found == highest(slots_of(stage, stages, chunks, micro_batches), kept, forward_peaks, again)


def test_chunks_that_are_alike_count_together() -> None:
    apart = moments(stage=0, stages=16, kinds=(0, 1, 2, 3), micro_batches=48)
    together = moments(stage=0, stages=16, kinds=(0, 0, 0, 0), micro_batches=48)
    assert len(together) <= 2 < len(apart)
    assert {sum(moment.held) for moment in together} <= {sum(moment.held) for moment in apart}
