"""Schedules hold as many micro-batches as their papers say."""

from vramcast.parallel.layout import gpipe, in_flight, interleaved


def test_gpipe_holds_every_micro_batch() -> None:
    assert in_flight(gpipe(micro_batches=8)) == 8


def test_interleaving_holds_more_chunks_on_earlier_stages() -> None:
    held = [in_flight(interleaved(stage=stage, stages=4, micro_batches=8, chunks=3, group=4)) for stage in range(4)]
    assert held == [15, 13, 11, 9]


def test_every_forward_has_its_backward() -> None:
    slots = interleaved(stage=1, stages=4, micro_batches=8, chunks=2, group=4)
    run = (*slots.warmup, *slots.steady * slots.repeats, *slots.cooldown)
    assert sum(slot.forward for slot in run) == sum(not slot.forward for slot in run) == 16
