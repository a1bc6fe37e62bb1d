"""Single changes to a plan that does not fit, each computed: what would make it fit, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vramcast.domain.answer import Change
from vramcast.domain.job import Job
from vramcast.errors import VramcastError
from vramcast.estimate.techniques import TECHNIQUES, WHOLE_MODEL_ENGINES, Technique
from vramcast.estimate.variants import on_engine, options_between

Measure = Callable[[Job], int]


def single_changes(job: Job, *, measure: Measure) -> tuple[Change, ...]:
    """Every applicable change that lowers the peak, those that make it fit first.

    Args:
        job: the plan that does not fit
        measure: device peak of a job, or a lower bound of it where it does not fit [bytes]
    """
    needed_bytes = measure(job)
    found = [change for change in _tried(job, measure) if change.device_bytes < needed_bytes]
    return tuple(sorted(found, key=lambda change: not change.fits))


def _tried(job: Job, measure: Measure) -> Iterator[Change]:
    seen = {_key(job)}
    for technique in TECHNIQUES:
        for engine in _engines(job, technique) if technique.offered else ():
            changed = technique.apply(on_engine(job, engine))
            if changed is None or _key(changed) in seen:
                continue
            seen.add(_key(changed))
            try:
                needed = measure(changed)
            except VramcastError:
                continue  # the engine does not support it: nothing to propose
            yield Change(
                change=options_between(job, changed),
                device_bytes=needed,
                fits=needed <= job.cluster.gpu.visible_bytes,
                cost=technique.cost,
            )
            break


def _engines(job: Job, technique: Technique) -> tuple[str, ...]:
    """The job's own; trainers that cannot shard by themselves are offered another that can."""
    if technique.against_asked and job.engine in WHOLE_MODEL_ENGINES and not job.plan.peft:
        return (job.engine, *technique.engines)
    return (job.engine,)


def _key(job: Job) -> tuple[object, ...]:
    """What techniques change."""
    return job.engine, job.plan, job.workload, job.alloc_conf
