"""`vramcast.train`: memory, time and price of one training plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.api.jobs import by_option, paths, question_of
from vramcast.domain.answer import Answer
from vramcast.domain.job import Job
from vramcast.domain.model import Model
from vramcast.estimate.training import answer as training_answer
from vramcast.question.build import Resolve, build_job
from vramcast.question.options import OPTIONS

if TYPE_CHECKING:
    from vramcast.report.notebook import ShownAnswer


def train(
    model: str | Model | None = None, *, gpus: str | None = None, file: str | Path | None = None,
    from_: str | Path | Sequence[str | Path] = (), **options: Any,
) -> ShownAnswer:
    """Memory of one training plan.

    Args:
        model: catalogue name, path, hub id, importable description, or None with params, layers and hidden
        gpus: "8xh100-sxm-80gb", "2x8xa100-sxm-80gb", "t4"
        file: a job file; arguments given here win over it
        from_: configuration files of other tools: a ds_config.json, Megatron's arguments ...; arguments win over them.
            What they say and nobody here understands is refused by its name; ignore_unread=True leaves it out instead,
            and `ignored` of the answer says it
        options: those of `vramcast train --help`, with underscores: seq_len=8192, micro_batch=2, tp=4

    Returns: the answer; it shows itself in a notebook
    Raises: VramcastError of one sentence when the question cannot be answered

    >>> answer = train("llama-3.2-1b", gpus="h100", engine="megatron", seq_len=1024)
    >>> answer.fits
    True
    """
    from vramcast.report.notebook import shown

    return shown(train_answer({"model": model, "gpus": gpus, "from": paths(from_)} | by_option(options), file=file)[1])


def train_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> tuple[Job, Answer]:
    """A training question on top of a job file: the job, and its answer with what files of other tools said."""
    asked = question_of(options, file, OPTIONS, command="train")
    job = build_job(asked.options, resolve=resolve or asked.resolve)
    return job, asked.noted(training_answer(job, with_changes=with_changes))


def job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> Job:
    """The training job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    asked = question_of(options, file, OPTIONS, command="train")
    return build_job(asked.options, resolve=resolve or asked.resolve)
