"""Serving questions and their answers: memory, cache and concurrency of one deployment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast import search
from vramcast.api.jobs import question_of
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import InvalidSpec
from vramcast.estimate.serving import answer as serving_answer
from vramcast.question.amounts import headroom_of
from vramcast.question.build import Resolve
from vramcast.question.options import NO_SEARCH
from vramcast.question.serving import build_serving, goal_of


def serve_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> ServeAnswer:
    """The answer to a serving question on top of a job file: of its plan, or of the plan it asks to find."""
    asked = question_of(options, file, "serve")
    goal, job = goal_of(asked.options), build_serving(asked.options, resolve=resolve or asked.resolve)
    if goal is None and asked.options.get("headroom") is not None:
        raise InvalidSpec(NO_SEARCH)
    if goal is None or isinstance(job, PipelineJob):
        return asked.noted(serving_answer(job, with_changes=with_changes))

    cards, headroom = map(load_gpu, gpu_names()), headroom_of(asked.options)
    return asked.noted(search.serving.find(goal, job, cards=cards, headroom=headroom))


def serve_job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> ServeJob | PipelineJob:
    """The serving job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    asked = question_of(options, file, "serve")
    return build_serving(asked.options, resolve=resolve or asked.resolve)
