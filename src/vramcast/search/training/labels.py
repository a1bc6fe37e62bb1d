"""A plan as the options that ask for it, and the few of them in which plans of one table differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job, Plan, Recompute
from vramcast.domain.version import named
from vramcast.engines.eager.releases import with_unasked

WRITTEN: Final[tuple[tuple[str, Callable[[Job], object]], ...]] = (
    ("engine", lambda job: named(job.engine, job.engine_version)),
    ("tp", lambda job: job.plan.tp),
    ("pp", lambda job: job.plan.pp),
    ("cp", lambda job: job.plan.cp),
    ("ep", lambda job: job.plan.ep),
    ("etp", lambda job: job.plan.etp if job.plan.ep > 1 or job.plan.tp > 1 else None),
    ("virtual-stages", lambda job: job.plan.virtual_stages),
    ("schedule", lambda job: job.plan.schedule if job.plan.pp > 1 else None),
    ("first-stage-layers", lambda job: job.plan.first_stage_layers),
    ("last-stage-layers", lambda job: job.plan.last_stage_layers),
    ("shards", lambda job: job.plan.shards.value if job.cluster.count > 1 else None),
    ("recompute", lambda job: job.plan.recompute.value),
    ("recompute-layers", lambda job: job.plan.recompute_layers if job.plan.recompute is Recompute.FULL else None),
    ("recompute-modules", lambda job: ",".join(job.plan.recompute_modules) or None),
    ("offload-optimizer", lambda job: job.plan.offload_optimizer),
    ("offload-parameters", lambda job: job.plan.offload_parameters),
    ("precision", lambda job: job.plan.precision.value),
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
