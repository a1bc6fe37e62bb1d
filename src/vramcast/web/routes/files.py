"""`/api/files`: the configuration files of the tools that run a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vramcast.domain.planning import PlanAnswer
from vramcast.errors import InvalidSpec
from vramcast.web.exchange import Asked, Refused, Sources, choice_field, refuse_others
from vramcast.web.routes import plan, serve, train

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.domain.job import Job
    from vramcast.domain.serving import PipelineJob, ServeJob

FIELDS: Final = ("command", "question", "formats")
COMMANDS: Final = ("train", "serve", "plan train", "plan serve")
MOST_FORMATS: Final = 40


def files(asked: Asked) -> dict[str, Any]:
    """The files that --write writes, and what is to be said of them."""
    from vramcast.emit.write import files_of

    fields = asked.fields
    refuse_others(fields, FIELDS)
    job, answer = planned(choice_field(fields, "command", COMMANDS, ""), question_of(fields), asked.sources)
    found, notes = files_of(job, _formats(fields.get("formats")), answer=answer)
    said = [asked.words.said(note) for note in notes]
    return {"schema": 1, "files": [{"name": file.name, "text": file.text} for file in found], "notes": said}


def question_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The question inside a body.

    Raises: Refused where there is none
    """
    question = fields.get("question", {})
    if not isinstance(question, dict):
        raise Refused(422, "InvalidSpec", "'question' must be an object of options")
    return question


def planned(command: str, question: Mapping[str, Any], sources: Sources) -> tuple[Job | ServeJob | PipelineJob, Answer]:
    """The plan of a question, or the best one that its search finds.

    Raises: InvalidSpec where the search finds none
    """
    if command == "train":
        return train.answered(question, sources)
    if command == "serve":
        if question.get("find") is not None:
            raise InvalidSpec("files are written of the plan that the options say; ask without find")
        return serve.job_of(question, sources), serve.answered(question, sources)
    search = plan.searched_training if command == "plan train" else plan.searched_serving
    found = search(question, sources)
    if found.job is None:
        raise InvalidSpec("nothing that was looked at fits, so there is no plan to write files of")
    return found.job, found.answer.plans[0] if isinstance(found.answer, PlanAnswer) else found.answer


def _formats(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    if not isinstance(names, list) or len(names) > MOST_FORMATS or not all(isinstance(name, str) for name in names):
        raise Refused(422, "InvalidSpec", "'formats' must be a list of names of formats, for example [\"deepspeed\"]")
    return tuple(names)
