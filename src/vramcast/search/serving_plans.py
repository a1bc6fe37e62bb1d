"""The best deployments for a load: engine, machine, format, cache dtype, split and number of replicas.

How many users a replica can have at once is found by bisection: more of them never need less memory and never get more
tokens each. The load is then spread evenly over as many replicas as that takes. Everything else is tried one by one;
replicas on equal cards are worked out once, whatever the machine around them costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from vramcast import estimate
from vramcast.domain.answer import Fleet, ServeAnswer
from vramcast.domain.device import Cluster, Cost
from vramcast.domain.planning import NO_ROOM, Goal, Limits, PlanAnswer, Point, Progress, Reason, ServeSpace, all_ignored
from vramcast.domain.serving import ServeJob
from vramcast.errors import InvalidSpec, Note, VramcastError
from vramcast.estimate.serving import answer, verdict
from vramcast.estimate.speed import timed
from vramcast.search.serving_nearest import (
    Attempt,
    Deployment,
    Replica,
    most_machines,
    nearest,
    options_of,
    per_user,
    replica_of,
    with_users,
)
from vramcast.search.serving_rates import RateSearch
from vramcast.search.serving_space import Enumeration, key_of, on_one, rent_of
from vramcast.search.training.limits import beats, cheapest_of_alike, comparable
from vramcast.units import ceil_div


def search(
    space: ServeSpace, limits: Limits, goal: Goal, *, top: int = 10, progress: Progress | None = None
) -> tuple[PlanAnswer, ServeJob | None]:
    """The best deployments of a space, and one replica of the best.

    Args:
        space: what may be varied, and the load
        limits: time to first token, tokens per second of a user, currency, most GPUs, and what is to stay free; where
            nobody says that and no deployment leaves its 90 % interval on the card, those that fit, the safest first
        goal: what makes one better
        top: deployments to answer in full, of each machine the best where several are compared
        progress: told meanwhile how far the search is

    Raises: InvalidSpec where the space holds no possible deployment at all, or none that carries its requests
    """
    found, job = _searched(space, limits, goal, top, progress)
    if found.plans or limits.headroom is not None:
        return found, job
    safest = goal if space.job.traffic is not None else Goal.LEAST_MEMORY
    closest, without = _searched(space, replace(limits, headroom=0.0), safest, top, progress)
    if not closest.plans and (found.num_fitting or not closest.num_fitting):
        return found, job  # what is missing is not room
    question = closest.question | {"limits": found.question["limits"]}  # the goal is that of the plans shown
    return replace(closest, question=question, warnings=(NO_ROOM, *closest.warnings)), without


def _searched(
    space: ServeSpace, limits: Limits, goal: Goal, top: int, progress: Progress | None
) -> tuple[PlanAnswer, ServeJob | None]:
    compared, warnings = comparable(space.machines, limits, goal)
    counted = [machine for machine in compared if machine.name in space.most]
    machines, left = cheapest_of_alike([machine for machine in compared if machine not in counted], offload=False)
    found: list[Deployment] = []
    front: tuple[Point, ...] = ()

    def tell(looked_at: int) -> None:
        if progress is not None:
            progress(looked_at, front)

    looked = (_Search if space.job.traffic is None else RateSearch)(space, limits, goal, tell)
    for machine in (*counted, *machines):
        found = sorted((*found, *looked.deployments(machine)), key=_order)
        front = _front(found, space) if progress is not None else ()
        tell(looked.looked_at)
    if not looked.looked_at:
        raise InvalidSpec(looked.nothing_possible())
    best, plans = _answers(looked, _each_machine_once(found)[:top])
    if not best and isinstance(looked, RateSearch):
        looked.refuse()
    near = None if best else nearest(looked.attempts, space.job.requests.concurrency, goal)
    cautions = dict.fromkeys(text for plan in (*plans, *([near.answer] if near else ())) for text in plan.warnings)
    untimed = looked.left_out() if isinstance(looked, _Search) else ()
    found_answer = PlanAnswer(
        question=_question(space, limits, goal),
        plans=plans,
        labels=tuple(_label(plan, space) for plan in best),
        num_plans=looked.looked_at,
        num_fitting=looked.fitting,
        nearest_failing=near.answer if near else None,
        nearest_label=_named(near.job, near.machine, space) if near else "",
        change=near.change if near else None,
        reasons=tuple(_reasons(best[0], found, goal)) if best else near.reasons if near else (),
        front=_front(found, space),
        warnings=(*warnings, *left, *untimed, *cautions),
        ignored=all_ignored([*plans, *([near.answer] if near else ())]),
    )
    return found_answer, best[0].job if best else None


def _order(plan: Deployment) -> tuple[float, float, float, int]:
    return plan.value, plan.then, rent_of(plan.machine, plan.machines), plan.job.plan.num_ranks


def _answers(
    looked: _Search | RateSearch, best: list[Deployment]
) -> tuple[list[Deployment], tuple[ServeAnswer, ...]]:
    """The deployments with their answers, in order."""
    if isinstance(looked, _Search):
        return best, tuple(map(_answered, best))
    settled = sorted((looked.settled(plan, _answered) for plan in best), key=lambda pair: _order(pair[0]))
    return [plan for plan, _ in settled], tuple(found for _, found in settled)


def _each_machine_once(found: list[Deployment]) -> list[Deployment]:
    """The best deployment of each machine, where there are several; else all."""
    best: dict[str, Deployment] = {}
    for plan in found:
        best.setdefault(plan.machine.name, plan)
    return list(best.values()) if len(best) > 1 else found


class _Search(Enumeration):
    """Replicas for users who ask again as soon as they are answered."""

    def __init__(self, space: ServeSpace, limits: Limits, goal: Goal, tell: Callable[[int], None]) -> None:
        super().__init__(space, limits, goal, tell)
        self.replicas: dict[tuple[object, ...], Replica] = {}
        self.untimed: dict[str, None] = {}  # cards whose speed is not known

    @property
    def looked_at(self) -> int:
        return len(self.replicas)

    @property
    def fitting(self) -> int:
        return sum(replica.users > 0 for replica in self.replicas.values())

    def deployments(self, machine: Cluster) -> Iterator[Deployment]:
        """The whole load on a machine, with every engine, format and split."""
        for job in self.jobs(machine):
            replica = self._replica(job)
            if replica is None:
                continue
            found = self._deployed(replica, machine) if replica.users else self.attempt(replica, machine)
            if isinstance(found, Deployment):
                yield found
            else:
                self.attempts.append(found)

    def _replica(self, job: ServeJob) -> Replica | None:
        """A replica worked out once for all machines with the same cards."""
        key = key_of(job)
        if key not in self.replicas:
            try:
                self.replicas[key] = replica_of(job, self.limits)
            except VramcastError as reason:
                self.refusals[str(reason)] = None
                return None
            self.tell(len(self.replicas))
        found = self.replicas[key]
        return found._replace(job=replace(found.job, cluster=job.cluster))

    def _deployed(self, replica: Replica, machine: Cluster) -> Deployment | Attempt:
        """As many machines as the load needs, or as many as allowed where speed is the goal, filled with replicas."""
        users, spanned = self.space.job.requests.concurrency, replica.job.cluster.num_nodes
        each = on_one(machine, replica.job.cluster)
        fewest = ceil_div(users, replica.users)
        groups = ceil_div(fewest, each)  # of machines that hold replicas together
        most = most_machines(machine, self.limits, self.space.most.get(machine.name))
        if most is not None and groups * spanned > most:
            return self.attempt(replica, machine, groups * spanned)
        if most is not None and self.goal is Goal.FASTEST:
            groups = min(most // spanned, ceil_div(users, each))
        replicas = fewest if self.goal is Goal.LEAST_MEMORY else min(users, groups * each)
        job = with_users(replica.job, ceil_div(users, replicas))
        own = per_user(job)
        if own is None:
            self.untimed[machine.gpu.name] = None
            return self.attempt(replica, machine)
        plan = Deployment(job, machine, groups * spanned, replicas, users, own * users, 0.0, 0.0)
        value, then = self._value(plan)
        return plan._replace(value=value, then=then)

    def _value(self, plan: Deployment) -> tuple[float, float]:
        """What the goal makes small, and what decides between equals."""
        rate = rent_of(plan.machine, plan.machines)
        match self.goal:
            case Goal.FASTEST:
                return -plan.tokens_per_s, rate
            case Goal.FEWEST_GPUS:
                return plan.machines * plan.machine.gpus_per_node, -plan.tokens_per_s
            case Goal.LEAST_MEMORY:
                load = verdict(plan.job).load
                assert load is not None  # it fits, and is a language model's
                return plan.replicas * load.total_bytes, load.per_gpu_bytes
        return rate / plan.tokens_per_s, -plan.tokens_per_s

    def left_out(self) -> Iterator[str]:
        """Cards that could not be compared."""
        if self.untimed:
            yield Note("left out for want of a speed: {}", ", ".join(self.untimed))


def _answered(plan: Deployment) -> ServeAnswer:
    """The answer of one replica, with all of them and what they cost."""
    return replace(answer(plan.job, with_changes=False), cost=_cost(plan), fleet=_fleet(plan))


def _fleet(plan: Deployment) -> Fleet:
    machine = plan.machine
    return Fleet(
        replicas=plan.replicas, users=plan.users, machines=plan.machines,
        machine=machine.instance or f"{machine.gpus_per_node}x{machine.gpu.name}",
        replicas_per_machine=min(plan.replicas, on_one(machine, plan.job.cluster)), tokens_per_s=plan.tokens_per_s,
    )


def _cost(plan: Deployment) -> Cost | None:
    price = plan.machine.price
    if price is None:
        return None
    per_hour = price.per_hour * plan.machines
    return Cost(
        price=price, machines=plan.machines, per_hour=per_hour,
        per_million_tokens=per_hour / 3600 / plan.tokens_per_s * 1e6,
    )


def _named(job: ServeJob, machine: Cluster, space: ServeSpace) -> str:
    """The options of one replica."""
    return options_of(job, machine, by_machine=machine.instance in space.own_cards)


def _label(plan: Deployment, space: ServeSpace) -> str:
    return _named(plan.job, plan.machine, space)


RESPECTS: Final[tuple[tuple[str, Callable[[Deployment], object]], ...]] = (
    ("machine", lambda plan: plan.machine.instance or f"{plan.machine.gpus_per_node}x{plan.machine.gpu.name}"),
    ("engine", lambda plan: plan.job.engine),
    ("weights", lambda plan: plan.job.plan.weights or "as stored"),
    ("kv cache", lambda plan: plan.job.plan.kv_dtype),
    ("tensor parallelism", lambda plan: plan.job.plan.tp),
    ("pipeline", lambda plan: plan.job.plan.pp),
)


def _reasons(best: Deployment, found: list[Deployment], goal: Goal) -> Iterator[Reason]:
    """What bounds the winner, and the best that differs from it in one respect."""
    speed = timed(best.job).speed
    if speed is not None and speed.decode_bound is not None:
        share = max((speed.decode_shares or {"": 0.0}).items(), key=lambda item: item[1])
        yield Reason(kind="bound", bound=speed.decode_bound, cause=share[0], value=share[1])
    for words, look in RESPECTS:
        other = next((plan for plan in found if look(plan) != look(best)), None)
        if other is None or best.value == 0:
            continue
        times = best.value / other.value if goal is Goal.FASTEST else other.value / best.value
        if times > 1.0005:
            yield Reason(kind="respect", respect=words, other=str(look(other)), own=str(look(best)), times=times)


def _front(found: list[Deployment], space: ServeSpace) -> tuple[Point, ...]:
    """The best deployment of each machine, cost against speed."""
    best: dict[str, Deployment] = {}
    for plan in found:
        best.setdefault(plan.machine.name, plan)
    points = [
        Point(
            what=_label(plan, space), fleet=_fleet(plan), gpus=plan.machines * plan.machine.gpus_per_node,
            tokens_per_s=plan.per_user or plan.tokens_per_s, per_user=plan.per_user > 0,
            cost_per_million_tokens=rent_of(plan.machine, plan.machines) / 3600 / plan.tokens_per_s * 1e6,
            unit=plan.machine.price.currency if plan.machine.price else "GPU-hours", on_front=True,
        )
        for plan in best.values()
    ]
    return tuple(replace(point, on_front=not any(beats(other, point) for other in points)) for point in points)


def _question(space: ServeSpace, limits: Limits, goal: Goal) -> dict[str, Any]:

    plain = estimate.serving.question(replace(space.job, cluster=space.machines[0]))
    return plain | {
        "gpus": [machine.name for machine in space.machines], "goal": goal.value,
        "engine": [engine for engine, _ in space.engines], "limits": msgspec.to_builtins(limits),
        "weights": [name or "as stored" for name in space.weights],
    }
