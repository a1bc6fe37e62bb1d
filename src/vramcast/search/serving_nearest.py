"""Where no deployment carries a load: the one that misses by least, why, and the change that makes it enough.

A replica: one deployment on some cards, how many users it can have at once, and how the command line writes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from math import ceil, floor, log10
from typing import Final, NamedTuple

from msgspec.structs import asdict, replace

from vramcast.domain.answer import Change, ServeAnswer
from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, Reason, smallest_change, too_close
from vramcast.domain.serving import ServeJob, ServePlan, Traffic
from vramcast.domain.verdict import claimed_bytes, usable_bytes
from vramcast.domain.version import named
from vramcast.errors import VramcastError
from vramcast.estimate.serving import Verdict, answer, verdict
from vramcast.estimate.speed import timed
from vramcast.search.goals import largest
from vramcast.units import ceil_div

NO_SPEED: Final = Reason(kind="no-speed")


class Replica(NamedTuple):
    """One deployment, at the largest number of users that it can have."""

    job: ServeJob
    users: int  # at once; 0: it does not fit, or keeps no limit


class Deployment(NamedTuple):
    """Replicas that carry the whole load."""

    job: ServeJob  # one of them, with its share of the users
    machine: Cluster
    machines: int
    replicas: int
    users: int  # of all replicas
    tokens_per_s: float
    value: float  # what the goal makes small
    then: float  # what decides between equal values
    per_user: float = 0.0  # tokens per second at the median, where requests come by themselves


def most_machines(machine: Cluster, limits: Limits, there_are: int | None) -> int | None:
    """How many machines of a kind there may be; None: as many as are needed."""
    known = (limits.max_gpus and limits.max_gpus // machine.gpus_per_node, there_are)
    return min((number for number in known if number is not None), default=None)


def with_users(job: ServeJob, users: int) -> ServeJob:
    """The same deployment with another number of users at once."""
    return replace(job, requests=replace(job.requests, concurrency=users))


def per_user(job: ServeJob) -> float | None:
    """Tokens per second of each user of a replica, prompts of the others included."""
    speed = timed(job).speed
    return None if speed is None else speed.tokens_per_s_per_user


def replica_of(job: ServeJob, limits: Limits) -> Replica:
    """A replica with the most users at once that fit and keep to the limits, up to all there are."""
    users = job.requests.concurrency
    visible, first = job.cluster.gpu.visible_bytes, with_users(job, 1)

    def holds(number: int) -> bool:
        return verdict(with_users(job, number)).leaves(visible, limits.headroom)

    if not holds(1) or missed(first, limits):
        return Replica(first, 0)
    most = largest(holds, users, guess=users)
    most = largest(lambda number: not missed(with_users(job, number), limits), most, guess=most)
    return Replica(with_users(job, most), most)


def missed(job: ServeJob, limits: Limits) -> list[Reason]:
    """The limits that a replica does not keep to."""
    first, each = limits.time_to_first_token_s, limits.tokens_per_s_per_user
    if first is None and each is None:
        return []
    speed = timed(job).speed
    if speed is None:
        return [NO_SPEED]
    found = []
    if first is not None and speed.time_to_first_token_s > first:
        found.append(Reason(kind="first-token", value=speed.time_to_first_token_s, bound=speed.prefill_bound))
    own = speed.tokens_per_s_per_user
    if each is not None and (own is None or own < each):
        users = job.requests.concurrency
        found.append(Reason(kind="per-user", value=own or 0.0, bound=speed.decode_bound or "", users=users))
    return found


def nearness(job: ServeJob, found: Verdict, limits: Limits) -> float:
    """The smallest of what there is over what is needed; 0 where a limit is on a speed that is not known."""
    claimed = claimed_bytes(needed_bytes=found.needed_bytes, high_bytes=found.high_bytes, headroom=limits.headroom)
    shares = [1.0, usable_bytes(job.cluster.gpu.visible_bytes, limits.headroom) / max(1, claimed)]
    if found.capacity is not None:
        shares.append(found.capacity.concurrency / job.requests.concurrency)
    speed = timed(job).speed
    first, each = limits.time_to_first_token_s, limits.tokens_per_s_per_user
    if first is not None:
        shares.append(first / speed.time_to_first_token_s if speed else 0.0)
    if each is not None:
        shares.append((speed.tokens_per_s_per_user or 0.0) / each if speed else 0.0)
    return min(shares)


def options_of(job: ServeJob, machine: Cluster, *, by_machine: bool = False) -> str:
    """One replica as `vramcast serve` reads it, beside the model and the lengths of prompts and answers.

    Args:
        job: the replica
        machine: what it runs on
        by_machine: whether cards of that name elsewhere are others: shares of a card, cards with another link
    """
    cluster = job.cluster
    nodes = f"{cluster.num_nodes}x" if cluster.num_nodes > 1 else ""
    cards = nodes + (str(machine.instance) if by_machine else f"{cluster.gpus_per_node}x{cluster.gpu.name}")
    found = [f"--gpus {cards}", f"--engine {named(job.engine, job.version)}"]
    if by_machine and job.plan.tp == 1 and machine.gpus_per_node > 1:
        found.append("--tp 1")  # not as many as the machine has
    found += _settings(job)
    if job.requests.context is not None:
        found.append(f"--context {job.requests.context}")
    load = _traffic(job.traffic) if job.traffic is not None else f"--concurrency {job.requests.concurrency}"
    return " ".join((*found, load))


def _traffic(traffic: Traffic) -> str:
    """Requests that come at a rate; other fields are called like their options."""
    slo = ",".join(f"{name}<{1000 * limit:g}ms" for name, limit in traffic.slo.items())
    neutral = asdict(Traffic())
    given = {name: value for name, value in asdict(traffic).items() if value != neutral[name]} | {"slo": slo}
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in given.items()}
    return " ".join(f"--{name.replace('_', '-')} {shlex.quote(text)}" for name, text in texts.items())


def _settings(job: ServeJob) -> Iterator[str]:
    """What a plan says beside the engine's defaults; fields are called like their options."""
    neutral = asdict(ServePlan())
    for field, value in asdict(job.plan).items():
        name = field.replace("_", "-")
        if value == neutral[field]:
            continue
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        else:
            yield f"--{name} {value}"
    for name, option in job.engine_options.items():
        yield f"--engine-option {name}={str(option).lower() if isinstance(option, bool) else option}"


NOT_OPTIONS: Final = ("--gpus", "--tp", "--concurrency")
"""Changes of one plan that are none of a search: it looks at cards and splits itself, and the load is what is asked."""


class Attempt(NamedTuple):
    """A replica on a machine."""

    replica: Replica
    machine: Cluster
    limits: Limits  # that it was held against
    there_are: int | None = None  # of its machines; None: as many as it takes
    machines: int | None = None  # that carry the load, where only the limit on their number forbids them

    @property
    def most(self) -> int | None:
        """Machines that it may have; None: any number."""
        return most_machines(self.machine, self.limits, self.there_are)

    @property
    def most_gpus(self) -> int:
        """The same in cards, as the tighter of both limits says it."""
        there_are = self.there_are and self.there_are * self.machine.gpus_per_node
        return min(number for number in (self.limits.max_gpus, there_are) if number is not None)


class Nearest(NamedTuple):
    """The deployment that misses by least."""

    answer: ServeAnswer
    job: ServeJob
    machine: Cluster
    reasons: tuple[Reason, ...]
    change: Change | None


def nearest(attempts: Iterable[Attempt], users: int, goal: Goal) -> Nearest | None:
    """The attempt that misses by least, with what it lacks.

    Args:
        attempts: every replica that was looked at and carries nothing
        users: at once, over all replicas
        goal: what makes one change better than another
    """
    attempts = tuple(attempts)
    too_many = [
        (attempt.machines * attempt.machine.gpus_per_node, index)
        for index, attempt in enumerate(attempts) if attempt.machines is not None
    ]
    if too_many:
        gpus, index = min(too_many)
        return _too_many(attempts[index], gpus)
    best: tuple[tuple[bool, float, bool], Attempt, ServeJob, Verdict] | None = None
    for attempt in attempts:
        job = with_users(attempt.replica.job, share_of(attempt, users))
        try:
            found = verdict(job)
        except VramcastError:
            continue
        within = attempt.most is None or job.cluster.num_nodes <= attempt.most
        rank = (within, nearness(job, found, attempt.limits), found.fits)
        if best is None or rank > best[0]:
            best = (rank, attempt, job, found)
    return None if best is None else _missing(best[1], best[2], best[3], goal)


def share_of(attempt: Attempt, users: int) -> int:
    """Users that each replica must have at least, where as many as are allowed carry the load."""
    if attempt.most is None:
        return 1
    cluster, machine = attempt.replica.job.cluster, attempt.machine
    groups = attempt.most // cluster.num_nodes
    replicas = groups * max(1, machine.gpus_per_node // cluster.gpus_per_node)
    return ceil_div(users, replicas) if replicas else 1


def _too_many(attempt: Attempt, gpus: int) -> Nearest:
    """More cards would do."""
    job, machine = attempt.replica.job, attempt.machine
    found, most = _answered(job, machine, with_changes=False), attempt.limits.max_gpus
    number, words = attempt.machines or 0, []
    if attempt.there_are is not None and number > attempt.there_are:
        words.append(f"--on {replace(machine, num_nodes=number).name}")
    if most is not None and gpus > most:
        words.append(f"--max-gpus {gpus}")
    change = Change(
        change=" ".join(words), device_bytes=found.fullest.needed_bytes, fits=True, cost="more hardware",
        high_bytes=found.high_bytes, capacity_bytes=found.capacity_bytes,
    )
    reason = Reason(kind="load-gpus", value=gpus, limit=attempt.most_gpus)
    return Nearest(found, job, machine, (reason,), change)


def _answered(job: ServeJob, machine: Cluster, *, with_changes: bool) -> ServeAnswer:
    """The answer of one replica; the price is that of a machine, and only known of a replica that fills it."""
    found = answer(job, with_changes=with_changes)
    return found if job.cluster.gpus_per_node == machine.gpus_per_node else replace(found, cost=None)


def _missing(attempt: Attempt, job: ServeJob, found: Verdict, goal: Goal) -> Nearest:
    """A limit on speed, or the memory."""
    machine, limits = attempt.machine, attempt.limits
    failing = _answered(job, machine, with_changes=True)
    if attempt.most is not None and job.cluster.num_nodes > attempt.most:
        reason = Reason(kind="replica-gpus", value=job.cluster.count, limit=attempt.most_gpus)
        return Nearest(failing, job, machine, (reason,), None)
    visible = job.cluster.gpu.visible_bytes
    if found.fits and not found.leaves(visible, limits.headroom) and not missed(job, limits):
        usable = usable_bytes(visible, limits.headroom)
        text = too_close(found.needed_bytes, found.high_bytes, usable, limits.headroom)
        return Nearest(failing, job, machine, (Reason(kind="other", text=text),), None)
    if found.fits:
        return Nearest(failing, job, machine, tuple(missed(job, limits)) or (NO_SPEED,), _relaxed(failing, limits))
    possible = [
        change for change in failing.changes if not any(option in change.change.split() for option in NOT_OPTIONS)
    ]
    change = smallest_change(possible, visible_bytes=visible, limits=limits, goal=goal)
    reason = Reason(kind="other", text=found.shortfall) if found.shortfall else Reason(kind="memory")
    return Nearest(failing, job, machine, (reason,), change)


def _relaxed(failing: ServeAnswer, limits: Limits) -> Change | None:
    """The limits that a deployment which fits does keep, as far as it misses those asked for."""
    speed = failing.speed
    if speed is None or speed.tokens_per_s_per_user is None:
        return None
    words, costs = [], []
    first, each = limits.time_to_first_token_s, limits.tokens_per_s_per_user
    if first is not None and speed.time_to_first_token_s > first:
        words.append(f"--ttft {_milliseconds(speed.time_to_first_token_s)}")
        costs.append("users wait longer for the first token")
    if each is not None and speed.tokens_per_s_per_user < each:
        words.append(f"--per-user {_rounded(speed.tokens_per_s_per_user, up=False):g}")
        costs.append("answers come more slowly")
    if not words:
        return None
    return Change(
        change=" ".join(words), device_bytes=failing.fullest.needed_bytes, fits=True, cost=", ".join(costs),
        high_bytes=failing.high_bytes, capacity_bytes=failing.capacity_bytes,
    )


def _milliseconds(seconds: float) -> str:
    """A time that is not shorter, as --ttft takes it.

    >>> _milliseconds(0.012345), _milliseconds(2.0)
    ('12.4ms', '2000ms')
    """
    return f"{_rounded(1000 * seconds, up=True):g}ms"


def _rounded(value: float, *, up: bool) -> float:
    """Three significant digits, rounded to the side that is easier to keep.

    >>> _rounded(181.96, up=False), _rounded(0.98761, up=True)
    (181.0, 0.988)
    """
    digits = 2 - floor(log10(value))
    step = 10.0 ** digits
    return round((ceil if up else floor)(value * step) / step, max(0, digits))
