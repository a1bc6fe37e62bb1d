"""Options, by whatever way they were given, turned into a job and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from vramcast.domain.job import Job
from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec
from vramcast.question.configs.paths import is_script

if TYPE_CHECKING:
    from vramcast.domain.answer import ServeAnswer
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.estimate.cost import AnswerT
    from vramcast.question.build import Resolve
    from vramcast.question.configs.readers import Given
    from vramcast.question.options import Option


def by_option(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the tables of options name them."""
    return {name.replace("_", "-"): value for name, value in keywords.items()}


def noted(answer: AnswerT, said: Given) -> AnswerT:
    """An answer with what configuration files said."""
    return replace(
        answer, assumptions=(*said.assumptions, *answer.assumptions), warnings=(*said.warnings, *answer.warnings)
    )


def serve_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> ServeAnswer:
    """The answer to a serving question on top of a job file: of its plan, or of the plan it asks to find."""
    from vramcast.domain.serving import PipelineJob
    from vramcast.question.options import NO_SEARCH
    from vramcast.question.serving import build_serving, goal_of
    from vramcast.question.serving_options import SERVE_OPTIONS

    merged, found = question_of(options, file, SERVE_OPTIONS)
    goal, job = goal_of(merged), build_serving(merged, resolve=resolve or found)
    if goal is None and merged.get("headroom") is not None:
        raise InvalidSpec(NO_SEARCH)
    if goal is None or isinstance(job, PipelineJob):
        from vramcast.estimate.serving import answer

        return answer(job, with_changes=with_changes)
    from vramcast.catalogue.gpus import gpu_names, load_gpu
    from vramcast.question.amounts import headroom_of
    from vramcast.search.serving import find

    return find(goal, job, cards=map(load_gpu, gpu_names()), headroom=headroom_of(merged))


def job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> Job:
    """The training job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    from vramcast.question.build import build_job
    from vramcast.question.options import OPTIONS

    merged, found = question_of(options, file, OPTIONS)
    return build_job(merged, resolve=resolve or found)


def serve_job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> ServeJob | PipelineJob:
    """The serving job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    from vramcast.question.serving import build_serving
    from vramcast.question.serving_options import SERVE_OPTIONS

    merged, found = question_of(options, file, SERVE_OPTIONS)
    return build_serving(merged, resolve=resolve or found)


def question_of(
    options: Mapping[str, Any], file: str | Path | None, table: Mapping[str, Option]
) -> tuple[dict[str, Any], Resolve]:
    """The options over those of a job file, and what turns a model's name into the model."""
    from vramcast.domain.checkpoint import Checkpoint
    from vramcast.sources.resolve import resolve_checkpoint

    merged: dict[str, Any] = {}
    if file is not None:
        from vramcast.question.files import read_job

        merged |= read_job(Path(file), table)
    merged |= {name: value for name, value in options.items() if value is not None}
    model = merged.get("model")
    if isinstance(model, Model):
        return merged | {"model": model.name}, lambda _: Checkpoint(model=model)

    def resolve(text: str) -> Checkpoint:
        if is_script(text):
            from vramcast.question.configs.merged import script_checkpoint

            return script_checkpoint(text)
        return resolve_checkpoint(text)

    return merged, resolve
