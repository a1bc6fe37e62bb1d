"""Inverse questions about serving: which card, how many, how split, how long, how many users, which format.

Every plan looked at is answered by the engine's own model (`estimate.serving.verdict`); nothing is interpolated.
What is monotone (longer sequences and more of them never need less) is bisected, everything else tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Capacity, ServeAnswer, Tried
from vramcast.domain.device import Gpu
from vramcast.domain.planning import too_close
from vramcast.domain.serving import DEFAULT_CONTEXT, ServeJob
from vramcast.domain.verdict import usable_bytes
from vramcast.errors import Note, VramcastError
from vramcast.estimate.serving import Verdict, answer, verdict
from vramcast.estimate.speed import timed
from vramcast.search import goals
from vramcast.search.goals import first_enough, largest_look
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
    def job(self) -> ServeJob:
        """The plan."""
        return self.candidate.job

    @property
    def value(self) -> int | str:
        """Of what is looked for."""
        return self.candidate.value

    @property
    def is_possible(self) -> bool:
        """Whether it could run on a large enough card."""
        return self.verdict is not None or self.least_bytes > 0

    @property
    def misses(self) -> tuple[float, float]:
        """How little there is of what is needed: of the cache, and of the card; no less where it is not worked out."""
        found, visible = self.verdict, self.job.cluster.gpu.visible_bytes
        if found is None:
            return -1.0, -visible / max(1, self.least_bytes)
        cached = found.capacity.concurrency / self.job.requests.concurrency if found.capacity else float(found.fits)
        return -min(1.0, cached), -visible / max(1, found.needed_bytes)


Result = goals.Result[Look]


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
    look, found, warnings = goals.choose(
        goal, GOALS, Asked(job, tuple(cards), headroom), worked_out, _with_speed, nothing="no card to choose from"
    )
    chosen = answer(look.job)
    return replace(chosen, found=found, warnings=(*warnings, *chosen.warnings))


def worked_out(look: Look) -> Look:
    """The plan with what it comes to."""
    return look if look.verdict is not None or not look.least_bytes else _look(look.candidate, None)


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

    return first_enough(smallest_gpu(asked.job, asked.cards), look)


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
            return goals.Result(looks, best)
    return goals.Result(looks, None)


def _best_split(asked: Asked) -> Result:
    looks = [_look(candidate, asked.headroom) for candidate in splits(asked.job)]
    return goals.Result(looks, _fastest(looks))


def _longest_context(asked: Asked) -> Result:
    job = asked.job
    longest = job.model.context or max(job.context, DEFAULT_CONTEXT)
    capacity = _capacity(job)
    guess = capacity.longest_context if capacity else job.context
    return largest_look(lambda tokens: _look(with_context(job, tokens), asked.headroom), longest, guess)


def _most_users(asked: Asked) -> Result:
    job = asked.job
    capacity = _capacity(job)
    guess = int(capacity.concurrency) if capacity else job.requests.concurrency
    most = job.plan.max_sequences or MOST_USERS
    return largest_look(lambda sequences: _look(with_users(job, sequences), asked.headroom), most, guess)


def _capacity(job: ServeJob) -> Capacity | None:
    """What the question's own plan holds, where it is possible: a first guess."""
    try:
        return verdict(job).capacity
    except VramcastError:
        return None


def _quantisation(asked: Asked) -> Result:
    return first_enough(formats(asked.job), lambda candidate: _look(candidate, asked.headroom))


GOALS: Final[dict[str, Callable[[Asked], Result]]] = {
    "smallest-gpu": _smallest,
    "fewest-gpus": _fewest,
    "best-split": _best_split,
    "longest-context": _longest_context,
    "most-users": _most_users,
    "quantisation": _quantisation,
}
"""What can be asked for -> how it is searched."""
