"""Questions and their answers: plans and searches, each as JSON or as the files that run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec

from vramcast import formats
from vramcast.api import planned_serving, planned_training, serve_answer, serve_job_of, train_answer
from vramcast.domain.answer import Answer
from vramcast.domain.job import Job
from vramcast.domain.pipeline import DiffusionJob
from vramcast.domain.planning import PlanAnswer, Point, Progress
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import InvalidSpec
from vramcast.report.document import document, plain, plan_document
from vramcast.web.exchange import TOLD_EVERY_SECONDS, Asked, Looked, Refused, Sources, choice_field, refuse_others
from vramcast.web.visitor import options_of, resolver

FILES_FIELDS: Final = ("command", "question", "formats")
MOST_FORMATS: Final = 40


class Found(NamedTuple):
    """What a question came to."""

    answer: PlanAnswer | Answer  # of an inverse question the plan it found
    job: Job | ServeJob | PipelineJob | DiffusionJob | None  # to run; None where nothing fits or nothing was looked for


def _train(fields: Mapping[str, Any], sources: Sources, _: Looked | None = None) -> Found:
    job, found = train_answer(options_of(fields, "train"), resolve=resolver(sources))
    return Found(found, job)


def _serve(fields: Mapping[str, Any], sources: Sources, _: Looked | None = None) -> Found:
    return Found(serve_answer(options_of(fields, "serve"), resolve=resolver(sources)), None)


def _progress(looked: Looked | None) -> Progress | None:
    """What tells a visitor how far a search is, now and then."""
    if looked is None:
        return None
    told = monotonic()

    def progress(number: int, front: tuple[Point, ...]) -> None:
        nonlocal told
        if monotonic() - told >= TOLD_EVERY_SECONDS:
            looked(msgspec.json.encode({"looked": number, "front": plain(front)}))
            told = monotonic()

    return progress


def _plan_train(fields: Mapping[str, Any], sources: Sources, looked: Looked | None = None) -> Found:
    options, progress = options_of(fields, "plan train"), _progress(looked)
    return Found(*planned_training(options, resolve=resolver(sources), progress=progress))


def _plan_serve(fields: Mapping[str, Any], sources: Sources, looked: Looked | None = None) -> Found:
    options, progress = options_of(fields, "plan serve"), _progress(looked)
    return Found(*planned_serving(options, resolve=resolver(sources), progress=progress))


PLANS: Final[dict[str, Callable[..., Found]]] = {
    "train": _train, "serve": _serve, "plan train": _plan_train, "plan serve": _plan_serve,
}
"""Command -> what it comes to for a visitor's question: of its fields, where models may come from, who is told."""


def _route(command: str) -> Callable[[Asked], dict[str, Any]]:
    """What answers with the document of a command."""

    def answered(asked: Asked) -> dict[str, Any]:
        found = asked.words.spoken(PLANS[command](asked.fields, asked.sources, asked.looked).answer)
        if isinstance(found, PlanAnswer):
            return plan_document(found, asked.words, today=date.today())
        return document(found, today=date.today())

    answered.__doc__ = (
        f"The document that `vramcast {command} --json` prints; its sentences and names in the language asked for."
    )
    return answered


train, serve, plan_train, plan_serve = map(_route, PLANS)


def files(asked: Asked) -> dict[str, Any]:
    """The files that --write writes, and what is to be said of them."""
    fields = asked.fields
    refuse_others(fields, FILES_FIELDS)
    command = choice_field(fields, "command", tuple(PLANS), "")
    job, answer = _planned(command, question_in(fields), asked.sources)
    found, notes = formats.write.files_of(job, _formats(fields.get("formats")), answer=answer)
    said = [asked.words.said(note) for note in notes]
    return {"schema": 1, "files": [{"name": file.name, "text": file.text} for file in found], "notes": said}


def question_in(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The question inside a body.

    Raises: Refused where there is none
    """
    question = fields.get("question", {})
    if not isinstance(question, dict):
        raise Refused(422, "InvalidSpec", "'question' must be an object of options")
    return question


def _planned(
    command: str, question: Mapping[str, Any], sources: Sources
) -> tuple[Job | ServeJob | PipelineJob | DiffusionJob, Answer]:
    """The plan of a question, or the best one that its search finds.

    Raises: InvalidSpec where the search finds none
    """
    job: Job | ServeJob | PipelineJob | DiffusionJob | None = None
    if command == "serve":
        if question.get("find") is not None:
            raise InvalidSpec("files are written of the plan that the options say; ask without find")
        job = serve_job_of(options_of(question, command), resolve=resolver(sources))
    found = PLANS[command](question, sources)
    job = job or found.job
    if job is None:
        raise InvalidSpec("nothing that was looked at fits, so there is no plan to write files of")
    return job, found.answer.plans[0] if isinstance(found.answer, PlanAnswer) else found.answer


def _formats(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    if not isinstance(names, list) or len(names) > MOST_FORMATS or not all(isinstance(name, str) for name in names):
        raise Refused(422, "InvalidSpec", "'formats' must be a list of names of formats, for example [\"deepspeed\"]")
    return tuple(names)
