"""Inverse questions about serving: which card, how many, how split, how long, how many users, which format.

Every plan looked at is answered by the engine's own model (`estimate.serving.verdict`); nothing is interpolated.
What is monotone (longer sequences and more of them never need less) is bisected, everything else tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Capacity, Found, ServeAnswer, Tried
from vramcast.domain.device import Gpu
from vramcast.domain.planning import NO_ROOM, too_close
from vramcast.domain.serving import DEFAULT_CONTEXT, ServeJob
from vramcast.domain.verdict import usable_bytes
from vramcast.errors import InvalidSpec, Note, UnknownName, VramcastError, joined
from vramcast.estimate.serving import Verdict, answer, verdict
from vramcast.estimate.speed import timed
from vramcast.search.bisection import largest
from vramcast.search.serving_space import (
    Candidate,
    fewest_gpus,
    formats,
    smallest_gpu,
    splits,
    with_context,
    with_users,
)
from vramcast.units import format_bytes

LARGER_ONES: Final = 2
"""Plans looked at behind the first that fits, for comparison."""

SHOWN: Final = 8
"""Plans in the table of an answer."""

MOST_USERS: Final = 1 << 20
"""Sequences at once beyond which nobody looks."""


class Look(NamedTuple):
    """One plan looked at, and how it came out. `verdict` is None where the plan is impossible, or not worked out."""

    candidate: Candidate
    verdict: Verdict | None
    tried: Tried
    least_bytes: int = 0  # of a plan that is not worked out, because so much is too much
    leaves: bool = False  # whether it fits and leaves free what it is to

    @property
    def nearness(self) -> tuple[float, float]:
        """How much there is of what is needed: of the cache, and of the card; no less where it is not worked out."""
        found, job = self.verdict, self.candidate.job
        if found is None:
            return 1.0, job.cluster.gpu.visible_bytes / max(1, self.least_bytes)
        cached = found.capacity.concurrency / job.requests.concurrency if found.capacity else float(found.fits)
        return min(1.0, cached), job.cluster.gpu.visible_bytes / max(1, found.needed_bytes)


class Result(NamedTuple):
    """The plans looked at in order, and the one that is the answer."""

    looks: list[Look]
    best: Look | None


class Asked(NamedTuple):
    """What a goal starts from."""

    job: ServeJob
    cards: tuple[Gpu, ...] = ()  # to choose from
    headroom: float | None = None  # share of a card that stays free; None: its 90 % interval fits


def find(
    goal: str, job: ServeJob, *, cards: Iterable[Gpu] = (), headroom: float | None = None
) -> ServeAnswer:
    """The answer of the plan that a goal asks for, with what else was looked at.

    Args:
        goal: key of GOALS
        job: the question; what the goal varies is replaced
        cards: cards to choose from
        headroom: share of a card that stays free; None: so much that the 90 % interval fits, where any plan does so

    Raises: UnknownName for another goal, InvalidSpec when no plan is possible at all
    """
    if goal not in GOALS:
        raise UnknownName.of("goal", goal, GOALS)
    asked = Asked(job, tuple(cards), headroom)
    result = GOALS[goal](asked)
    warnings: tuple[str, ...] = ()
    if result.best is None and headroom is None:
        without = GOALS[goal](asked._replace(headroom=0.0))
        if without.best is not None:
            result, warnings = without, (NO_ROOM,)
    nearest = nearest_of(result.looks)
    chosen = result.best or nearest
    if chosen is None:
        reasons = joined("; ", dict.fromkeys(look.tried.reason for look in result.looks), most=400)
        raise InvalidSpec("no plan is possible: {}", reasons or "no card to choose from")
    found = Found(
        goal=goal,
        what=result.best.candidate.what if result.best else None,
        value=result.best.candidate.value if result.best else None,
        tried=tuple(_with_speed(worked_out(look)).tried for look in _shown(result.looks, chosen)),
        num_tried=len(result.looks),
        nearest_failing=_with_speed(nearest).tried if nearest else None,
    )
    chosen_answer = answer(chosen.candidate.job)
    return replace(chosen_answer, found=found, warnings=(*warnings, *chosen_answer.warnings))


def nearest_of(looks: Iterable[Look]) -> Look | None:
    """Of the plans that are possible and do not fit, the one that misses by least."""
    failing = (look for look in looks if not look.leaves and (look.verdict is not None or look.least_bytes))
    nearest: Look | None = None
    for look in sorted(failing, key=lambda look: look.nearness, reverse=True):
        if nearest is not None and look.nearness <= nearest.nearness:
            break  # none behind it can miss by less
        found = worked_out(look)
        if found.verdict is not None and (nearest is None or found.nearness > nearest.nearness):
            nearest = found
    return nearest


def worked_out(look: Look) -> Look:
    """The plan with what it comes to."""
    return look if look.verdict is not None or not look.least_bytes else _look(look.candidate, None)


def _shown(looks: list[Look], chosen: Look) -> list[Look]:
    """The plans around the chosen one."""
    index = next(position for position, look in enumerate(looks) if look.candidate is chosen.candidate)
    start = max(0, min(index - SHOWN + 1 + LARGER_ONES, len(looks) - SHOWN))
    return looks[start : start + SHOWN]


def _look(candidate: Candidate, headroom: float | None) -> Look:
    try:
        found = verdict(candidate.job)
    except VramcastError as error:
        return Look(candidate, None, Tried(what=candidate.what, fits=False, reason=str(error)))
    capacity = found.capacity
    tried = Tried(
        what=candidate.what,
        fits=found.fits,
        reason=_reason(candidate.job, found, headroom),
        needed_bytes=found.needed_bytes,
        high_bytes=found.high_bytes,
        capacity_bytes=candidate.job.cluster.gpu.visible_bytes,
        kv_tokens=capacity.kv_tokens if capacity else None,
        concurrency=capacity.concurrency if capacity else None,
    )
    return Look(candidate, found, tried, leaves=found.leaves(candidate.job.cluster.gpu.visible_bytes, headroom))


def _with_speed(look: Look) -> Look:
    """A plan that is shown or compared with its speed, which takes ten times as long as its memory."""
    speed = None if look.verdict is None else timed(look.candidate.job).speed
    if speed is None:
        return look
    return look._replace(tried=replace(
        look.tried, tokens_per_s=speed.tokens_per_s, time_to_first_token_s=speed.time_to_first_token_s,
    ))


def _reason(job: ServeJob, found: Verdict, headroom: float | None) -> str:
    """Why a plan does not fit, or leaves too little of the card free; or nothing."""
    visible = job.cluster.gpu.visible_bytes
    if found.needed_bytes > visible:
        return Note("{} needed, {} usable", format_bytes(found.needed_bytes), format_bytes(visible))
    if found.shortfall or found.leaves(visible, headroom):
        return found.shortfall
    return too_close(found.needed_bytes, found.high_bytes, usable_bytes(visible, headroom), headroom)


def _smallest(asked: Asked) -> Result:
    """Cards from the smallest up; one that cannot hold the weights that another was found to load is not looked at."""
    loaded: dict[str | None, int] = {}

    def look(candidate: Candidate) -> Look:
        dtype, visible = candidate.job.plan.dtype, candidate.job.cluster.gpu.visible_bytes
        weights = loaded.get(dtype, 0)
        if weights > visible:
            tried = Tried(what=candidate.what, fits=False, capacity_bytes=visible)
            return Look(candidate, None, tried, least_bytes=weights)
        found = _look(candidate, asked.headroom)
        if found.verdict is not None:
            loaded[dtype] = found.verdict.loaded_bytes
        return found

    return _first(smallest_gpu(asked.job, asked.cards), look)


def _first(candidates: Iterable[Candidate], look_at: Callable[[Candidate], Look]) -> Result:
    """The first that fits, and a few behind it."""
    looks: list[Look] = []
    best: Look | None = None
    for candidate in candidates:
        look = look_at(candidate)
        looks.append(look)
        best = best or (look if look.leaves else None)
        if best is not None and len(looks) - looks.index(best) > LARGER_ONES:
            break
    return Result(looks, best)


def _fastest(looks: list[Look]) -> Look | None:
    """The one with the most tokens a second; without speeds the one with the most room."""
    fitting = [_with_speed(look) for look in looks if look.leaves]
    return max(fitting, key=lambda look: (look.tried.tokens_per_s or 0, look.tried.concurrency or 0), default=None)


def _fewest(asked: Asked) -> Result:
    """The smallest number of cards on which any split fits, in its fastest split."""
    looks: list[Look] = []
    for group in fewest_gpus(asked.job):
        here = [_look(candidate, asked.headroom) for candidate in group]
        looks += here
        best = _fastest(here)
        if best is not None:
            return Result(looks, best)
    return Result(looks, None)


def _best_split(asked: Asked) -> Result:
    looks = [_look(candidate, asked.headroom) for candidate in splits(asked.job)]
    return Result(looks, _fastest(looks))


def _largest(asked: Asked, of: Callable[[int], Candidate], most: int, guess: int) -> Result:
    """The largest number up to `most` that fits."""
    looks: dict[int, Look] = {}

    def fits(number: int) -> bool:
        if number not in looks:
            looks[number] = _look(of(number), asked.headroom)
        return looks[number].leaves

    best = largest(fits, most, guess)
    return Result([looks[number] for number in sorted(looks)], looks.get(best))


def _longest_context(asked: Asked) -> Result:
    job = asked.job
    longest = job.model.context or max(job.context, DEFAULT_CONTEXT)
    capacity = _capacity(job)
    guess = capacity.longest_context if capacity else job.context
    return _largest(asked, lambda tokens: with_context(job, tokens), longest, guess)


def _most_users(asked: Asked) -> Result:
    job = asked.job
    capacity = _capacity(job)
    guess = int(capacity.concurrency) if capacity else job.requests.concurrency
    most = job.plan.max_sequences or MOST_USERS
    return _largest(asked, lambda sequences: with_users(job, sequences), most, guess)


def _capacity(job: ServeJob) -> Capacity | None:
    """What the question's own plan holds, where it is possible: a first guess."""
    try:
        return verdict(job).capacity
    except VramcastError:
        return None


def _quantisation(asked: Asked) -> Result:
    return _first(formats(asked.job), lambda candidate: _look(candidate, asked.headroom))


GOALS: Final[dict[str, Callable[[Asked], Result]]] = {
    "smallest-gpu": _smallest,
    "fewest-gpus": _fewest,
    "best-split": _best_split,
    "longest-context": _longest_context,
    "most-users": _most_users,
    "quantisation": _quantisation,
}
"""What can be asked for -> how it is searched."""
