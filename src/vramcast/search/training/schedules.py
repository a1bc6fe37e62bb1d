"""A pipeline schedule as a maximum of sums: what is held when each pass reaches its highest point.

Between two passes a stage holds some number of micro-batches of each of its chunks; the peak of a step is the largest,
over all passes, of what is held then plus the peak of that pass. A moment at which no chunk holds more than at another
moment of the same pass cannot be the highest one and is dropped. Chunks that are alike count together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from vramcast.parallel.pipeline import Slot, interleaved, one_forward_one_backward

PERIODS: Final = 3
"""Groups of micro-batches after which an interleaved schedule repeats itself: later ones hold nothing new."""


class Moment(NamedTuple):
    """A pass about to start, and how many micro-batches of each kind of chunk are held."""

    held: tuple[int, ...]
    slot: Slot  # its chunk is a kind, too


@cache
def moments(*, stage: int, stages: int, kinds: tuple[int, ...], micro_batches: int) -> tuple[Moment, ...]:
    """The moments of a step among which the highest one is.

    Args:
        stage: from 0 [index]
        stages: pipeline ranks [count]
        kinds: of each model chunk of the rank, from 0; chunks of one kind are alike [index]
        micro_batches: of the step; more than `enough` change nothing [count]
    """
    chunks = len(kinds)
    if chunks == 1:
        slots = one_forward_one_backward(stage=stage, stages=stages, micro_batches=micro_batches)
    else:
        slots = interleaved(
            stage=stage, stages=stages, micro_batches=micro_batches, chunks=chunks, group=stages
        )
    by_slot: dict[Slot, set[tuple[int, ...]]] = {}
    held = [0] * (max(kinds) + 1)
    different = {*slots.warmup, *slots.steady, *slots.cooldown}
    places = {slot: (slot._replace(chunk=kinds[slot.chunk]), 1 if slot.forward else -1) for slot in different}
    for slot in (*slots.warmup, *slots.steady * min(slots.repeats, 2), *slots.cooldown):
        found, more = places[slot]
        by_slot.setdefault(found, set()).add(tuple(held))
        held[found.chunk] += more
    return tuple(Moment(held, slot) for slot, seen in by_slot.items() for held in _undominated(seen))


def enough(*, stages: int, chunks: int) -> int:
    """Micro-batches beyond which no more of them are held at once.

    >>> enough(stages=8, chunks=1), enough(stages=8, chunks=2)
    (8, 24)
    """
    return stages if chunks == 1 else PERIODS * stages


def _undominated(seen: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    kept: list[tuple[int, ...]] = []
    for candidate in sorted(seen, key=sum, reverse=True):
        if not any(all(a >= b for a, b in zip(other, candidate, strict=True)) for other in kept):
            kept.append(candidate)
    return kept
