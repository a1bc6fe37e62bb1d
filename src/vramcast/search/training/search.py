"""The best training plans for a goal: every plan of a space is looked at, the best go through the engine's own answer.

A plan whose live tensors alone exceed the card cannot fit, which the compiled programs say exactly for all plans. What
is left is taken in the order of the goal and answered in full, allocator included, until enough plans fit: the first
that does is the best of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from vramcast.domain.answer import Answer, Change
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job
from vramcast.domain.planning import (
    NO_ROOM,
    Goal,
    Limits,
    PlanAnswer,
    Point,
    Progress,
    Reason,
    Space,
    all_ignored,
    smallest_change,
)
from vramcast.domain.version import named
from vramcast.errors import InvalidSpec, Note, Unsupported, joined
from vramcast.estimate.changes import single_changes
from vramcast.estimate.techniques import on_engine
from vramcast.estimate.training import answer, need
from vramcast.estimate.training import question as asked_of
from vramcast.search.training.balance import balanced
from vramcast.search.training.degrees import too_large
from vramcast.search.training.direct import FEW, PIPELINED, Known, num_pipelines, plans_on
from vramcast.search.training.limits import (
    Run,
    beats,
    by_machine,
    cheapest_of_alike,
    comparable,
    holds_weights,
    label,
    large_enough,
    missed_limits,
    points,
    reasons_of,
    signature,
)
from vramcast.search.training.megatron import Memories
from vramcast.search.training.pool import Candidate, Candidates, Key, Plans, Pool, Questions, Rule, num_splits, together

POOL: Final = 2048
"""Plans kept of each cluster for the full answer."""

SPLIT: Final = 4
"""Plans at the head of the table whose layers are split anew."""

MOST_ANSWERED: Final = 48
"""Plans answered in full to find those that need least: more only to fill the table [count]."""

MORE_LOOKS: Final = 2
"""Times that a space is looked at again where none of the plans that were kept of it fits."""

DRAWN: Final = 16
"""Clusters that are all put into the picture; of more only those on the front."""

MORE_MACHINES: Final = tuple(1 << power for power in range(1, 11))
"""Multiples of the machines given that are tried where nothing fits."""

MOST_GPUS: Final = 1024
"""GPUs beyond which no multiple is tried unless it is 64 at most [count]."""

ALWAYS_TRIED: Final = 64

TENSOR_DEGREES: Final = (1, 2, 4, 8)
"""Tensor parallelism looked at on more machines, whatever the cards of one."""

WIDEST: Final = "megatron"
"""Engine that has every way to divide a model: looked at where the engines asked for fit on no number of machines."""


class Found(NamedTuple):
    """One plan that fits, answered in full."""

    candidate: Candidate
    job: Job
    answer: Answer


def search(
    space: Space, limits: Limits, goal: Goal, *, top: int = 10, progress: Progress | None = None
) -> PlanAnswer:
    """The best plans of a space.

    Args:
        space: what may be varied
        limits: what a plan must keep to; where nobody says what is to stay free, and no plan leaves its 90 % interval
            on the card, deadline and budget or not, those that fit, the safest first
        goal: what makes one better
        top: plans to answer in full; those that differ only in recomputation or micro-batch count as one, and where
            several machines are compared those on one machine
        progress: told meanwhile how far the search is

    Raises: InvalidSpec where the space holds no possible plan at all
    """
    found = _searched(space, limits, goal, top, progress)
    if found.answer.plans or found.answer.missed or limits.headroom is not None or not found.num_tight:
        return found.answer
    closest = _searched(space, replace(limits, headroom=0.0), Goal.LEAST_MEMORY, top, progress).answer
    if not closest.plans:
        return found.answer
    question = closest.question | {"limits": found.answer.question["limits"]}  # the goal is that of the plans shown
    return replace(closest, question=question, warnings=(NO_ROOM, *closest.warnings))


class _Searched(NamedTuple):
    """What a search came to."""

    answer: PlanAnswer
    num_tight: int  # plans that were left out because of what they may need beyond their live memory


def _searched(
    space: Space, limits: Limits, goal: Goal, top: int, progress: Progress | None
) -> _Searched:
    compared, warnings = comparable(space.clusters, limits, goal)
    offload = {*space.offload_optimizer, *space.offload_parameters} != {"none"}
    alike, left = cheapest_of_alike(compared, offload=offload)
    clusters, warnings = large_enough(space, alike), [*warnings, *left]
    looked = _Search(space, Rule(goal, limits, space.global_batch * space.workload.seq_len), progress)
    best = looked.found(clusters, top)
    no_room = too_large(space, clusters)
    if not looked.num_plans:
        looked.refusals += no_room
        raise InvalidSpec(looked.nothing_possible(clusters))
    fitting = looked.with_balanced(best)
    missed = () if fitting else tuple(missed_limits(clusters, limits, looked.run_on))
    missing = looked.nearest_failing(fitting)
    nearest = answer(missing, every_role=False) if missing else None
    change = looked.change(missing, nearest, alone=not fitting) if missing and nearest else None
    found = PlanAnswer(
        question=_question(space, limits, goal),
        plans=tuple(found.answer for found in fitting),
        labels=tuple(label(found.job) for found in fitting),
        num_plans=looked.num_plans,
        num_fitting=sum(pool.num_fitting for pool in looked.pools),
        num_in_memory=sum(pool.num_in_memory for pool in looked.pools) if missed else None,
        missed=missed,
        nearest_failing=nearest,
        nearest_label=label(missing) if missing else "",
        change=change,
        reasons=tuple(looked.reasons(fitting[0])) if fitting else (),
        front=looked.front(),
        warnings=(*warnings, *no_room, *dict.fromkeys(looked.left_out)),
        ignored=all_ignored([*(found.answer for found in fitting), *([nearest] if nearest else ())]),
    )
    return _Searched(found, looked.num_tight)


def best_job(space: Space, limits: Limits, goal: Goal) -> Job | None:
    """The best plan of a space, None where none fits and leaves free what it is to."""
    looked = _Search(space, Rule(goal, limits, space.global_batch * space.workload.seq_len))
    return next((found.job for found in looked.found(space.clusters, 1)), None)


def _machine(cluster: Cluster) -> tuple[object, ...]:
    """What several clusters of a search may be made of: machines of one kind, in any number."""
    return cluster.instance, cluster.gpu, cluster.gpus_per_node


class _Search:
    """What was seen of a space so far."""

    def __init__(self, space: Space, rule: Rule, progress: Progress | None = None) -> None:
        self.space = space
        self.rule = rule
        self.progress = progress
        self.pools: list[Pool] = []  # by the goal, one for each cluster
        self.fastest: list[Pool] = []  # by speed, for the picture
        self.refusals: list[str] = []
        self.left_out: list[str] = []
        self._answers: dict[Key, Answer] = {}
        self._margins: dict[str, float] = {}
        self._compares_machines = len({_machine(cluster) for cluster in space.clusters}) > 1

    @property
    def num_tight(self) -> int:
        """Plans whose live memory is within the card, and what they claim beyond it is not."""
        tried = (candidate for pool in self.pools for candidate in pool.best.among(self._answers))
        return sum(pool.num_tight for pool in self.pools) + sum(not self.fits(candidate) for candidate in tried)

    def expects_more(self) -> bool:
        """Whether plans were passed over for better ones none of which fits; the next look takes what those claim over
        their live memory for that of all plans of their engine."""
        found: dict[str, list[float]] = {}
        for pool in self.pools:
            for candidate in pool.best.among(self._answers) if pool.num_fitting > len(pool.best) else ():
                share = self.claimed_bytes(candidate) / max(1, candidate.live_bytes)
                found.setdefault(candidate.job.engine, []).append(share)
        higher = {engine: median(shares) for engine, shares in found.items()}
        higher = {engine: share for engine, share in higher.items() if share > self._margins.get(engine, 1.0)}
        self._margins |= higher
        return bool(higher)

    def margin(self, plans: Plans, engine: str) -> float:
        """What plans of an engine claim over what they need, by the first of them: what holds of all is checked of
        each that is answered."""
        if self.rule.limits.headroom is not None:
            return self._margins.get(engine, 1.0)
        if engine not in self._margins:
            first = answer(plans.questions.one(0), with_changes=False, every_role=False)
            self._margins[engine] = max(1.0, first.high_bytes / max(1, first.fullest.needed_bytes))
        return self._margins[engine]

    @property
    def num_plans(self) -> int:
        """Plans that were possible, whether they fit or not."""
        return sum(pool.num_plans for pool in self.pools)

    def found(self, clusters: Sequence[Cluster], top: int) -> list[Found]:
        """The best plans on these clusters that fit, no two alike; where none of those kept fits, more are looked for.
        """
        best: list[Found] = []
        for looks in range(1 + MORE_LOOKS):
            if best or (looks and not self.expects_more()):
                break
            self.look(clusters)
            by_memory = self.rule.goal is Goal.LEAST_MEMORY
            best = self._least_memory(top) if by_memory else self.first_fitting(top)
        return best

    def look(self, clusters: Sequence[Cluster]) -> None:
        """Every plan on these clusters."""
        by_speed = self.rule._replace(goal=Goal.FASTEST)
        self.pools = [Pool(self.rule, cluster, POOL) for cluster in clusters]
        # on one cluster the fastest plan is the cheapest, too
        least_memory = self.rule.goal is Goal.LEAST_MEMORY
        self.fastest = [Pool(by_speed, cluster, POOL) for cluster in clusters] if least_memory else self.pools
        kept: dict[Cluster, list[Pool]] = {}
        for pool in (*self.pools, *(self.fastest if least_memory else ())):
            kept.setdefault(pool.cluster, []).append(pool)
        spaces = {engine: self._readable(engine, clusters) for engine in self.space.engines}
        seen = 0
        machines = by_machine(clusters)
        memories: Memories | None = {} if len(machines) > 1 else None
        known: Known = {}
        drawn: list[Candidate] = []
        front: tuple[Point, ...] = ()
        for group in machines:
            for engine in self.space.engines:
                try:
                    for plans in plans_on(spaces[engine], group, engine, memories, known):
                        for pool in kept[plans.cluster]:
                            pool.add(plans, self.margin(plans, engine))
                        seen += len(plans.step_s)
                        if self.progress is not None:
                            self.progress(seen, front)
                except Unsupported as reason:
                    self.refusals.append(str(reason))
                    if engine in self.space.named_engines:
                        self.left_out.append(Note("left out: {}: {}", engine, reason))
            for pool in chain(*(kept[cluster] for cluster in group)):
                pool.finish()
            if self.progress is not None:
                drawn = self._drawn([pool for pool in self.fastest if pool.cluster in group], drawn)
                front = points(drawn, self.rule)
                self.progress(seen, front)

    def _readable(self, engine: str, clusters: Sequence[Cluster]) -> Space:
        """The space as far as it is read in seconds, where nobody asked for more."""
        space = self.space
        if engine not in PIPELINED or engine in space.named_engines or set(space.pp) == {1}:
            return space
        number = sum(num_pipelines(space, cluster, engine) for cluster in clusters)
        if number <= FEW:
            return space
        reason = Note("{:,} pipelines of {}, read one by one; --engine {} looks at them", number, engine, engine)
        self.left_out.append(Note("left out: {}", reason))
        return replace(space, pp=(1,))

    def answered(self, candidate: Candidate) -> Answer:
        """The answer of a plan for its fullest role, allocator included."""
        if candidate.key not in self._answers:
            self._answers[candidate.key] = answer(candidate.job, with_changes=False, every_role=False)
        return self._answers[candidate.key]

    def fits(self, candidate: Candidate) -> bool:
        """Whether a plan fits, allocator and what is to stay free included."""
        return self.claimed_bytes(candidate) <= self.rule.capacity_bytes(candidate.job.cluster)

    def key(self, job: Job) -> tuple[object, ...]:
        """What plans have in common of which the table shows one."""
        return _machine(job.cluster) if self._compares_machines else signature(job)

    def _ranked(self) -> Candidates:
        """All plans that were kept, the best first."""
        return together([pool.best for pool in self.pools]).ranked()

    def first_fitting(self, top: int) -> list[Found]:
        """The first plans that fit, no two alike, in the order in which candidates come."""
        fitting: list[Found] = []
        seen: set[tuple[object, ...]] = set()
        for candidate in self._ranked():
            job = candidate.job
            if self.key(job) in seen or not self.fits(candidate):
                continue
            seen.add(self.key(job))
            fitting.append(Found(candidate, job, self.answered(candidate)))
            if len(fitting) == top:
                break
        return fitting

    def _least_memory(self, top: int) -> list[Found]:
        """Those that need least, allocator included: candidates come in the order of their live memory, and need more.

        Where live memory says little about that, only the first so many are compared.
        """
        best: dict[tuple[object, ...], Found] = {}
        limit = float("inf")  # what the last plan of the table needs
        for number, candidate in enumerate(self._ranked()):
            job, is_late = candidate.job, number >= MOST_ANSWERED
            if candidate.live_bytes >= limit or (is_late and len(best) >= top):
                break
            if (is_late and self.key(job) in best) or not self.fits(candidate):
                continue
            claimed = self.claimed_bytes(candidate)
            found = Found(candidate._replace(value=claimed), job, self.answered(candidate))
            known = best.setdefault(self.key(job), found)
            if found.candidate.value < known.candidate.value:
                best[self.key(job)] = found
            if len(best) >= top:
                limit = sorted(found.candidate.value for found in best.values())[top - 1]
        return sorted(best.values(), key=lambda found: found.candidate.value)[:top]

    def claimed_bytes(self, candidate: Candidate) -> int:
        """What is held against a card: what a plan needs, allocator included, or the upper end of its interval."""
        return self.answered(candidate).claimed_bytes(self.rule.limits.headroom)

    def with_balanced(self, fitting: list[Found]) -> list[Found]:
        """The best plans, pipelines among the first of them also with their layers split best."""
        if self.rule.goal is Goal.LEAST_MEMORY:
            return fitting
        found = [better for plan in fitting[:SPLIT] if (better := self._balanced(plan)) is not None]
        ordered = sorted((*found, *fitting), key=lambda plan: plan.candidate.value)
        if not self._compares_machines:
            return ordered
        best: dict[tuple[object, ...], Found] = {}
        for plan in ordered:
            best.setdefault(self.key(plan.job), plan)
        return list(best.values())

    def _balanced(self, plan: Found) -> Found | None:
        capacity = self.rule.capacity_bytes(plan.job.cluster)
        job = balanced(plan.job, capacity)
        if job is None:
            return None
        found = answer(job, with_changes=False, every_role=False)
        if found.time is None or found.claimed_bytes(self.rule.limits.headroom) > capacity:
            return None
        live_bytes, step_s = plan.candidate.live_bytes, found.time.step_s
        splits = num_splits(job.plan)
        asked = Questions((job,).__getitem__, lambda places: job)
        alone = Plans(job.cluster, np.array([live_bytes]), np.array([step_s]), asked, np.array([splits]))
        value = float(self.rule.values(alone)[0])
        return Found(Candidate(value, live_bytes, step_s, splits, 0, asked.one), job, found)

    def nearest_failing(self, fitting: list[Found]) -> Job | None:
        """Of the plans that would be better than the best, or of all where none fits, the one that misses by least."""
        limit = fitting[0].candidate.value if fitting else float("inf")
        missing: list[tuple[float, int, Candidate]] = []  # at least how often over what there is would be needed
        for pool in self.pools:
            tried = (candidate for candidate in pool.best.among(self._answers) if not self.fits(candidate))
            missing += [
                (candidate.live_bytes / pool.capacity, pool.capacity, candidate)
                for candidate in (*pool.failing, *tried) if candidate.value < limit
            ]
        nearest: Candidate | None = None
        misses = float("inf")
        for least, capacity, candidate in sorted(missing, key=lambda item: item[0]):
            if least >= misses:
                break  # none behind it can miss by less
            found = self.claimed_bytes(candidate) / capacity
            if found < misses:
                nearest, misses = candidate, found
        return nearest.job if nearest is not None else None

    def change(self, job: Job, failing: Answer, *, alone: bool) -> Change | None:
        """The smallest change that makes a plan fit: one option of it, or where nothing fits more machines."""
        changes = failing.changes
        if failing.fits:  # but leaves too little free
            changes = single_changes(job, failing.fullest.needed_bytes, measure=need, time=failing.time)
        limits, visible = self.rule.limits, job.cluster.gpu.visible_bytes
        smallest = smallest_change(changes, visible_bytes=visible, limits=limits, goal=self.rule.goal)
        usable = self.rule.capacity_bytes(job.cluster)
        if smallest is not None and (not failing.fits or smallest.claimed_bytes(limits.headroom) <= usable):
            return smallest
        return self._more_machines(job) if alone else None

    def _more_machines(self, job: Job) -> Change | None:
        """The smallest multiple of the machines on which a plan of the job's engine fits, else one of the widest."""
        engines = dict.fromkeys((job.engine, WIDEST))
        for engine, (factor, larger) in product(engines, list(self._larger(job.cluster))):
            precision = on_engine(job, engine).plan.precision
            # where machines are small, layers must be split over several of them, slow as that is
            wide = (*TENSOR_DEGREES, larger.gpus_per_node) if engine == WIDEST else ()
            space = replace(self.space, engines=(engine,), precisions=(precision,), tp=self.space.tp or wide)
            wider = _Search(space, self.rule._replace(goal=Goal.LEAST_MEMORY))
            wider.look([larger])
            fitting = wider.first_fitting(1)
            if fitting:
                return Change(
                    change=label(fitting[0].job), device_bytes=fitting[0].answer.fullest.needed_bytes, fits=True,
                    cost=Note("{} times the GPUs", factor), high_bytes=fitting[0].answer.high_bytes,
                    capacity_bytes=fitting[0].answer.capacity_bytes,
                )
        self.left_out.append(
            "no multiple of the machines that was looked at is enough: a shorter sequence, fewer bytes a parameter "
            "(--allow 8bit-optimizer,pure-bf16,offload) or larger cards are left"
        )
        return None

    def _larger(self, cluster: Cluster) -> Iterator[tuple[int, Cluster]]:
        """Multiples of a cluster that the limits leave and that hold the weights at all."""
        most = self.rule.limits.max_gpus or max(MOST_GPUS, ALWAYS_TRIED * cluster.count)
        for factor in MORE_MACHINES:
            larger = replace(cluster, num_nodes=cluster.num_nodes * factor)
            if larger.count <= most and holds_weights(self.space, larger):
                yield factor, larger

    def run_on(self, clusters: Sequence[Cluster], limits: Limits, goal: Goal, engine: str | None) -> Run | None:
        """The whole run with the best plan of another search of this space."""
        space = self.space if engine is None else replace(self.space, engines=(engine,))
        other = _Search(space, self.rule._replace(limits=limits, goal=goal))
        for candidate, job, _ in other.found(clusters, 1):
            hours = self.rule.run_hours(candidate.step_s)
            cost = hours * self.rule.rate(job.cluster)
            return Run(label(job), job.cluster, job.engine, hours, cost)
        return None

    def reasons(self, best: Found) -> Iterator[Reason]:
        """Why the best plan is the best."""
        by_memory = self.rule.goal is Goal.LEAST_MEMORY
        value = self.claimed_bytes if by_memory else lambda candidate: candidate.value
        yield from reasons_of(best.candidate, self._ranked(), self.rule, self.fits, value)

    def front(self) -> tuple[Point, ...]:
        """The fastest plan of each cluster, by what it costs; of many clusters only those that no other one beats."""
        return points(self._drawn(self.fastest, []), self.rule)

    def _drawn(self, pools: Iterable[Pool], before: Sequence[Candidate]) -> list[Candidate]:
        """The plans of a picture and those that more clusters add to it."""
        found = [*before]
        for pool in sorted((pool for pool in pools if pool.best), key=lambda pool: pool.best[0].step_s):
            hopeful, *_ = points([pool.best[0]], self.rule)
            beaten = len(self.fastest) > DRAWN and any(beats(point, hopeful) for point in points(found, self.rule))
            fastest = None if beaten else next(filter(self.fits, pool.best), None)
            found += [fastest] if fastest is not None else []
        return found

    def nothing_possible(self, clusters: Sequence[Cluster]) -> str:
        """Why there is no plan to look at."""
        names = ", ".join(cluster.name for cluster in clusters)
        refused = joined("; ", dict.fromkeys(self.refusals), most=300)
        rule = Note("degrees must divide the cards and the model, and the data-parallel ranks they leave must divide "
                    "global-batch={}", self.space.global_batch)
        return Note("no plan of {} is possible for {} on {}: {}",
                    ", ".join(self.space.engines), self.space.model.name, names[:200], refused or rule)


def _question(space: Space, limits: Limits, goal: Goal) -> dict[str, Any]:
    """What was asked, as plain data."""
    first = Job(model=space.model, workload=space.workload, plan=space.plan, cluster=space.clusters[0])
    plain = asked_of(first)
    plain |= {
        "gpus": [cluster.name for cluster in space.clusters], "goal": goal.value,
        "engine": [named(engine, space.versions.get(engine)) for engine in space.engines],
        "global_batch": space.global_batch, "limits": msgspec.to_builtins(limits),
    }
    return plain
