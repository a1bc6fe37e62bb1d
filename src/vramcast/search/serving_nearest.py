"""Where no deployment carries a load: the one that misses by least, why, and the change that makes it enough."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log10
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Change, ServeAnswer
from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, Reason, smallest_change, too_close
from vramcast.domain.serving import ServeJob
from vramcast.domain.verdict import usable_bytes
from vramcast.errors import VramcastError
from vramcast.estimate.serving import Verdict, answer, verdict
from vramcast.search.serving_replicas import NO_SPEED, Replica, missed, most_machines, nearness, with_users
from vramcast.units import ceil_div

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
