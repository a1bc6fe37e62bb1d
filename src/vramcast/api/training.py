"""Training questions and their answers: memory, time and price of one plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast import estimate
from vramcast.api.jobs import question_of
from vramcast.domain.answer import Answer
from vramcast.domain.job import Job
from vramcast.domain.pipeline import DiffusionJob
from vramcast.estimate.training import answer as training_answer
from vramcast.question.build import Resolve, build_job
from vramcast.question.diffusion import build_diffusion, trains_pipeline


def train_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> tuple[Job | DiffusionJob, Answer]:
    """A training question on top of a job file: the job, and its answer with what files of other tools said."""
    asked = question_of(options, file, "train")
    if trains_pipeline(asked.options):
        pipeline_job = build_diffusion(asked.options)
        return pipeline_job, asked.noted(estimate.diffusion.answer(pipeline_job, with_changes=with_changes))
    job = build_job(asked.options, resolve=resolve or asked.resolve)
    return job, asked.noted(training_answer(job, with_changes=with_changes))


def job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> Job:
    """The training job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    asked = question_of(options, file, "train")
    return build_job(asked.options, resolve=resolve or asked.resolve)
