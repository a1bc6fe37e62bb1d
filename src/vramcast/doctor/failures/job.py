"""A failure beside the job that failed: what `train` or `serve` predicts of it, and what every technique would save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.doctor.failures.case import Case, Predicted, size
from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.failure import Fix
from vramcast.domain.job import Job
from vramcast.domain.reconciliation import Remark
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.units import GIB

OTHER_CARD: Final = 0.05
"""Two statements of the memory of one card differ by less than this share: drivers keep some."""

AS_PREDICTED: Final = 0.15
"""Within this share of the prediction live memory is what the job needs: intervals of 90 % are about as wide."""


class Computed(NamedTuple):
    """What the job comes to."""

    predicted: Predicted
    by: str  # "train" or "serve"
    fixes: tuple[Fix, ...]  # those that fit first, then in order of what a user gives up
    gpu_bytes: int
    cache: Remark | None = None  # where the cards hold the job, but not as many sequences as were asked for


def computed(job: Job | ServeJob | PipelineJob) -> Computed:
    """The prediction of a job and what techniques would save of it.

    Raises: VramcastError of one sentence when the question cannot be answered
    """
    cache = None
    found: Answer
    if isinstance(job, Job):
        from vramcast.estimate.training import answer

        found = answer(job, with_changes=False)
        fixes = tuple(_training_fixes(job, found.fullest.needed_bytes))
    else:
        from vramcast.estimate.serving import answer as serving_answer

        found = served = serving_answer(job, with_changes=False)
        fixes = tuple(_serving_fixes(job, served)) if isinstance(job, ServeJob) else ()
        cache = _cache_short(job, served) if isinstance(job, ServeJob) else None
    rank = found.fullest
    highest = rank.phases[rank.highest_phase]
    predicted = Predicted(
        verdict=found.verdict, device=rank.needed_bytes, allocated=highest.allocated_bytes,
        reserved=highest.reserved_bytes, capacity=found.capacity_bytes,
    )
    by = "train" if isinstance(job, Job) else "serve"
    ordered = tuple(sorted(fixes, key=lambda fix: not fix.enough))
    return Computed(predicted, by, ordered, job.cluster.gpu.visible_bytes, cache)


def _cache_short(job: ServeJob, found: ServeAnswer) -> Remark | None:
    """That the cards hold the weights, but their cache fewer sequences than were asked for."""
    capacity, concurrency = found.capacity, job.requests.concurrency
    if found.fits or capacity is None or found.fullest.needed_bytes > found.capacity_bytes:
        return None
    if capacity.concurrency >= concurrency:
        return None
    return Remark(key="job.cache_short", values={
        "sequences": f"{capacity.concurrency:.1f}", "asked": f"{concurrency:,}", "context": f"{job.context:,}",
        "cache": size(capacity.kv_bytes), "needed": size(concurrency * capacity.sequence_bytes),
    })


def _training_fixes(job: Job, needed_bytes: int) -> Iterator[Fix]:
    from vramcast.search.techniques import techniques

    for row in techniques(job).techniques:
        saved = needed_bytes - row.device_bytes  # less than the table says where the job has the technique already
        if saved > 0 and row.against == job.engine and row.change:
            action = Remark(key="fix.technique", values={"technique": row.name, "device": size(row.device_bytes)})
            yield Fix(action=action, setting=row.change, saves_bytes=saved, shown_by="train", enough=row.fits)


def _serving_fixes(job: ServeJob, found: ServeAnswer) -> Iterator[Fix]:
    from vramcast.estimate.serving import verdict
    from vramcast.estimate.serving_changes import serving_changes

    needed, cache_short = found.fullest.needed_bytes, _cache_short(job, found) is not None
    held = found.capacity.concurrency if found.capacity else None
    for change in serving_changes(job, verdict=verdict):
        saved = needed - change.device_bytes
        more = held is not None and change.concurrency is not None and change.concurrency > held
        if not (saved > 0 or more or (change.fits and not found.fits)):
            continue
        values = {"device": size(change.device_bytes)}
        if change.concurrency is not None:
            values["sequences"] = f"{change.concurrency:,.1f}"
        key = "fix.change_holds" if "sequences" in values else "fix.change"
        yield Fix(
            action=Remark(key=key, values=values), setting=change.change, shown_by="serve", enough=change.fits,
            saves_bytes=saved if saved > 0 and not cache_short else None,  # a pool takes what is saved elsewhere
        )


def beside(case: Case, job: Computed) -> tuple[Remark, ...]:
    """The figures of the message beside the prediction."""
    predicted, figures = job.predicted, case.figures
    values = {"by": job.by, "device": size(predicted.device), "capacity": size(predicted.capacity)}
    remarks = [Remark(key=f"job.{predicted.verdict}", values=values)]
    if job.cache is not None:
        remarks = [job.cache]
    if figures.total and abs(figures.total - job.gpu_bytes) > OTHER_CARD * job.gpu_bytes:
        remarks.append(
            Remark(key="job.other_card", values={"total": size(figures.total), "capacity": size(job.gpu_bytes)})
        )
    if figures.allocated is not None and predicted.allocated >= GIB // 64:
        values = {"allocated": size(figures.allocated), "predicted": size(predicted.allocated)}
        ratio = (figures.allocated + (figures.tried or 0)) / predicted.allocated
        key = "job.less" if ratio < 1 - AS_PREDICTED else "job.more" if ratio > 1 + AS_PREDICTED else "job.agrees"
        remarks.append(Remark(key=key, values=values | {"tried": size(figures.tried or 0)}))
    return tuple(remarks)
