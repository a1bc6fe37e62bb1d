"""A pipeline schedule as a maximum of sums: what is held when each pass reaches its highest point.

Between two passes a stage holds some number of micro-batches of each of its chunks; the peak of a step is the largest,
over all passes, of what is held then plus the peak of that pass. A moment at which no chunk holds more than at another
moment of the same pass cannot be the highest one and is dropped, which leaves one to three moments for each pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from vramcast.parallel.pipeline import Slot, Slots, interleaved, one_forward_one_backward

PERIODS: Final = 3
"""Groups of micro-batches after which an interleaved schedule repeats itself: later ones hold nothing new."""


class Moment(NamedTuple):
    """A pass about to start, and how many micro-batches of each chunk are held."""

    held: tuple[int, ...]
    slot: Slot


@cache
def moments(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Moment, ...]:
    """The moments of a step among which the highest one is.

    Args:
        stage: from 0 [index]
        stages: pipeline ranks [count]
        chunks: model chunks of each rank [count]
        micro_batches: of the step; more than `enough` change nothing [count]
    """
    if chunks == 1:
        slots = one_forward_one_backward(stage=stage, stages=stages, micro_batches=micro_batches)
    else:
        slots = interleaved(
            stage=stage, stages=stages, micro_batches=micro_batches, chunks=chunks, group=stages
        )
    by_slot: dict[Slot, set[tuple[int, ...]]] = {}
    for moment in _walk(slots, chunks):
        by_slot.setdefault(moment.slot, set()).add(moment.held)
    return tuple(Moment(held, slot) for slot, seen in by_slot.items() for held in _undominated(seen))


def enough(*, stages: int, chunks: int) -> int:
    """Micro-batches beyond which no more of them are held at once.

    >>> enough(stages=8, chunks=1), enough(stages=8, chunks=2)
    (8, 24)
    """
    return stages if chunks == 1 else PERIODS * stages


def _walk(slots: Slots, chunks: int) -> Iterator[Moment]:
    held = [0] * chunks
    for slot in (*slots.warmup, *slots.steady * min(slots.repeats, 2), *slots.cooldown):
        yield Moment(tuple(held), slot)
        held[slot.chunk] += 1 if slot.forward else -1


def _undominated(seen: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    kept: list[tuple[int, ...]] = []
    for candidate in sorted(seen, key=sum, reverse=True):
        if not any(all(a >= b for a, b in zip(other, candidate, strict=True)) for other in kept):
            kept.append(candidate)
    return kept
