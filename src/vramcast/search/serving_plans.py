"""The best deployments for a load: engine, machine, format, cache dtype, split and number of replicas.

A *replica* is one deployment on some cards of a machine, or on several machines. How many users one can have at once is
found by bisection: more of them never need less memory and never get more tokens each. The load is then spread evenly
over as many replicas as that takes. Everything else is tried one by one; replicas on equal cards are worked out once,
whatever the machine around them costs. What cannot hold its weights is not worked out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters import count_parameters
from vramcast.domain.answer import Change, ServeAnswer, Sustained
from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, PlanAnswer, Point, ServeSpace
from vramcast.domain.price import Cost
from vramcast.domain.serving import ServeJob
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.estimate.serving import Verdict, answer, verdict
from vramcast.estimate.speed import sustained_per_user, timed
from vramcast.search.candidates import SPLITTING, STORED, divisible
from vramcast.search.hardware import dtype_on, has_kernel, runs_on
from vramcast.search.training.market import beats, cheapest_of_alike, comparable
from vramcast.states.storage import FORMATS
from vramcast.units import ceil_div

SPANNED: Final = (2, 3, 4, 6, 8, 12, 16)
"""Machines that one replica is spread over, where one machine does not hold it."""


class Replica(NamedTuple):
    """One deployment, at the largest number of users that it can have."""

    job: ServeJob
    users: int  # at once; 0: it does not fit, or keeps no limit
    nearness: float  # how far it is from having one user: 1 is there
    why: str  # what it lacks


class Deployment(NamedTuple):
    """Replicas that carry the whole load."""

    replica: Replica
    job: ServeJob  # one of them, with its share of the users
    machine: Cluster
    machines: int
    replicas: int
    users: int  # of all replicas
    tokens_per_s: float
    value: float


def search(space: ServeSpace, limits: Limits, goal: Goal, *, top: int = 10) -> tuple[PlanAnswer, ServeJob | None]:
    """The best deployments of a space, and one replica of the best.

    Args:
        space: what may be varied, and the load
        limits: time to first token, tokens per second of a user, currency, most GPUs
        goal: what makes one better
        top: deployments to answer in full

    Raises: InvalidSpec where the space holds no possible deployment at all
    """
    compared, warnings = comparable(space.machines, limits, goal)
    machines, left = cheapest_of_alike(compared, offload=False)
    looked = _Search(space, limits, goal)
    found = sorted(looked.deployments(machines), key=lambda plan: (plan.value, plan.machines, plan.job.plan.num_ranks))
    if not looked.replicas:
        raise InvalidSpec(looked.nothing_possible())
    best = found[:top]
    nearest = looked.nearest()
    failing = answer(nearest.job) if nearest and not best else None
    found_answer = PlanAnswer(
        question=_question(space, limits, goal),
        plans=tuple(map(_answered, best)),
        labels=tuple(map(_label, best)),
        num_plans=len(looked.replicas),
        num_fitting=sum(replica.users > 0 for replica in looked.replicas.values()),
        nearest_failing=failing,
        nearest_label=_options(nearest.job) if nearest and failing else "",
        change=_change(nearest, failing, limits) if nearest and failing else None,
        reasons=tuple(_reasons(best[0], found, goal)) if best else ((nearest.why,) if nearest else ()),
        front=_front(found),
        warnings=(*warnings, *left),
    )
    return found_answer, best[0].job if best else None


class _Search:
    """What was seen of a space so far."""

    def __init__(self, space: ServeSpace, limits: Limits, goal: Goal) -> None:
        self.space = space
        self.limits = limits
        self.goal = goal
        self.replicas: dict[tuple[object, ...], Replica] = {}
        self.refusals: dict[str, None] = {}
        self.parameters = count_parameters(space.job.model).total

    def deployments(self, machines: Iterable[Cluster]) -> Iterator[Deployment]:
        """The whole load on every machine, engine, format and split."""
        for machine in machines:
            for job in self._jobs(machine):
                replica = self._replica(job)
                if replica is not None and replica.users:
                    plan = self._deployed(replica, machine)
                    if plan is not None:
                        yield plan

    def _jobs(self, machine: Cluster) -> Iterator[ServeJob]:
        gpu = machine.gpu
        for (engine, version), weights, kv_dtype in product(
            self.space.engines, self.space.weights, self.space.kv_dtypes
        ):
            base = replace(self.space.job, engine=engine, version=version, cluster=machine)
            if not runs_on(engine, version, gpu):
                self.refusals[f"{engine} does not run on {gpu.name}"] = None
                continue
            if weights is not None and (weights not in STORED.get(engine, ()) or not has_kernel(weights, gpu)):
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
        splitting = job.engine in SPLITTING
        for tp, pp in product(range(1, cards + 1), range(1, cards + 1)):
            if tp * pp <= cards and cards % (tp * pp) == 0 and (splitting or pp == 1):
                yield from self._split(job, replace(machine, gpus_per_node=tp * pp, num_nodes=1), tp, pp)
        if splitting and self._weights_bytes(job, cards) > machine.gpu.visible_bytes:
            for nodes in SPANNED:
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
                self.replicas[key] = _most_users(job, self.limits)
            except VramcastError as reason:
                self.refusals[str(reason)] = None
                return None
        found = self.replicas[key]
        return found._replace(job=replace(found.job, cluster=cluster))

    def _deployed(self, replica: Replica, machine: Cluster) -> Deployment | None:
        """As many machines as the load needs, or as many as allowed where speed is the goal, filled with replicas."""
        users, spanned = self.space.job.requests.concurrency, replica.job.cluster.num_nodes
        each = max(1, machine.gpus_per_node // replica.job.cluster.gpus_per_node)  # replicas of one machine
        groups = ceil_div(ceil_div(users, replica.users), each)  # of machines that hold replicas together
        most = self.limits.max_gpus
        if most is not None:
            allowed = most // (machine.gpus_per_node * spanned)
            if groups > allowed:
                return None
            groups = min(allowed, ceil_div(users, each)) if self.goal is Goal.FASTEST else groups
        machines, needed = groups * spanned, min(users, groups * each)
        job = _with_users(replica.job, ceil_div(users, needed))
        own = _per_user(job)
        if own is None:
            return None
        tokens_per_s = own * users
        value = self._value(machine, machines, tokens_per_s, replica)
        return Deployment(replica, job, machine, machines, needed, users, tokens_per_s, value)

    def _value(self, machine: Cluster, machines: int, tokens_per_s: float, replica: Replica) -> float:
        match self.goal:
            case Goal.FASTEST:
                return -tokens_per_s
            case Goal.FEWEST_GPUS:
                return machines * machine.gpus_per_node + 1 / (1 + tokens_per_s)
            case Goal.LEAST_MEMORY:
                return verdict(replica.job).needed_bytes / machine.gpu.visible_bytes
        return _rate(machine, machines) / tokens_per_s

    def nearest(self) -> Replica | None:
        """The replica that misses by least."""
        failing = [replica for replica in self.replicas.values() if not replica.users]
        return max(failing, key=lambda replica: replica.nearness, default=None)

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


def _per_user(job: ServeJob) -> float | None:
    """Tokens per second of each user of a replica, prompts of the others included."""
    speed = timed(job).speed
    return None if speed is None else sustained_per_user(job, speed)


def _with_users(job: ServeJob, users: int) -> ServeJob:
    return replace(job, requests=replace(job.requests, concurrency=users))


def _most_users(job: ServeJob, limits: Limits) -> Replica:
    """The most users at once that fit and keep to the limits, up to all there are."""
    users = job.requests.concurrency
    first, found = _with_users(job, 1), verdict(_with_users(job, 1))
    lacks = _missed(first, limits)
    if not found.fits or lacks is not None:
        nearness = _nearness(first, found, limits)
        return Replica(first, 0, nearness, lacks or found.shortfall or "more memory is needed than the card has")
    most = _largest(users, lambda number: verdict(_with_users(job, number)).fits)
    most = _largest(most, lambda number: _missed(_with_users(job, number), limits) is None)
    return Replica(_with_users(job, most), most, 1.0, "")


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which a monotone condition holds; it holds for 1."""
    if holds(most):
        return most
    low, high = 1, most  # holds, does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _missed(job: ServeJob, limits: Limits) -> str | None:
    """The limit that a replica does not keep to, in words."""
    first, each = limits.time_to_first_token_s, limits.tokens_per_s_per_user
    if first is None and each is None:
        return None
    speed = timed(job).speed
    if speed is None:
        return "its speed is not known"
    if first is not None and speed.time_to_first_token_s > first:
        return f"the first token takes {speed.time_to_first_token_s:.3g} s, bound by {speed.prefill_bound}"
    own = _per_user(job)
    if each is not None and (own is None or own < each):
        return f"one user alone gets {own or 0:.3g} tokens/s, bound by {speed.decode_bound}"
    return None


def _nearness(job: ServeJob, found: Verdict, limits: Limits) -> float:
    """The smallest of what there is over what is needed."""
    shares = [1.0, job.cluster.gpu.visible_bytes / max(1, found.needed_bytes)]
    if found.capacity is not None:
        shares.append(found.capacity.concurrency / job.requests.concurrency)
    speed = timed(job).speed
    if speed is not None and limits.time_to_first_token_s is not None:
        shares.append(limits.time_to_first_token_s / speed.time_to_first_token_s)
    if speed is not None and limits.tokens_per_s_per_user is not None:
        shares.append((_per_user(job) or 0.0) / limits.tokens_per_s_per_user)
    return min(shares)


def _change(replica: Replica, failing: ServeAnswer, limits: Limits) -> Change | None:
    """The smallest change: an option that makes it fit, or the limit it would keep."""
    fitting = [change for change in failing.changes if change.fits]
    if fitting:
        return fitting[0]
    speed = failing.speed
    if not failing.fits or speed is None:
        return None
    needed = failing.fullest.needed_bytes
    first = limits.time_to_first_token_s
    if first is not None and speed.time_to_first_token_s > first:
        words = f"--ttft {speed.time_to_first_token_s * 1.005:.3g}"
        return Change(change=words, device_bytes=needed, fits=True, cost="users wait longer for the first token")
    words = f"--per-user {(_per_user(replica.job) or 0.0) * 0.995:.3g}"
    return Change(change=words, device_bytes=needed, fits=True, cost="answers come more slowly")


def _answered(plan: Deployment) -> ServeAnswer:
    """The answer of one replica, with what all of them cost."""
    found = answer(plan.job, with_changes=False)
    own = plan.tokens_per_s / plan.users
    together = Sustained(replicas=plan.replicas, tokens_per_s=plan.tokens_per_s, tokens_per_s_per_user=own)
    return replace(found, cost=_cost(plan), sustained=together)


def _cost(plan: Deployment) -> Cost | None:
    price = plan.machine.price
    if price is None:
        return None
    per_hour = price.per_hour * plan.machines
    return Cost(
        price=price, machines=plan.machines, per_hour=per_hour,
        per_million_tokens=per_hour / 3600 / plan.tokens_per_s * 1e6,
    )


def _options(job: ServeJob) -> str:
    """One replica as the command line writes it."""
    cluster, plan = job.cluster, job.plan
    nodes = f"{cluster.num_nodes}x" if cluster.num_nodes > 1 else ""
    version = ".".join(map(str, job.version))
    found = [f"--gpus {nodes}{cluster.gpus_per_node}x{cluster.gpu.name}", f"--engine {job.engine}@{version}"]
    found += [f"--{name} {degree}" for name, degree in (("tp", plan.tp), ("pp", plan.pp)) if degree > 1]
    found += [f"--weights {plan.weights}"] if plan.weights else []
    found += [f"--kv-dtype {plan.kv_dtype}"] if plan.kv_dtype != "auto" else []
    found += [f"--dtype {plan.dtype}"] if plan.dtype else []
    return " ".join((*found, f"--concurrency {job.requests.concurrency}"))


def _label(plan: Deployment) -> str:
    """Options of one replica, how many there are, and on what."""
    where = plan.machine.instance or f"{plan.machine.gpus_per_node}x{plan.machine.gpu.name}"
    times = f"{plan.replicas} replicas" if plan.replicas > 1 else "1 replica"
    return f"{_options(plan.job)} ({times} on {plan.machines} x {where})"


RESPECTS: Final[tuple[tuple[str, Callable[[Deployment], object]], ...]] = (
    ("machine", lambda plan: plan.machine.instance or f"{plan.machine.gpus_per_node}x{plan.machine.gpu.name}"),
    ("engine", lambda plan: plan.job.engine),
    ("weights", lambda plan: plan.job.plan.weights or "as stored"),
    ("kv cache", lambda plan: plan.job.plan.kv_dtype),
    ("tensor parallelism", lambda plan: plan.job.plan.tp),
    ("pipeline", lambda plan: plan.job.plan.pp),
)


def _reasons(best: Deployment, found: list[Deployment], goal: Goal) -> Iterator[str]:
    """What bounds the winner, and the best that differs from it in one respect."""
    speed = timed(best.job).speed
    if speed is not None and speed.decode_bound is not None:
        share = max((speed.decode_shares or {"": 0.0}).items(), key=lambda item: item[1])
        yield f"decoding is bound by {speed.decode_bound}: {share[1]:.0%} of a step goes to {share[0]}"
    for words, look in RESPECTS:
        other = next((plan for plan in found if look(plan) != look(best)), None)
        if other is None or best.value == 0:
            continue
        times = best.value / other.value if goal is Goal.FASTEST else other.value / best.value
        if times > 1.0005:
            worse = f"{times - 1:.1%}" if times < 2 else f"{times:.1f} times"
            yield f"{words}: the best with {look(other)} instead of {look(best)} is {worse} {WORSE[goal]}"


WORSE: Final[dict[Goal, str]] = {
    Goal.FASTEST: "slower", Goal.CHEAPEST: "dearer", Goal.FEWEST_GPUS: "more GPUs", Goal.LEAST_MEMORY: "more memory",
}


def _front(found: list[Deployment]) -> tuple[Point, ...]:
    """The best deployment of each machine, cost against speed."""
    best: dict[str, Deployment] = {}
    for plan in found:
        best.setdefault(plan.machine.name, plan)
    points = [
        Point(
            what=_label(plan), gpus=plan.machines * plan.machine.gpus_per_node, tokens_per_s=plan.tokens_per_s,
            cost_per_million_tokens=_rate(plan.machine, plan.machines) / 3600 / plan.tokens_per_s * 1e6,
            unit=plan.machine.price.currency if plan.machine.price else "GPU-hours", on_front=True,
        )
        for plan in best.values()
    ]
    return tuple(replace(point, on_front=not any(beats(other, point) for other in points)) for point in points)


def _question(space: ServeSpace, limits: Limits, goal: Goal) -> dict[str, Any]:
    import msgspec

    from vramcast.estimate.serving import question

    plain = question(replace(space.job, cluster=space.machines[0]))
    return plain | {
        "gpus": [machine.name for machine in space.machines], "goal": goal.value,
        "engine": [engine for engine, _ in space.engines], "limits": msgspec.to_builtins(limits),
        "weights": [name or "as stored" for name in space.weights],
    }
