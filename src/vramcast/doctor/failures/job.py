"""A failure beside the job that failed: what `train` or `serve` predicts of it, and what every technique would save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from vramcast.doctor.failures.case import Case, Predicted, size
from vramcast.domain.answer import Answer
from vramcast.domain.failure import Fix
from vramcast.domain.job import Job
from vramcast.domain.reconciliation import Remark
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.units import GIB

if TYPE_CHECKING:
    from vramcast.estimate.serving import Verdict

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


def computed(job: Job | ServeJob | PipelineJob) -> Computed:
    """The prediction of a job and what techniques would save of it.

    Raises: VramcastError of one sentence when the question cannot be answered
    """
    if isinstance(job, Job):
        from vramcast.estimate.training import answer

        found: Answer = answer(job, with_changes=False)
        fixes = tuple(_training_fixes(job, found.fullest.needed_bytes))
    else:
        from vramcast.estimate.serving import answer as serving_answer

        found = serving_answer(job, with_changes=False)
        fixes = tuple(_serving_fixes(job, found)) if isinstance(job, ServeJob) else ()
    rank = found.fullest
    highest = rank.phases[rank.highest_phase]
    predicted = Predicted(
        fits=found.fits, device=rank.needed_bytes, allocated=highest.allocated_bytes, reserved=highest.reserved_bytes,
        capacity=found.capacity_bytes,
    )
    by = "train" if isinstance(job, Job) else "serve"
    return Computed(predicted, by, tuple(sorted(fixes, key=lambda fix: not fix.enough)), job.cluster.gpu.visible_bytes)


def _training_fixes(job: Job, needed_bytes: int) -> Iterator[Fix]:
    from vramcast.search.techniques import techniques

    for row in techniques(job).techniques:
        saved = needed_bytes - row.device_bytes  # less than the table says where the job has the technique already
        if saved > 0 and row.against == job.engine and row.change:
            action = Remark(key="fix.technique", values={"technique": row.name, "device": size(row.device_bytes)})
            yield Fix(action=action, setting=row.change, saves_bytes=saved, shown_by="train", enough=row.fits)


def _outcome(job: ServeJob) -> Verdict:
    """What a changed plan comes to; what does not fit is needed exactly too, since it is subtracted."""
    from vramcast.estimate.serving import answer, verdict

    found = verdict(job)
    if found.needed_bytes <= job.cluster.gpu.visible_bytes:
        return found
    return found._replace(needed_bytes=answer(job, with_changes=False).fullest.needed_bytes)


def _serving_fixes(job: ServeJob, found: Answer) -> Iterator[Fix]:
    from vramcast.estimate.serving_changes import serving_changes

    needed = found.fullest.needed_bytes
    for change in serving_changes(job, verdict=_outcome):
        saved = needed - change.device_bytes
        if saved > 0 or (change.fits and not found.fits):
            action = Remark(key="fix.change", values={"device": size(change.device_bytes)})
            yield Fix(
                action=action, setting=change.change, saves_bytes=saved if saved > 0 else None, shown_by="serve",
                enough=change.fits,
            )


def beside(case: Case, job: Computed) -> tuple[Remark, ...]:
    """The figures of the message beside the prediction."""
    predicted, figures = job.predicted, case.figures
    values = {"by": job.by, "device": size(predicted.device), "capacity": size(predicted.capacity)}
    remarks = [Remark(key="job.fits" if predicted.fits else "job.does_not_fit", values=values)]
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
