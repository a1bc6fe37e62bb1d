"""What is kept of millions of plans: the best that may fit, and those that would be better and just do not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Plan
from vramcast.domain.planning import Goal, Limits
from vramcast.domain.verdict import usable_bytes
from vramcast.search.training.states import Counts

Seconds = Any
"""An array of float64, one for each plan."""


TIE: Final = 1e-9
"""Weight of a second of the step beside a GPU: less than one GPU for any step."""

DIGITS: Final = 5
"""Of a figure that plans are ranked by: what differs behind them is alike."""

NEARLY: Final = 1e-6
"""How close to a half a digit may come before its decimal text decides where it is rounded to."""


JobAt = Callable[[int], Job]


class Questions(NamedTuple):
    """Of the plans of one batch, by their places."""

    one: JobAt
    several: Callable[[Counts], Job]  # as one whose fields are arrays wherever some of the plans differ


class Plans(NamedTuple):
    """Plans on one cluster, one in each element."""

    cluster: Cluster
    live_bytes: Counts  # fullest rank, highest point of the run
    step_s: Seconds
    questions: Questions
    num_splits: Counts  # how often a plan halves the work, roughly: bits of its degrees


class Candidate(NamedTuple):
    """One plan, not yet through the allocator."""

    value: float  # what the goal makes small
    live_bytes: int
    step_s: float
    num_splits: int
    place: int
    job_at: JobAt

    @property
    def job(self) -> Job:
        """The question of the plan."""
        return self.job_at(self.place)

    @property
    def key(self) -> Key:
        """Which plan it is."""
        return self.job_at, self.place


Key = tuple[JobAt, int]


class Candidates:
    """Many of them as arrays: one is made when it is looked at."""

    def __init__(self, axes: Sequence[Counts], questions: Sequence[Questions]) -> None:
        self.axes = axes  # the fields of a candidate, then the batch it is of
        self.questions = questions  # of every batch

    @property
    def values(self) -> Seconds:
        """What the goal makes small."""
        return self.axes[0]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Candidate]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Candidate:
        value, live_bytes, step_s, num_splits, place, batch = (axis[index].item() for axis in self.axes)
        return Candidate(value, live_bytes, step_s, num_splits, place, self.questions[batch].one)

    def among(self, keys: Collection[Key]) -> Iterator[Candidate]:
        """Those of these plans that are here, in order."""
        *_, places, batches = self.axes
        number = {questions.one: batch for batch, questions in enumerate(self.questions)}
        wanted = [(number[job_at], place) for job_at, place in keys if job_at in number]
        found = [np.flatnonzero((batches == batch) & (places == place)) for batch, place in wanted]
        return (self[int(index)] for index in np.sort(np.concatenate(found))) if found else iter(())

    def chosen(self, order: NDArray[np.intp]) -> Candidates:
        """Some of them in another order."""
        *axes, batches = (axis[order] for axis in self.axes)
        used, batches = np.unique(batches, return_inverse=True)
        return Candidates((*axes, batches), [self.questions[batch] for batch in used])

    @cached_property
    def _asked(self) -> list[tuple[NDArray[np.intp], Job]]:
        """Of every batch where its plans are here, and their question."""
        *_, places, batches = self.axes
        order = np.argsort(batches, kind="stable")
        ends = np.searchsorted(batches[order], np.arange(1, len(self.questions)))
        of_batch = zip(np.split(order, ends), self.questions, strict=True)
        return [(indices, questions.several(places[indices])) for indices, questions in of_batch]

    def differing(self, look: Callable[[Job], Any], own: object) -> Iterator[Candidate]:
        """Those that look otherwise, in order."""
        other = np.empty(len(self), np.bool_)
        for indices, jobs in self._asked:
            other[indices] = look(jobs) != own
        return (self[int(index)] for index in np.flatnonzero(other))

    def ranked(self) -> Candidates:
        """By the goal, then by speed; of plans that are equal in both, the one divided in fewer ways comes first."""
        values, _, step_s, num_splits, *_ = self.axes
        return self.chosen(np.lexsort((num_splits, rounded(step_s), rounded(values))))


def together(parts: Sequence[Candidates]) -> Candidates:
    """All of them, one part behind the other."""
    axes = [np.concatenate([part.axes[axis] for part in parts]) for axis in range(5)]
    starts = np.cumsum([0, *(len(part.questions) for part in parts[:-1])])
    batches = np.concatenate([part.axes[5] + start for part, start in zip(parts, starts, strict=True)])
    return Candidates((*axes, batches), [questions for part in parts for questions in part.questions])


class Rule(NamedTuple):
    """What is wanted, in numbers."""

    goal: Goal
    limits: Limits
    tokens: int  # of one optimizer step

    def capacity_bytes(self, cluster: Cluster) -> int:
        """What a plan may claim of a card [bytes]."""
        return usable_bytes(cluster.gpu.visible_bytes, self.limits.headroom)

    def rate(self, cluster: Cluster) -> float:
        """What an hour costs: money where a price is known, else GPU-hours."""
        return cluster.price.per_hour * cluster.num_nodes if cluster.price else float(cluster.count)

    def run_hours(self, step_s: Seconds) -> Seconds:
        """How long the whole run takes with steps of that length [h]."""
        return step_s * ((self.limits.run_tokens or 0) / self.tokens / 3600)

    def values(self, plans: Plans) -> Seconds:
        """The goal as a number to make small; ties of the first concern are broken by the step time."""
        match self.goal:
            case Goal.FASTEST:
                return plans.step_s
            case Goal.CHEAPEST:
                return plans.step_s * self.rate(plans.cluster)
            case Goal.FEWEST_GPUS:
                return plans.cluster.count + TIE * plans.step_s
            case Goal.LEAST_MEMORY:
                return plans.live_bytes + plans.step_s / (1 + plans.step_s)

    def allowed(self, plans: Plans) -> NDArray[np.bool_]:
        """Which plans keep to deadline and budget."""
        if self.limits.run_tokens is None:
            return np.ones(plans.step_s.shape, np.bool_)
        hours = self.run_hours(plans.step_s)
        found = np.ones(plans.step_s.shape, np.bool_)
        if self.limits.deadline_hours is not None:
            found &= hours <= self.limits.deadline_hours
        if self.limits.budget is not None:
            found &= hours * self.rate(plans.cluster) <= self.limits.budget
        return found


class Pool:
    """The best of all plans seen on one cluster."""

    def __init__(self, rule: Rule, cluster: Cluster, size: int) -> None:
        self.rule = rule
        self.cluster = cluster
        self.size = size
        self.capacity = rule.capacity_bytes(cluster)
        self.num_plans = 0
        self.num_fitting = 0
        self.num_tight = 0  # that would fit if they needed not to claim more than their live memory
        self.num_in_memory = 0  # whether they keep deadline and budget or not
        self.best = NONE  # in order when no more come
        self._more: list[Candidates] = []
        self.failing: list[Candidate] = []  # better ones need more memory
        self._worst = np.inf

    def add(self, plans: Plans, margin: float = 1.0) -> None:
        """Look at more plans, whose claims are at least their live memory times the margin."""
        values = self.rule.values(plans)
        allowed = self.rule.allowed(plans)
        fits = plans.live_bytes * margin <= self.capacity
        self.num_tight += int((plans.live_bytes <= self.capacity).sum() - fits.sum())
        self.num_plans += len(values)
        good = fits & allowed
        self.num_in_memory += int(fits.sum())
        self.num_fitting += int(good.sum())
        self._keep_best(plans, values, np.flatnonzero(good & (values < self._worst)))
        self._keep_failing(plans, values, np.flatnonzero(~fits & allowed))

    def _keep_best(self, plans: Plans, values: Seconds, places: NDArray[np.intp]) -> None:
        if len(places) > self.size:
            places = places[np.argpartition(values[places], self.size)[: self.size]]
        if len(places):
            self._more.append(_chosen(plans, values, places))
        if len(self.best) + sum(map(len, self._more)) > 2 * self.size:
            self._trim()

    def _trim(self) -> None:
        """Forget all but the best."""
        found = together((self.best, *self._more))
        self.best, self._more = found.chosen(np.argsort(found.values, kind="stable")[: self.size]), []
        if len(found) > self.size:
            self._worst = self.best.values[-1]

    def finish(self) -> None:
        """Put the best in order, when no more plans come."""
        self._trim()
        self.best = self.best.ranked()

    def _keep_failing(self, plans: Plans, values: Seconds, places: NDArray[np.intp]) -> None:
        """Those that no other failing plan beats in both value and memory."""
        if not len(places):
            return
        order = places[np.lexsort((plans.live_bytes[places], values[places]))]
        live = plans.live_bytes[order]
        before = np.concatenate(([np.iinfo(np.int64).max], np.minimum.accumulate(live)[:-1]))
        found = [*self.failing, *_chosen(plans, values, order[live < before])]
        found.sort(key=lambda candidate: (candidate.value, candidate.live_bytes))
        self.failing = []
        for candidate in found:
            if not self.failing or candidate.live_bytes < self.failing[-1].live_bytes:
                self.failing.append(candidate)


def rounded(figures: Seconds) -> Seconds:
    """Positive figures to so many significant digits, as `format` rounds them; those that are equal are so to the bit.

    >>> rounded(np.array([0.123456, 99999.6, 2.0]))
    array([1.2346e-01, 1.0000e+05, 2.0000e+00])
    """
    powers = np.floor(np.log10(figures)) - (DIGITS - 1)
    scaled = figures / 10.0**powers
    digits = np.rint(scaled)
    for index in np.flatnonzero(np.abs(scaled - np.floor(scaled) - 0.5) < NEARLY):
        digits[index] = np.rint(float(f"{figures[index]:.{DIGITS}g}") / 10.0 ** powers[index])
    longer = digits >= 10**DIGITS
    return np.where(longer, digits / 10, digits) * 10.0 ** (powers + longer)


def num_splits(plan: Plan) -> int:
    """How often a plan halves the work, roughly."""
    degrees = (plan.tp, plan.pp, plan.cp, plan.ep, plan.virtual_stages)
    return sum(degree.bit_length() for degree in degrees)


def _chosen(plans: Plans, values: Seconds, places: NDArray[np.intp]) -> Candidates:
    axes = [axis[places] for axis in (values, plans.live_bytes, plans.step_s, plans.num_splits)]
    return Candidates((*axes, places, np.zeros_like(places)), [plans.questions])


NONE: Final = Candidates([np.empty(0, kind) for kind in "fifiii"], [])
