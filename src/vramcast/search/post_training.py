"""Inverse questions about post-training: the largest micro-batch, the longest answer, the fewest cards, the largest
share of the card for the engine, the fastest step. Each plan looked at is answered whole, and fits where its 90 %
interval does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.answer import Found, PostTrainingAnswer, Tried
from vramcast.domain.post_training import PostTrainingJob
from vramcast.engines.post_training.batches import part_of, replicas
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.estimate.post_training import answer
from vramcast.search.bisection import largest
from vramcast.search.post_training_plans import fastest
from vramcast.units import format_seconds

FASTEST: Final = "fastest-step"

TOKEN_STEP: Final = 128
"""Answers are looked at in steps of this [tokens]."""

MOST_STEPS: Final = 1024
PERCENT: Final = 0.05
"""Shares of the card are looked at in steps of this."""

SHOWN: Final = 8


class _Looked:
    """Plans that were looked at."""

    def __init__(self) -> None:
        self.tried: dict[str, Tried] = {}
        self.answers: dict[str, PostTrainingAnswer] = {}

    def fits(self, what: str, job: Callable[[], PostTrainingJob]) -> bool:
        """Whether a plan fits, its interval with it; what cannot run does not."""
        if what not in self.tried:
            try:
                found = answer(job(), with_changes=False)
            except VramcastError as reason:
                self.tried[what] = Tried(what=what, fits=False, reason=str(reason))
                return False
            enough = found.fits and found.high_bytes <= found.capacity_bytes
            self.answers[what] = found
            self.tried[what] = Tried(
                what=what, fits=enough, needed_bytes=found.fullest.needed_bytes, high_bytes=found.high_bytes,
                capacity_bytes=found.capacity_bytes,
                tokens_per_s=None if found.time is None else found.time.tokens_per_s,
            )
        return self.tried[what].fits


def find(goal: str, job: PostTrainingJob, fixed: Collection[str] = ()) -> PostTrainingAnswer:
    """The plan that an inverse question is for; where nothing fits, the answer of the plan as it is asked.

    Args:
        fixed: options that are named, which the search for the fastest step leaves as they are

    Raises: InvalidSpec for a goal that says nothing about the question
    """
    looked, count = _Looked(), 0
    if goal == FASTEST:
        def answered(what: str, plan: PostTrainingJob) -> PostTrainingAnswer | None:
            looked.fits(what, lambda: plan)
            return looked.answers.get(what)

        what, count = fastest(job, fixed, answered)
        time = looked.answers[what].time if what else None
        value: int | str = format_seconds(time.step_s) if time is not None else ""
    else:
        value, what = _SEARCHES[goal](job, looked)
    tried = sorted(looked.tried.values(), key=lambda one: -(one.needed_bytes or 0))
    if goal == FASTEST:  # the plan found comes last, and those before it are faster
        tried = list(looked.tried.values())[::-1]
    found = Found(
        goal=goal, what=what or None, value=value if what else None,
        tried=tuple(tried[:SHOWN]),
        num_tried=count or len(looked.tried),
    )
    return replace(looked.answers[what] if what in looked.answers else answer(job), found=found)


def _largest_batch(job: PostTrainingJob, looked: _Looked) -> tuple[int, str]:
    """Sequences of a micro-batch, of every pass."""
    most = max(1, job.updates.mini_batch * job.episodes.samples // replicas(job))

    def of(count: int) -> PostTrainingJob:
        sizes: dict[str, Any] = {"micro_batch": count, "micro_tokens": None, "log_prob_micro_batch": None,
                                 "log_prob_tokens": None}
        return replace(job, updates=replace(job.updates, **sizes))

    count = largest(lambda number: looked.fits(f"--micro-batch {number}", lambda: of(number)), most,
                    guess=job.updates.micro_batch or 8)
    return count, f"--micro-batch {count}" if count else ""


def _longest_response(job: PostTrainingJob, looked: _Looked) -> tuple[int, str]:
    """Tokens of an answer, every one as long."""
    def of(steps: int) -> PostTrainingJob:
        episodes = replace(job.episodes, response_len=steps * TOKEN_STEP, mean_prompt_len=None, mean_response_len=None)
        return replace(job, episodes=episodes, rollout=replace(job.rollout, context=None))

    steps = largest(lambda number: looked.fits(f"--response-len {number * TOKEN_STEP}", lambda: of(number)), MOST_STEPS,
                    guess=max(1, job.episodes.response_len // TOKEN_STEP))
    return steps * TOKEN_STEP, f"--response-len {steps * TOKEN_STEP}" if steps else ""


def _fewest_gpus(job: PostTrainingJob, looked: _Looked) -> tuple[int, str]:
    """Cards of the same kind, up to those asked for."""
    if job.rollout.gpus is not None:
        raise InvalidSpec("--find fewest-gpus varies the cards that trainer and engine share; leave out --rollout-gpus")
    for count in _counts(job):
        cluster = part_of(job.cluster, count)
        what = f"--gpus {cluster.name}"
        if looked.fits(what, lambda cluster=cluster: replace(job, cluster=cluster)):  # type: ignore[misc]
            return count, what
    return 0, ""


def _counts(job: PostTrainingJob) -> Iterator[int]:
    each, count = job.cluster.gpus_per_node, 1
    while count < each:
        yield count
        count *= 2
    yield from range(each, job.cluster.count + 1, each)


def _largest_fraction(job: PostTrainingJob, looked: _Looked) -> tuple[str, str]:
    """The engine's share of the card."""
    for step in range(round(1 / PERCENT) - 1, 0, -1):
        share = round(step * PERCENT, 2)
        what = f"--memory-fraction {share:g}"
        if looked.fits(what, lambda share=share: replace(  # type: ignore[misc]
                job, rollout=replace(job.rollout, memory_fraction=share))):
            return f"{share:g}", what
    return "", ""


_SEARCHES: Final[dict[str, Callable[[PostTrainingJob, _Looked], tuple[int | str, str]]]] = {
    "largest-batch": _largest_batch, "longest-response": _longest_response, "fewest-gpus": _fewest_gpus,
    "largest-fraction": _largest_fraction,
}
