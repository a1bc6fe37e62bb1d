"""`/api/report`: an answer as one file to keep or send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from vramcast.report.messages import LANGUAGES
from vramcast.web.exchange import Asked, Reply, Sources, choice_field, refuse_others
from vramcast.web.routes import oom, plan, serve, train
from vramcast.web.routes.files import question_of
from vramcast.web.routes.written import TYPES, written

FIELDS: Final = ("command", "question", "format", "lang")

ANSWERS: Final[dict[str, Callable[[Mapping[str, Any], Sources], Any]]] = {
    "train": lambda question, sources: train.answered(question, sources)[1],
    "serve": serve.answered,
    "plan train": lambda question, sources: plan.searched_training(question, sources).answer,
    "plan serve": lambda question, sources: plan.searched_serving(question, sources).answer,
    "oom": oom.diagnosed,
}
"""Command -> its answer; the question of "oom" is what `/api/oom` takes."""


def report(asked: Asked) -> Reply:
    """The file that --report writes."""
    from vramcast.question.whole_command import question_command

    fields = asked.fields
    refuse_others(fields, FIELDS)
    command, shape = choice_field(fields, "command", tuple(ANSWERS), ""), choice_field(fields, "format", TYPES, "html")
    language, question = choice_field(fields, "lang", LANGUAGES, "en"), question_of(fields)
    answer = ANSWERS[command](question, asked.sources)
    typed = "" if command == "oom" else question_command(command, question)
    return written(command, answer, shape, language, asked=typed)
