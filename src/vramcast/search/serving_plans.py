"""The best deployments for a load: engine, machine, format, cache dtype, split and number of replicas.

How many users a replica can have at once is found by bisection: more of them never need less memory and never get more
tokens each. The load is then spread evenly over as many replicas as that takes. Everything else is tried one by one;
replicas on equal cards are worked out once, whatever the machine around them costs. What cannot hold its weights is not
worked out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, Final

from msgspec.structs import replace

from vramcast import estimate
from vramcast.blocks.parameters import count_parameters
from vramcast.domain.answer import Fleet, ServeAnswer
from vramcast.domain.device import Cluster
from vramcast.domain.planning import NO_ROOM, Goal, Limits, PlanAnswer, Point, Reason, ServeSpace, all_ignored
from vramcast.domain.price import Cost
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.checks import dtype_on, has_kernel, runs_on
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.estimate.serving import answer, verdict
from vramcast.estimate.speed import timed
from vramcast.search.candidates import divisible
from vramcast.search.serving_nearest import Attempt, nearest
from vramcast.search.serving_replicas import (
    Deployment,
    Replica,
    most_machines,
    options_of,
    per_user,
    replica_of,
    with_users,
)
from vramcast.search.training.limits import beats, cheapest_of_alike, comparable
from vramcast.states.storage import FORMATS
from vramcast.units import ceil_div

SPANNED: Final = (2, 3, 4, 6, 8, 12, 16)
"""Machines that one replica is spread over, where one machine does not hold it."""


def search(space: ServeSpace, limits: Limits, goal: Goal, *, top: int = 10) -> tuple[PlanAnswer, ServeJob | None]:
    """The best deployments of a space, and one replica of the best.

    Args:
        space: what may be varied, and the load
        limits: time to first token, tokens per second of a user, currency, most GPUs, and what is to stay free; where
            nobody says that and no deployment leaves its 90 % interval on the card, those that fit, the safest first
        goal: what makes one better
        top: deployments to answer in full, of each machine the best where several are compared

    Raises: InvalidSpec where the space holds no possible deployment at all
    """
    found, job = _searched(space, limits, goal, top)
    if found.plans or limits.headroom is not None:
        return found, job
    closest, without = _searched(space, replace(limits, headroom=0.0), Goal.LEAST_MEMORY, top)
    if not closest.plans and (found.num_fitting or not closest.num_fitting):
        return found, job  # what is missing is not room
    question = closest.question | {"limits": found.question["limits"]}  # the goal is that of the plans shown
    return replace(closest, question=question, warnings=(NO_ROOM, *closest.warnings)), without


def _searched(space: ServeSpace, limits: Limits, goal: Goal, top: int) -> tuple[PlanAnswer, ServeJob | None]:
    compared, warnings = comparable(space.machines, limits, goal)
    counted = [machine for machine in compared if machine.name in space.most]
    machines, left = cheapest_of_alike([machine for machine in compared if machine not in counted], offload=False)
    looked = _Search(space, limits, goal)
    found = sorted(
        looked.deployments((*counted, *machines)),
        key=lambda plan: (plan.value, plan.then, _rate(plan.machine, plan.machines), plan.job.plan.num_ranks),
    )
    if not looked.replicas:
        raise InvalidSpec(looked.nothing_possible())
    best = _each_machine_once(found)[:top]
    plans = tuple(map(_answered, best))
    near = None if best else nearest(looked.attempts, space.job.requests.concurrency, goal)
    cautions = dict.fromkeys(text for plan in (*plans, *([near.answer] if near else ())) for text in plan.warnings)
    found_answer = PlanAnswer(
        question=_question(space, limits, goal),
        plans=plans,
        labels=tuple(_label(plan, space) for plan in best),
        num_plans=len(looked.replicas),
        num_fitting=sum(replica.users > 0 for replica in looked.replicas.values()),
        nearest_failing=near.answer if near else None,
        nearest_label=_named(near.job, near.machine, space) if near else "",
        change=near.change if near else None,
        reasons=tuple(_reasons(best[0], found, goal)) if best else near.reasons if near else (),
        front=_front(found, space),
        warnings=(*warnings, *left, *looked.left_out(), *cautions),
        ignored=all_ignored([*plans, *([near.answer] if near else ())]),
    )
    return found_answer, best[0].job if best else None


def _each_machine_once(found: list[Deployment]) -> list[Deployment]:
    """The best deployment of each machine, where there are several; else all."""
    best: dict[str, Deployment] = {}
    for plan in found:
        best.setdefault(plan.machine.name, plan)
    return list(best.values()) if len(best) > 1 else found


class _Search:
    """What was seen of a space so far."""

    def __init__(self, space: ServeSpace, limits: Limits, goal: Goal) -> None:
        self.space = space
        self.limits = limits
        self.goal = goal
        self.replicas: dict[tuple[object, ...], Replica] = {}
        self.refusals: dict[str, None] = {}
        self.attempts: list[Attempt] = []  # what carries nothing
        self.untimed: dict[str, None] = {}  # cards whose speed is not known
        self.parameters = count_parameters(space.job.model).total

    def deployments(self, machines: Iterable[Cluster]) -> Iterator[Deployment]:
        """The whole load on every machine, engine, format and split."""
        for machine in machines:
            for job in self._jobs(machine):
                replica = self._replica(job)
                if replica is None:
                    continue
                found = self._deployed(replica, machine) if replica.users else self._attempt(replica, machine)
                if isinstance(found, Deployment):
                    yield found
                else:
                    self.attempts.append(found)

    def _attempt(self, replica: Replica, machine: Cluster, machines: int | None = None) -> Attempt:
        """What carries nothing."""
        return Attempt(replica, machine, self.limits, self.space.most.get(machine.name), machines)

    def _jobs(self, machine: Cluster) -> Iterator[ServeJob]:
        gpu = machine.gpu
        for (engine, version), weights, kv_dtype in product(
            self.space.engines, self.space.weights, self.space.kv_dtypes
        ):
            base = replace(self.space.job, engine=engine, version=version, cluster=machine)
            if not runs_on(engine, version, gpu):
                self.refusals[f"{engine} does not run on {gpu.name}"] = None
                continue
            loads = weights is None or weights in SERVING[engine].formats
            if weights is not None and not (loads and has_kernel(weights, gpu, engine, version)):
                self.refusals[f"{engine} has no {weights} weights on {gpu.name}"] = None
                continue
            dtype = dtype_on(gpu, base.plan.dtype or base.model.dtype)
            changed = dtype if dtype != (base.plan.dtype or base.model.dtype) else base.plan.dtype
            plan = replace(base.plan, weights=weights, kv_dtype=kv_dtype, dtype=changed, dp=1)
            stored = base.weights if weights is None else None
            yield from self._splits(replace(base, plan=plan, weights=stored), machine)

    def _splits(self, job: ServeJob, machine: Cluster) -> Iterator[ServeJob]:
        """Tensor and pipeline degrees over some of a machine's cards; over several machines where one is too small."""
        cards = machine.gpus_per_node
        splitting = SERVING[job.engine].splits
        for tp, pp in product(range(1, cards + 1), range(1, cards + 1)):
            if tp * pp <= cards and cards % (tp * pp) == 0 and (splitting or pp == 1):
                yield from self._split(job, _part(machine, tp * pp), tp, pp)
        if splitting and self._weights_bytes(job, cards) > machine.gpu.visible_bytes:
            for nodes in SPANNED:
                if nodes <= self.space.most.get(machine.name, nodes):
                    yield from self._split(job, replace(machine, num_nodes=nodes), cards, nodes)

    def _split(self, job: ServeJob, cluster: Cluster, tp: int, pp: int) -> Iterator[ServeJob]:
        given = (self.space.tp, tp), (self.space.pp, pp)
        if any(allowed and degree not in allowed for allowed, degree in given) or not divisible(tp, job.model):
            return
        if pp > job.model.num_layers or self._weights_bytes(job, tp * pp) > cluster.gpu.visible_bytes:
            return
        yield replace(job, cluster=cluster, plan=replace(job.plan, tp=tp, pp=pp))

    def _weights_bytes(self, job: ServeJob, ranks: int) -> float:
        """At least what a rank holds of the weights [bytes]."""
        name = job.plan.weights or job.model.quantisation or job.plan.dtype or job.model.dtype
        bits = FORMATS[name].bits_per_weight if name in FORMATS else 4.0
        return self.parameters * min(bits, 16.0) / 8 / ranks

    def _replica(self, job: ServeJob) -> Replica | None:
        """A replica worked out once for all machines with the same cards."""
        cluster = job.cluster
        key = (
            cluster.gpu, cluster.gpus_per_node, cluster.num_nodes,
            cluster.network if cluster.num_nodes > 1 else None, job.engine, job.version, job.plan,
        )
        if key not in self.replicas:
            try:
                self.replicas[key] = replica_of(job, self.limits)
            except VramcastError as reason:
                self.refusals[str(reason)] = None
                return None
        found = self.replicas[key]
        return found._replace(job=replace(found.job, cluster=cluster))

    def _deployed(self, replica: Replica, machine: Cluster) -> Deployment | Attempt:
        """As many machines as the load needs, or as many as allowed where speed is the goal, filled with replicas."""
        users, spanned = self.space.job.requests.concurrency, replica.job.cluster.num_nodes
        each = _on_one(machine, replica.job.cluster)
        fewest = ceil_div(users, replica.users)
        groups = ceil_div(fewest, each)  # of machines that hold replicas together
        most = most_machines(machine, self.limits, self.space.most.get(machine.name))
        if most is not None and groups * spanned > most:
            return self._attempt(replica, machine, groups * spanned)
        if most is not None and self.goal is Goal.FASTEST:
            groups = min(most // spanned, ceil_div(users, each))
        replicas = fewest if self.goal is Goal.LEAST_MEMORY else min(users, groups * each)
        job = with_users(replica.job, ceil_div(users, replicas))
        own = per_user(job)
        if own is None:
            self.untimed[machine.gpu.name] = None
            return self._attempt(replica, machine)
        plan = Deployment(job, machine, groups * spanned, replicas, users, own * users, 0.0, 0.0)
        value, then = self._value(plan)
        return plan._replace(value=value, then=then)

    def _value(self, plan: Deployment) -> tuple[float, float]:
        """What the goal makes small, and what decides between equals."""
        rate = _rate(plan.machine, plan.machines)
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
            yield f"left out for want of a speed: {', '.join(self.untimed)}"

    def nothing_possible(self) -> str:
        """Why there is nothing to look at."""
        job = self.space.job
        smallest = min(self._weights_bytes(replace(job, plan=replace(job.plan, weights=name)), 1)
                       for name in self.space.weights)
        why = "; ".join(self.refusals)[:300] or f"its weights take at least {smallest / 2**30:.0f} GiB"
        return f"no deployment of {job.model.name} is possible on these machines: {why}"


def _rate(machine: Cluster, machines: int) -> float:
    """Of an hour: money, or GPU-hours where no price is known."""
    return machines * (machine.price.per_hour if machine.price else machine.gpus_per_node)


def _on_one(machine: Cluster, cluster: Cluster) -> int:
    """Replicas that one machine holds; 1 where a replica takes several."""
    return max(1, machine.gpus_per_node // cluster.gpus_per_node)


def _part(machine: Cluster, cards: int) -> Cluster:
    """Some cards of one machine, at the machine's price: what is rented is the machine."""
    whole = cards == machine.gpus_per_node
    return replace(machine, gpus_per_node=cards, num_nodes=1, instance=machine.instance if whole else None)


def _answered(plan: Deployment) -> ServeAnswer:
    """The answer of one replica, with all of them and what they cost."""
    return replace(answer(plan.job, with_changes=False), cost=_cost(plan), fleet=_fleet(plan))


def _fleet(plan: Deployment) -> Fleet:
    machine = plan.machine
    return Fleet(
        replicas=plan.replicas, users=plan.users, machines=plan.machines,
        machine=machine.instance or f"{machine.gpus_per_node}x{machine.gpu.name}",
        replicas_per_machine=min(plan.replicas, _on_one(machine, plan.job.cluster)), tokens_per_s=plan.tokens_per_s,
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
            tokens_per_s=plan.tokens_per_s,
            cost_per_million_tokens=_rate(plan.machine, plan.machines) / 3600 / plan.tokens_per_s * 1e6,
            unit=plan.machine.price.currency if plan.machine.price else "GPU-hours", on_front=True,
        )
        for plan in best.values()
    ]
    return tuple(replace(point, on_front=not any(beats(other, point) for other in points)) for point in points)


def _question(space: ServeSpace, limits: Limits, goal: Goal) -> dict[str, Any]:
    import msgspec


    plain = estimate.serving.question(replace(space.job, cluster=space.machines[0]))
    return plain | {
        "gpus": [machine.name for machine in space.machines], "goal": goal.value,
        "engine": [engine for engine, _ in space.engines], "limits": msgspec.to_builtins(limits),
        "weights": [name or "as stored" for name in space.weights],
    }
