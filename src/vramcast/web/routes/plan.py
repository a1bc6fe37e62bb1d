"""`/api/plan/train` and `/api/plan/serve`: searches for plans."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramcast.domain.planning import PlanAnswer
from vramcast.question.plan_options import PLAN_OPTIONS
from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS
from vramcast.web.exchange import Asked, Sources
from vramcast.web.visitor import options_of, resolver

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.domain.job import Job
    from vramcast.domain.serving import ServeJob
    from vramcast.report.messages import Words

ALWAYS: Final = ("model",)


class Found(NamedTuple):
    """What a search came to."""

    answer: PlanAnswer | Answer  # of an inverse question the plan it found
    job: Job | ServeJob | None  # to run; None where nothing fits or nothing was looked for


def plan_train(asked: Asked) -> dict[str, Any]:
    """The document that `vramcast plan train --json` prints; its sentences and names in the language asked for."""
    return documented(searched_training(asked.fields, asked.sources).answer, asked.words)


def plan_serve(asked: Asked) -> dict[str, Any]:
    """The document that `vramcast plan serve --json` prints; its sentences and names in the language asked for."""
    return documented(searched_serving(asked.fields, asked.sources).answer, asked.words)


def documented(found: PlanAnswer | Answer, words: Words) -> dict[str, Any]:
    """The document of a search, or of an inverse question."""
    found = words.spoken(found)
    if isinstance(found, PlanAnswer):
        from vramcast.report.plan_document import plan_document

        return plan_document(found, words, today=date.today())
    from vramcast.report.document import document

    return document(found, today=date.today())


def searched_training(fields: Mapping[str, Any], sources: Sources) -> Found:
    """A visitor's search for training plans."""
    from vramcast.api.planning import planned_training

    found = planned_training(options_of(fields, PLAN_OPTIONS, ALWAYS), resolve=resolver(sources))
    return Found(found.answer, found.job)


def searched_serving(fields: Mapping[str, Any], sources: Sources) -> Found:
    """A visitor's search for deployments."""
    from vramcast.api.planning import planned_serving

    return Found(*planned_serving(options_of(fields, PLAN_SERVE_OPTIONS, ALWAYS), resolve=resolver(sources)))
