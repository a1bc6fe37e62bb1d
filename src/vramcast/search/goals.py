"""What inverse questions share: the largest number that fits, the first plan that does, the one that misses by least.

A question looks at plans; what is monotone (more never needs less) is bisected, everything else tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from vramcast.domain.answer import Found, Tried
from vramcast.domain.planning import NO_ROOM
from vramcast.errors import InvalidSpec, UnknownName, joined

WIDENING: Final = 4
"""Factor by which a bracket grows at every step away from a guess."""

SHOWN: Final = 8
"""Plans in the table of an answer."""

LARGER_ONES: Final = 2
"""Plans looked at behind the first that is enough, for comparison."""


class Look(Protocol):
    """One plan looked at: its job, the value of what is looked for, how it came out; whether it fits and leaves free
    what it is to; whether it could run on a large enough card, and by how much it does not fit, or by more."""

    @property
    def job(self) -> Any: ...
    @property
    def value(self) -> int | str: ...
    @property
    def tried(self) -> Tried: ...
    @property
    def leaves(self) -> bool: ...
    @property
    def is_possible(self) -> bool: ...
    @property
    def misses(self) -> Any: ...


OneLook = TypeVar("OneLook", bound=Look)
Candidate = TypeVar("Candidate")


class Result(NamedTuple, Generic[OneLook]):
    """The plans looked at in order, and the one that is the answer."""

    looks: list[OneLook]
    best: OneLook | None


class Choice(NamedTuple, Generic[OneLook]):
    """The plan that is answered, with what else was looked at."""

    look: OneLook
    found: Found
    warnings: tuple[str, ...]


def choose(
    goal: str, goals: Mapping[str, Callable[[Any], Result[OneLook]]], asked: Any,
    worked_out: Callable[[OneLook], OneLook], shown: Callable[[OneLook], OneLook] = lambda look: look,
    alternatives: Callable[[list[OneLook]], bool] = lambda _: False, nothing: str = "nothing to look at",
) -> Choice[OneLook]:
    """The plan that a goal asks for, else the one that misses by least.

    Where nobody says what is to stay free, and no plan leaves its 90 % interval on the card, plans that fit are found.

    Args:
        goals: goal -> its search
        asked: what a search starts from, with a field `headroom`
        worked_out: a plan with what it needs, where that was not worked out
        shown: a plan with what is shown of it beside
        alternatives: whether the plans are no row of sizes, so that all of them are shown
        nothing: what is said where there is no plan at all

    Raises: UnknownName for another goal, InvalidSpec where no plan is possible at all
    """
    if goal not in goals:
        raise UnknownName.of("goal", goal, goals)
    result = goals[goal](asked)
    warnings: tuple[str, ...] = ()
    if result.best is None and asked.headroom is None:
        without = goals[goal](asked._replace(headroom=0.0))
        if without.best is not None:
            result, warnings = without, (NO_ROOM,)
    looks, best, nearest = result.looks, result.best, nearest_of(result.looks, worked_out)
    chosen = best or nearest
    if chosen is None:
        reasons = joined("; ", dict.fromkeys(look.tried.reason for look in looks), most=400)
        raise InvalidSpec("no plan is possible: {}", reasons or nothing)
    found = Found(
        goal=goal,
        what=best.tried.what if best else None,
        value=best.value if best else None,
        tried=tuple(shown(worked_out(look)).tried for look in (
            looks if alternatives(looks) else _around(looks, chosen))),
        num_tried=len(looks),
        nearest_failing=shown(nearest).tried if nearest else None,
    )
    return Choice(chosen, found, warnings)


def _around(looks: list[OneLook], chosen: OneLook) -> list[OneLook]:
    index = next(position for position, look in enumerate(looks) if look.job is chosen.job)
    start = max(0, min(index - SHOWN + 1 + LARGER_ONES, len(looks) - SHOWN))
    return looks[start : start + SHOWN]


def nearest_of(looks: Iterable[OneLook], worked_out: Callable[[OneLook], OneLook]) -> OneLook | None:
    """Of the plans that are possible and do not fit, the one that misses by least."""
    nearest: OneLook | None = None
    failing = (look for look in looks if look.is_possible and not look.leaves)
    for look in sorted(failing, key=lambda look: look.misses):
        if nearest is not None and look.misses >= nearest.misses:
            break  # none behind it can miss by less
        found = worked_out(look)
        if found.is_possible and (nearest is None or found.misses < nearest.misses):
            nearest = found
    return nearest


def first_enough(candidates: Iterable[Candidate], look_at: Callable[[Candidate], OneLook]) -> Result[OneLook]:
    """The first that fits, and a few behind it."""
    looks: list[OneLook] = []
    best: OneLook | None = None
    for candidate in candidates:
        looks.append(look_at(candidate))
        best = best or (looks[-1] if looks[-1].leaves else None)
        if best is not None and len(looks) - looks.index(best) > LARGER_ONES:
            break
    return Result(looks, best)


def largest_look(look_at: Callable[[int], OneLook], most: int, guess: int = 1) -> Result[OneLook]:
    """The largest number up to `most` that fits, and all that were looked at."""
    looks: dict[int, OneLook] = {}

    def fits(number: int) -> bool:
        if number not in looks:
            looks[number] = look_at(number)
        return looks[number].leaves

    best = largest(fits, most, guess)
    return Result([looks[number] for number in sorted(looks)], looks.get(best))


def largest(fits: Callable[[int], bool], most: int, guess: int = 1) -> int:
    """The largest number from 1 to `most` that fits, 0 where none does: a bracket that widens, then bisection.

    >>> largest(lambda number: number * number <= 1000, most=10**6, guess=3)
    31
    """
    low, high = _bracket(fits, most, min(max(1, guess), most))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _bracket(fits: Callable[[int], bool], most: int, guess: int) -> tuple[int, int]:
    """A number that fits (0: none) and a larger one that does not (or most + 1)."""
    width = 1
    if fits(guess):
        low = guess
        while low + width <= most and fits(low + width):
            low, width = low + width, WIDENING * width
        return low, min(low + width, most + 1)
    high = guess
    while high > width and not fits(high - width):
        high, width = high - width, WIDENING * width
    return max(0, high - width), high
