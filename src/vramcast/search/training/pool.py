"""What is kept of millions of plans: the best that may fit, and those that would be better and just do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramcast.domain.answer import usable_bytes
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Plan
from vramcast.domain.planning import Goal, Limits
from vramcast.search.training.extents import Counts

Seconds = Any
"""An array of float64, one for each plan."""


TIE: Final = 1e-9
"""Weight of a second of the step beside a GPU: less than one GPU for any step."""


class Plans(NamedTuple):
    """Plans on one cluster, one in each element."""

    cluster: Cluster
    live_bytes: Counts  # fullest rank, highest point of the run
    step_s: Seconds
    job_at: Callable[[int], Job]
    num_splits_at: Callable[[int], int]  # how often a plan halves the work, roughly: bits of its degrees


class Candidate(NamedTuple):
    """One plan, not yet through the allocator."""

    value: float  # what the goal makes small
    live_bytes: int
    step_s: float
    num_splits: int
    place: int
    job_at: Callable[[int], Job]

    @property
    def job(self) -> Job:
        """The question of the plan."""
        return self.job_at(self.place)


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
        self.best: list[Candidate] = []
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
        self.best += [_candidate(plans, values, index) for index in places]
        if len(self.best) > 2 * self.size:
            self._trim()

    def _trim(self) -> None:
        """Forget all but the best."""
        self.best.sort(key=lambda candidate: candidate.value)
        if len(self.best) > self.size:
            del self.best[self.size :]
            self._worst = self.best[-1].value

    def finish(self) -> None:
        """Put the best in order, when no more plans come."""
        self._trim()
        self.best.sort(key=rank_of)

    def _keep_failing(self, plans: Plans, values: Seconds, places: NDArray[np.intp]) -> None:
        """Those that no other failing plan beats in both value and memory."""
        if not len(places):
            return
        order = places[np.lexsort((plans.live_bytes[places], values[places]))]
        live = plans.live_bytes[order]
        before = np.concatenate(([np.iinfo(np.int64).max], np.minimum.accumulate(live)[:-1]))
        found = [*self.failing, *(_candidate(plans, values, index) for index in order[live < before])]
        found.sort(key=lambda candidate: (candidate.value, candidate.live_bytes))
        self.failing = []
        for candidate in found:
            if not self.failing or candidate.live_bytes < self.failing[-1].live_bytes:
                self.failing.append(candidate)


def rank_of(candidate: Candidate) -> tuple[float, float, int]:
    """By the goal, then by speed; of plans that are equal in both, the one divided in fewer ways comes first."""
    return float(f"{candidate.value:.5g}"), float(f"{candidate.step_s:.5g}"), candidate.num_splits


def num_splits(plan: Plan) -> int:
    """How often a plan halves the work, roughly."""
    degrees = (plan.tp, plan.pp, plan.cp, plan.ep, plan.virtual_stages)
    return sum(degree.bit_length() for degree in degrees)


def _candidate(plans: Plans, values: Seconds, index: np.intp) -> Candidate:
    place = int(index)
    value, live_bytes, step_s = float(values[place]), int(plans.live_bytes[place]), float(plans.step_s[place])
    return Candidate(value, live_bytes, step_s, plans.num_splits_at(place), place, plans.job_at)
