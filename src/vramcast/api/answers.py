"""Questions about one plan and their answers: of training, of serving, of reinforcement-learning post-training.

What only one of the commands needs is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vramcast import catalogue, domain, engines, estimate, question, search
from vramcast.api.jobs import question_of
from vramcast.domain.job import Job
from vramcast.errors import InvalidSpec
from vramcast.question.option import headroom_of
from vramcast.question.options import NO_SEARCH, OPTIONS, parse

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer, Found, PostTrainingAnswer, ServeAnswer
    from vramcast.domain.pipeline import DiffusionJob
    from vramcast.domain.post_training import PostTrainingJob
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.question.build import Resolve


def train_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> tuple[Job | DiffusionJob, Answer]:
    """A training question on top of a job file: the job, and its answer with what files of other tools said."""
    asked = question_of(options, file, "train")
    if question.build.trains_pipeline(asked.options):
        pipeline_job = question.diffusion.build_diffusion(asked.options)
        return pipeline_job, asked.noted(estimate.diffusion.answer(pipeline_job, with_changes=with_changes))
    job = question.build.build_job(asked.options, resolve=resolve or asked.resolve)
    return job, asked.noted(estimate.training.answer(job, with_changes=with_changes))


def job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> Job:
    """The training job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    asked = question_of(options, file, "train")
    return question.build.build_job(asked.options, resolve=resolve or asked.resolve)


def serve_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> ServeAnswer:
    """The answer to a serving question on top of a job file: of its plan, or of the plan it asks to find."""
    asked = question_of(options, file, "serve")
    goal = question.serving.goal_of(asked.options)
    job = question.serving.build_serving(asked.options, resolve=resolve or asked.resolve)
    if goal is None and asked.options.get("headroom") is not None:
        raise InvalidSpec(NO_SEARCH)
    if goal is None or isinstance(job, domain.serving.PipelineJob):
        return asked.noted(estimate.serving.answer(job, with_changes=with_changes))

    cards, headroom = map(catalogue.gpus.load_gpu, catalogue.gpus.gpu_names()), headroom_of(asked.options)
    return asked.noted(search.serving.find(goal, job, cards=cards, headroom=headroom))


def serve_job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> ServeJob | PipelineJob:
    """The serving job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    asked = question_of(options, file, "serve")
    return question.serving.build_serving(asked.options, resolve=resolve or asked.resolve)


def post_training_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> PostTrainingAnswer:
    """The answer to a question about post-training on top of a job file, with what files of other tools said."""
    asked = question_of(options, file, "rl")
    job = question.post_training.build_post_training(asked.options, resolve=resolve or asked.resolve)
    goal = asked.options.get("find")
    if goal is not None:
        named = [name for name, value in options.items() if value not in (None, ())]
        goal = str(parse("find", goal, question.tables.POST_TRAINING_OPTIONS))
        return asked.noted(search.post_training.find(goal, job, named))
    return asked.noted(estimate.post_training.answer(job, with_changes=with_changes))


def post_training_job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    found: Found | None = None,
) -> PostTrainingJob:
    """The question that options ask, on top of a job file.

    Args:
        found: of an inverse question, whose options win
    """
    words = iter(() if found is None or found.what is None else found.what.split())
    said = {word.removeprefix("--"): next(words, True) for word in words}
    options = {**{name: value for name, value in options.items() if name.replace("_", "-") not in said}, **said}
    asked = question_of(options, file, "rl")
    return question.post_training.build_post_training(asked.options, resolve=resolve or asked.resolve)


def failed_job(path: Path) -> Job | ServeJob | PipelineJob:
    """The job of a file, whether of `train` or of `serve`.

    Raises: VramcastError of the reading that got further
    """
    return serve_job_of({}, file=path) if asks_serve(path) else job_of({}, file=path)


def asks_serve(path: Path) -> bool:
    """Whether a job file asks `serve`: by its options or its engine.

    Raises: SourceError where it cannot be read
    """
    values, _ = question.files.read_document(path, largest=question.files.LARGEST_FILE)
    return isinstance(values, dict) and is_serving(values)


def is_serving(options: Mapping[Any, Any]) -> bool:
    """Whether options are those of a server: one that `train` has not, or the engine."""
    engine = options.get("engine")
    serves = isinstance(engine, str) and engine.partition("@")[0] in engines.serving.table.SERVING
    return serves or bool(set(options) & set(question.tables.SERVE_OPTIONS) - set(OPTIONS))


ANSWERS: Final[Mapping[str, Callable[..., Answer]]] = {
    "train": lambda options, **how: train_answer(options, **how)[1],
    "serve": serve_answer,
    "rl": post_training_answer,
}


def answer_to(command: str, options: Mapping[str, Any], **how: Any) -> Answer:
    """The answer to a question of a command.

    Args:
        how: as `train_answer` has it: file, resolve, with_changes
    """
    return ANSWERS[command](options, **how)
