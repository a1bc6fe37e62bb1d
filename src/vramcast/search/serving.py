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
from vramcast.domain.serving import DEFAULT_CONTEXT, ServeJob
from vramcast.errors import InvalidSpec, UnknownName, VramcastError
from vramcast.estimate.serving import Verdict, answer, verdict
from vramcast.estimate.speed import timed
from vramcast.search.bisection import largest
from vramcast.search.candidates import (
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


def find(goal: str, job: ServeJob, *, cards: Iterable[Gpu] = ()) -> ServeAnswer:
    """The answer of the plan that a goal asks for, with what else was looked at.

    Args:
        goal: key of GOALS
        job: the question; what the goal varies is replaced
        cards: cards to choose from

    Raises: UnknownName for another goal, InvalidSpec when no plan is possible at all
    """
    if goal not in GOALS:
        raise UnknownName.of("goal", goal, GOALS)
    result = GOALS[goal](job, cards)
    nearest = nearest_of(result.looks)
    chosen = result.best or nearest
    if chosen is None:
        reasons = "; ".join(dict.fromkeys(look.tried.reason for look in result.looks)) or "no card to choose from"
        raise InvalidSpec(f"no plan is possible: {reasons[:400]}")
    found = Found(
        goal=goal,
        what=result.best.candidate.what if result.best else None,
        value=result.best.candidate.value if result.best else None,
        tried=tuple(worked_out(look).tried for look in _shown(result.looks, chosen)),
        num_tried=len(result.looks),
        nearest_failing=nearest.tried if nearest else None,
    )
    return replace(answer(chosen.candidate.job), found=found)


def nearest_of(looks: Iterable[Look]) -> Look | None:
    """Of the plans that are possible and do not fit, the one that misses by least."""
    failing = (look for look in looks if not look.tried.fits and (look.verdict is not None or look.least_bytes))
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
    return look if look.verdict is not None or not look.least_bytes else _look(look.candidate)


def _shown(looks: list[Look], chosen: Look) -> list[Look]:
    """The plans around the chosen one."""
    index = next(position for position, look in enumerate(looks) if look.candidate is chosen.candidate)
    start = max(0, min(index - SHOWN + 1 + LARGER_ONES, len(looks) - SHOWN))
    return looks[start : start + SHOWN]


def _look(candidate: Candidate) -> Look:
    try:
        found = verdict(candidate.job)
    except VramcastError as error:
        return Look(candidate, None, Tried(what=candidate.what, fits=False, reason=str(error)))
    capacity, speed = found.capacity, timed(candidate.job).speed
    tried = Tried(
        what=candidate.what,
        fits=found.fits,
        reason=_reason(candidate.job, found),
        needed_bytes=found.needed_bytes,
        capacity_bytes=candidate.job.cluster.gpu.visible_bytes,
        kv_tokens=capacity.kv_tokens if capacity else None,
        concurrency=capacity.concurrency if capacity else None,
        tokens_per_s=speed.tokens_per_s if speed else None,
        time_to_first_token_s=speed.time_to_first_token_s if speed else None,
    )
    return Look(candidate, found, tried)


def _reason(job: ServeJob, found: Verdict) -> str:
    """Why a plan does not fit, or nothing."""
    visible = job.cluster.gpu.visible_bytes
    if found.needed_bytes > visible:
        return f"{format_bytes(found.needed_bytes)} needed, {format_bytes(visible)} usable"
    return found.shortfall


def _smallest(job: ServeJob, cards: Iterable[Gpu]) -> Result:
    """Cards from the smallest up; one that cannot hold the weights that another was found to load is not looked at."""
    loaded: dict[str | None, int] = {}

    def look(candidate: Candidate) -> Look:
        dtype, visible = candidate.job.plan.dtype, candidate.job.cluster.gpu.visible_bytes
        weights = loaded.get(dtype, 0)
        if weights > visible:
            tried = Tried(what=candidate.what, fits=False, capacity_bytes=visible)
            return Look(candidate, None, tried, least_bytes=weights)
        found = _look(candidate)
        if found.verdict is not None:
            loaded[dtype] = found.verdict.loaded_bytes
        return found

    return _first(smallest_gpu(job, cards), look)


def _first(candidates: Iterable[Candidate], look_at: Callable[[Candidate], Look]) -> Result:
    """The first that fits, and a few behind it."""
    looks: list[Look] = []
    best: Look | None = None
    for candidate in candidates:
        look = look_at(candidate)
        looks.append(look)
        best = best or (look if look.tried.fits else None)
        if best is not None and len(looks) - looks.index(best) > LARGER_ONES:
            break
    return Result(looks, best)


def _fastest(looks: list[Look]) -> Look | None:
    """The one with the most tokens a second; without speeds the one with the most room."""
    fitting = [look for look in looks if look.tried.fits]
    return max(fitting, key=lambda look: (look.tried.tokens_per_s or 0, look.tried.concurrency or 0), default=None)


def _fewest(job: ServeJob) -> Result:
    """The smallest number of cards on which any split fits, in its fastest split."""
    looks: list[Look] = []
    for group in fewest_gpus(job):
        here = [_look(candidate) for candidate in group]
        looks += here
        best = _fastest(here)
        if best is not None:
            return Result(looks, best)
    return Result(looks, None)


def _best_split(job: ServeJob) -> Result:
    looks = [_look(candidate) for candidate in splits(job)]
    return Result(looks, _fastest(looks))


def _largest(of: Callable[[int], Candidate], most: int, guess: int) -> Result:
    """The largest number up to `most` that fits."""
    looks: dict[int, Look] = {}

    def fits(number: int) -> bool:
        if number not in looks:
            looks[number] = _look(of(number))
        return looks[number].tried.fits

    best = largest(fits, most, guess)
    return Result([looks[number] for number in sorted(looks)], looks.get(best))


def _longest_context(job: ServeJob) -> Result:
    longest = job.model.context or max(job.context, DEFAULT_CONTEXT)
    capacity = _capacity(job)
    guess = capacity.longest_context if capacity else job.context
    return _largest(lambda tokens: with_context(job, tokens), longest, guess)


def _most_users(job: ServeJob) -> Result:
    capacity = _capacity(job)
    guess = int(capacity.concurrency) if capacity else job.requests.concurrency
    return _largest(lambda sequences: with_users(job, sequences), job.plan.max_sequences or MOST_USERS, guess)


def _capacity(job: ServeJob) -> Capacity | None:
    """What the question's own plan holds, where it is possible: a first guess."""
    try:
        return verdict(job).capacity
    except VramcastError:
        return None


GOALS: Final[dict[str, Callable[[ServeJob, Iterable[Gpu]], Result]]] = {
    "smallest-gpu": _smallest,
    "fewest-gpus": lambda job, cards: _fewest(job),
    "best-split": lambda job, cards: _best_split(job),
    "longest-context": lambda job, cards: _longest_context(job),
    "most-users": lambda job, cards: _most_users(job),
    "quantisation": lambda job, cards: _first(formats(job), _look),
}
"""What can be asked for -> how it is searched."""
