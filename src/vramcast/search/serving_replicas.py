"""A replica: one deployment on some cards, how many users it can have at once, and how the command line writes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import asdict, replace

from vramcast.domain.device import Cluster
from vramcast.domain.planning import Limits, Reason
from vramcast.domain.serving import ServeJob, ServePlan, Traffic
from vramcast.domain.verdict import claimed_bytes, usable_bytes
from vramcast.domain.version import named
from vramcast.estimate.serving import Verdict, verdict
from vramcast.estimate.speed import timed
from vramcast.search.bisection import largest

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
