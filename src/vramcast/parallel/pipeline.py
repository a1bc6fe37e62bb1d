"""Pipeline schedules as forward and backward slots of one stage.

[1F1B] Narayanan et al., arXiv:2104.04473, section 2.2; [Megatron] megatron/core/pipeline_parallel/schedules.py,
get_pp_rank_microbatches; [GPipe] Huang et al., arXiv:1811.06965; pytorch torch/distributed/pipelining/schedules.py
`ScheduleGPipe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

MOST_KNOWN: Final = 1024
"""Schedules that are kept: a search looks at each with many degrees of another kind [count]."""


class Slot(NamedTuple):
    """One pass of one micro-batch through one model chunk of the stage."""

    forward: bool
    chunk: int = 0


class Slots(Struct, frozen=True):
    """Slots before, during and after the steady state; the steady part repeats `repeats` times.

    Where its length is no multiple of what repeats, the rest of the steady state is counted to the end.
    """

    warmup: tuple[Slot, ...]
    steady: tuple[Slot, ...]
    repeats: int
    cooldown: tuple[Slot, ...]


def one_forward_one_backward(*, stage: int, stages: int, micro_batches: int) -> Slots:
    """1F1B: stage i holds at most stages - i micro-batches.

    Args:
        stage: from 0 [index]
        stages: pipeline ranks [count]
        micro_batches: per optimizer step [count]
    """
    warmup = min(stages - stage - 1, micro_batches)
    forward, backward = Slot(True), Slot(False)
    return Slots((forward,) * warmup, (forward, backward), micro_batches - warmup, (backward,) * warmup)


def gpipe(*, micro_batches: int) -> Slots:
    """All forwards, then all backwards in the same order: every stage holds every micro-batch at once."""
    return Slots((Slot(True),) * micro_batches, (), 0, (Slot(False),) * micro_batches)


@lru_cache(maxsize=MOST_KNOWN)
def interleaved(
    *, stage: int, stages: int, micro_batches: int, chunks: int, group: int, overlap_extra: int = 0
) -> Slots:
    """Interleaved 1F1B: each rank owns `chunks` pieces and runs groups of micro-batches through one after the other.

    Args:
        stage, stages, micro_batches: as above
        chunks: model chunks per rank [count]
        group: micro-batches per chunk in a row (Megatron's microbatch group size, by default `stages`) [count]
        overlap_extra: further warm-up slots (expert-communication overlap) [count]
    """
    total = micro_batches * chunks
    warmup = min(total, 2 * (stages - stage - 1) + (chunks - 1) * group + overlap_extra)
    order = list(_chunk_order(micro_batches, chunks, group))
    forward, backward = ([Slot(way, chunk) for chunk in range(chunks)] for way in (True, False))
    forwards, backwards = [forward[chunk] for chunk in order], [backward[chunks - 1 - chunk] for chunk in order]
    steady = [slot for pair in zip(forwards[warmup:], backwards, strict=False) for slot in pair]
    period, repeats = len(steady), 1
    if micro_batches % group == 0 and len(steady) >= 2 * group * chunks:
        period = 2 * group * chunks  # a group of micro-batches through all chunks, forward and backward
        repeats = len(steady) // period
    return Slots(
        tuple(forwards[:warmup]),
        tuple(steady[:period]),
        repeats,
        (*steady[period * repeats :], *backwards[total - warmup :]),
    )


def _chunk_order(micro_batches: int, chunks: int, group: int) -> Iterator[int]:
    """The chunk of every forward slot (schedules.py, get_schedule_table)."""
    for start in range(0, micro_batches, group):
        for chunk in range(chunks):
            for _ in range(start, min(start + group, micro_batches)):
                yield chunk


def in_flight(slots: Slots) -> int:
    """Most micro-batch chunks held at once."""
    held = most = 0
    for slot in (*slots.warmup, *slots.steady * min(slots.repeats, 2), *slots.cooldown):
        held += 1 if slot.forward else -1
        most = max(most, held)
    return most
