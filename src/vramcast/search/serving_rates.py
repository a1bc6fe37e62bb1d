"""The cheapest deployments for requests that come at a rate, with a promise that most of them keep.

Every replica is simulated under its share of the rate; how many it takes is bisected by whole machines: what is rented
is filled. One that cannot be cheaper than the best of its machine, by a bound on what it serves, is not simulated.
Steps of other sizes are tried for the best of each machine.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import SLO_SHARE, ServeAnswer
from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, ServeSpace
from vramcast.domain.serving import ServeJob, Traffic
from vramcast.errors import InvalidSpec, Note, VramcastError
from vramcast.estimate.serving import deploy, verdict
from vramcast.estimate.traffic import SIMULATED_S, Setting, Trial, least, rate_bounds, setting_of, trial
from vramcast.search.serving_nearest import Deployment, Replica, most_machines
from vramcast.search.serving_space import Enumeration, key_of, on_one, rent_of

MOST_REPLICAS: Final = 1024
"""Beyond which nobody looks where the number of machines is not limited."""

MOST_REQUESTS: Final = 20_000
"""That an answer simulates, where the question does not say how many."""

STEPS: Final = (1024, 2048, 4096, 8192, 16384)
"""Tokens of a step that are tried beside the engine's own: short ones keep the time between tokens low."""

ROUNDS: Final = 7
"""Bisections for the highest rate that too few machines serve."""

NAMED: Final = 5
"""Deployments of which that is worked out, those that may serve most."""


class Candidate(NamedTuple):
    """A replica that fits, and what a request alone on it takes."""

    job: ServeJob
    setting: Setting
    bound: float  # requests per second that it cannot exceed
    typical: float  # that it serves, roughly
    alone: dict[str, float]  # latency -> seconds


class Limited(NamedTuple):
    """A replica of which more would be needed than there may be."""

    candidate: Candidate
    machine: Cluster
    replicas: int


class RateSearch(Enumeration):
    """Replicas for requests that come by themselves."""

    def __init__(self, space: ServeSpace, limits: Limits, goal: Goal, tell: Callable[[int], None]) -> None:
        super().__init__(space, limits, goal, tell)
        assert space.job.traffic is not None and space.job.traffic.rate is not None
        self.traffic: Traffic = space.job.traffic
        self.rate: float = space.job.traffic.rate
        self.candidates: dict[tuple[object, ...], Candidate | None] = {}  # None: it does not fit
        self.trials: dict[tuple[object, ...], Trial] = {}
        self.broken: list[Candidate] = []  # what keeps no promise even to a request alone
        self.limited: list[Limited] = []

    @property
    def looked_at(self) -> int:
        return len(self.candidates)

    @property
    def fitting(self) -> int:
        return sum(candidate is not None for candidate in self.candidates.values())

    def deployments(self, machine: Cluster) -> list[Deployment]:
        """The best of a machine that carry the whole rate."""
        found: list[Deployment] = []
        for job in self.jobs(machine):
            self._try(job, machine, found)
        if found:
            best, others = min(found, key=_order), list[Deployment]()
            for tokens in STEPS if best.job.plan.batched_tokens is None else ():
                self._try(replace(best.job, plan=replace(best.job.plan, batched_tokens=tokens)), machine, others)
            found += [other for other in others if other.value < best.value]  # the engine's own, unless others save
        return found

    def _try(self, job: ServeJob, machine: Cluster, found: list[Deployment]) -> None:
        candidate = self._candidate(job, machine)
        if candidate is not None:
            plan = self._deployed(candidate, machine, min((other.value for other in found), default=None))
            found += [plan] if plan is not None else []

    def _candidate(self, job: ServeJob, machine: Cluster) -> Candidate | None:
        """A replica that fits and keeps its promise to a request alone, worked out once for all its machines."""
        if job.plan.pp > 1:
            self.refusals[Note("pipeline stages are not simulated under a --rate")] = None
            return None
        key = key_of(job)
        if key not in self.candidates:
            try:
                self.candidates[key] = self._worked_out(job)
            except (VramcastError, ZeroDivisionError) as reason:
                self.refusals[str(reason)] = None
                return None
            self.tell(len(self.candidates))
        found = self.candidates[key]
        if found is None:
            self.attempts.append(self.attempt(Replica(job, 0), machine))
            return None
        found = found._replace(job=replace(found.job, cluster=job.cluster))
        if any(found.alone[name] > limit for name, limit in self.traffic.slo.items()):
            self.broken.append(found)
            return None
        return found

    def _worked_out(self, job: ServeJob) -> Candidate | None:
        if not verdict(job).leaves(job.cluster.gpu.visible_bytes, self.limits.headroom):
            return None
        setting = setting_of(job, deploy(job))
        return Candidate(job, setting, *rate_bounds(setting), least(setting))

    def _deployed(self, candidate: Candidate, machine: Cluster, cheapest: float | None) -> Deployment | None:
        """As few machines as keep the promise, filled with replicas; None where that is dearer than the cheapest."""
        each, spanned = on_one(machine, candidate.job.cluster), candidate.job.cluster.num_nodes
        most = most_machines(machine, self.limits, self.space.most.get(machine.name))
        most_groups = ceil(MOST_REPLICAS / each) if most is None else most // spanned
        low = max(1, ceil(self.rate / candidate.bound / each)) - 1  # too few
        groups = max(low + 1, min(most_groups, ceil(self.rate / candidate.typical / each)))
        while True:
            if low >= most_groups:
                if most_groups:
                    self.limited.append(Limited(candidate, machine, most_groups * each))
                return None
            if cheapest is not None and self._value(machine, (low + 1) * spanned) > cheapest:
                return None
            if self._trial(candidate, groups * each).kept:
                break
            low, groups = groups, min(max(most_groups, groups + 1), max(groups + 1, groups * 3 // 2))
        while groups - low > 1:
            middle = (low + groups) // 2
            low, groups = (low, middle) if self._trial(candidate, middle * each).kept else (middle, groups)
        return self.of(candidate.job, machine, groups, self._trial(candidate, groups * each))

    def of(self, job: ServeJob, machine: Cluster, groups: int, tried: Trial) -> Deployment:
        """So many groups of machines with replicas on them."""
        replicas, machines = groups * on_one(machine, job.cluster), groups * job.cluster.num_nodes
        count = self.traffic.num_requests or (MOST_REQUESTS if self.rate * SIMULATED_S > MOST_REQUESTS else None)
        planned = replace(job, traffic=replace(self.traffic, replicas=replicas, num_requests=count))
        return Deployment(
            planned, machine, machines, replicas, max(1, round(self.rate * tried.end_to_end_s)),
            self.rate * (self.space.job.requests.output_len or 1), self._value(machine, machines),
            tried.end_to_end_s, 1 / tried.token_s if tried.token_s else 0.0)

    def _value(self, machine: Cluster, machines: int) -> float:
        """What the goal makes small."""
        return float(machines * machine.gpus_per_node) if self.goal is Goal.FEWEST_GPUS else rent_of(machine, machines)

    def _trial(self, candidate: Candidate, replicas: int) -> Trial:
        key = (*key_of(candidate.job), replicas)
        if key not in self.trials:
            self.trials[key] = trial(candidate.setting, self.rate, replicas)
        return self.trials[key]

    def settled(
        self, plan: Deployment, answered: Callable[[Deployment], ServeAnswer]
    ) -> tuple[Deployment, ServeAnswer]:
        """A deployment whose replicas keep the promise together, too, and its answer."""
        most = most_machines(plan.machine, self.limits, self.space.most.get(plan.machine.name))
        while True:
            machines = plan.machines + plan.job.cluster.num_nodes
            is_last = most is not None and machines > most
            try:
                found = answered(plan)
            except InvalidSpec:  # a loose promise is kept for a while by a queue that grows
                if is_last:
                    raise
            else:
                share = found.served.slo_share if found.served is not None else None
                if share is None or share >= SLO_SHARE or is_last:
                    return plan, found
            tried = Trial(True, 1 / plan.per_user if plan.per_user else 0.0, plan.then)
            plan = self.of(plan.job, plan.machine, machines // plan.job.cluster.num_nodes, tried)

    def refuse(self) -> None:
        """Say what is the most that can be served or promised, where plans fit and none does.

        Raises: InvalidSpec in one sentence
        """
        if self.limited:
            most, one = max(map(self._most, sorted(
                self.limited, key=lambda one: one.candidate.bound * one.replicas, reverse=True)[:NAMED]),
                key=lambda pair: pair[0])
            raise InvalidSpec(
                "rate={:g} is more than these machines serve within the promised latencies: at most {:,.3g} requests "
                "per second, with --replicas {} of --tp {} on {}; lower --rate, loosen --slo or allow more machines",
                self.rate, most, one.replicas, one.candidate.job.plan.tp, one.machine.instance or one.machine.name)
        if self.broken:
            name, limit, best = min(
                ((name, limit, one) for one in self.broken for name, limit in self.traffic.slo.items()
                 if one.alone[name] > limit), key=lambda case: case[2].alone[case[0]] / case[1])
            raise InvalidSpec(
                "slo {}<{:g}ms cannot be kept on these machines: the fastest deployment takes {:,.3g} ms with one "
                "request to itself (--tp {} on {}); loosen --slo", name, 1000 * limit, 1000 * best.alone[name],
                best.job.plan.tp, best.job.cluster.name)

    def _most(self, one: Limited) -> tuple[float, Limited]:
        """The highest rate that so many replicas carry."""
        low, high = 0.0, min(self.rate, one.candidate.bound * one.replicas)
        for _ in range(ROUNDS):
            middle = (low + high) / 2
            kept = trial(one.candidate.setting, middle, one.replicas).kept
            low, high = (middle, high) if kept else (low, middle)
        return low, one


def _order(plan: Deployment) -> tuple[float, float]:
    return plan.value, plan.then
