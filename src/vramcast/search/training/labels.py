"""A plan as the options that ask for it, the few of them in which plans of one table differ, and why the winner wins
and what speed costs: the best plan beside the best that differ from it in one respect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job, Plan, Recompute
from vramcast.domain.planning import Goal, Point, Reason
from vramcast.domain.version import named
from vramcast.engines.eager.releases import precision_word
from vramcast.engines.eager.trl import with_unasked
from vramcast.engines.training import engine_of
from vramcast.search.training.limits import beats
from vramcast.search.training.pool import Candidate, Candidates, Rule

WRITTEN: Final[tuple[tuple[str, Callable[[Job], object]], ...]] = (
    ("engine", lambda job: named(job.engine, job.engine_version)),
    ("tp", lambda job: job.plan.tp),
    ("pp", lambda job: job.plan.pp),
    ("cp", lambda job: job.plan.cp),
    ("ep", lambda job: job.plan.ep),
    ("etp", lambda job: job.plan.etp if job.plan.ep > 1 or job.plan.tp > 1 else None),
    ("virtual-stages", lambda job: job.plan.virtual_stages),
    ("schedule", lambda job: job.plan.schedule if job.plan.pp > 1 and engine_of(job).kin != "eager" else None),
    ("first-stage-layers", lambda job: job.plan.first_stage_layers),
    ("last-stage-layers", lambda job: job.plan.last_stage_layers),
    ("shards", lambda job: job.plan.shards.value if job.cluster.count > 1 else None),
    ("recompute", lambda job: job.plan.recompute.value),
    ("recompute-layers", lambda job: job.plan.recompute_layers if job.plan.recompute is Recompute.FULL else None),
    ("recompute-modules", lambda job: ",".join(job.plan.recompute_modules) or None),
    ("offload-optimizer", lambda job: job.plan.offload_optimizer),
    ("offload-parameters", lambda job: job.plan.offload_parameters),
    ("precision", precision_word),
    ("optimizer", lambda job: job.plan.optimizer),
    ("micro-batch", lambda job: job.workload.micro_batch),
    ("grad-accum", lambda job: job.workload.grad_accum),
    ("engine-option", lambda job: ",".join(f"{name}={_text(value)}" for name, value in job.engine_options.items())),
)
"""Options in the order in which people read a plan."""

ALWAYS: Final = ("engine", "shards", "precision", "micro-batch", "grad-accum")
"""Written whatever their value: engines and questions have defaults of their own."""

_DEFAULT: Final = Plan()


def _text(value: object) -> str:
    """An engine option as the command line writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def options(job: Job) -> dict[str, str]:
    """The options that make this plan of a question about the same model and cards."""
    usual = with_unasked(replace(job, plan=_DEFAULT), ()).plan
    default = Job(model=job.model, workload=job.workload, plan=usual, cluster=job.cluster)
    found = {}
    for name, value in WRITTEN:
        given = value(job)
        if given is not None and (name in ALWAYS or given != value(default)):
            found[name] = str(given)
    return found


def label(job: Job) -> str:
    """The plan as the command line writes it: '--gpus 8xh100-sxm-80gb --engine megatron --tp 2 ...'."""
    return " ".join((f"--gpus {job.cluster.name}", *(f"--{name} {text}" for name, text in options(job).items())))


def signature(job: Job) -> tuple[object, ...]:
    """What makes a plan another one in a table: all but how much is recomputed, and the micro-batch."""
    plan = job.plan
    return (
        job.cluster.name, job.engine, plan.tp, plan.pp, plan.cp, plan.ep, plan.etp, plan.shards, plan.precision,
        plan.optimizer, plan.offload_optimizer, plan.offload_parameters,
    )


def differences(job: Job, other: Job) -> Iterator[str]:
    """Options of `job` that `other` has otherwise."""
    theirs = options(other)
    for name, text in options(job).items():
        if theirs.get(name) != text:
            yield f"--{name} {text}"


Respect = tuple[str, str, Callable[[Job], object]]
"""Its name, the option that says it, and how a plan has it; or an array of plans."""

RESPECTS: Final[tuple[Respect, ...]] = (
    ("cards", "gpus", lambda job: job.cluster.name),
    ("engine", "engine", lambda job: job.engine),
    ("tensor parallelism", "tp", lambda job: job.plan.tp),
    ("pipeline", "pp", lambda job: job.plan.pp),
    ("context parallelism", "cp", lambda job: job.plan.cp),
    ("expert parallelism", "ep", lambda job: job.plan.ep),
    ("virtual stages", "virtual-stages", lambda job: job.plan.virtual_stages),
    ("sharding", "shards", lambda job: job.plan.shards),
    ("recomputation", "recompute", lambda job: job.plan.recompute),
    ("optimizer offload", "offload-optimizer", lambda job: job.plan.offload_optimizer),
    ("precision", "precision", precision_word),
    ("micro-batch", "micro-batch", lambda job: job.workload.micro_batch),
)

EQUAL: Final = 5e-4
"""Plans closer than this are alike: no reason to name."""

TRIES: Final = 4
"""Plans of one kind that are put through the allocator before the search for a reason gives up."""


def reasons_of(
    best: Candidate, others: Candidates, rule: Rule, fits: Callable[[Candidate], bool],
    value: Callable[[Candidate], float],
) -> Iterator[Reason]:
    """One for every respect in which another choice was possible.

    Args:
        best: the winner, with the value of its goal
        others: candidates in the order of the goal
        rule: the goal
        fits: whether a candidate fits, allocator included
        value: of a candidate that fits, what the goal makes small
    """
    winner = best.job
    for words, option, look in _respects(winner, rule.goal):
        own = look(winner)
        found = next(filter(fits, islice(others.differing(look, own), TRIES)), None)
        if found is None:
            continue
        other = found.job
        times = _times(other, value(found), best, rule.goal)
        if times > 1 + EQUAL:
            theirs = str(look(other))
            yield Reason(kind="respect", respect=words, option=option, other=theirs, own=str(own), times=times)


def _respects(winner: Job, goal: Goal) -> tuple[Respect, ...]:
    """Where GPUs are counted, other ways to divide the work on as many are no worse: only the cards say something."""
    if goal is not Goal.FEWEST_GPUS:
        return RESPECTS
    return RESPECTS[:1] if winner.cluster.count > 1 else ()


def _times(other: Job, value: float, best: Candidate, goal: Goal) -> float:
    """How many times as large another plan's value is; of GPUs, without what breaks ties."""
    if goal is Goal.FEWEST_GPUS:
        return other.cluster.count / best.job.cluster.count
    return value / best.value


def points(found: Iterable[Candidate], rule: Rule) -> tuple[Point, ...]:
    """Cost against speed; a point is on the front where no other is faster and cheaper."""
    points = [_point(candidate, rule) for candidate in found]
    return tuple(replace(point, on_front=not any(beats(other, point) for other in points)) for point in points)


def _point(candidate: Candidate, rule: Rule) -> Point:
    job = candidate.job
    cost = rule.rate(job.cluster) * candidate.step_s / 3600 / rule.tokens * 1e6
    return Point(
        what=label(job), gpus=job.cluster.count, tokens_per_s=rule.tokens / candidate.step_s,
        cost_per_million_tokens=cost, unit=job.cluster.price.currency if job.cluster.price else "GPU-hours",
        on_front=True,
    )
