"""`/api/train`: memory of one training plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from vramcast.domain.answer import Answer
from vramcast.domain.job import Job
from vramcast.question.options import OPTIONS
from vramcast.web.exchange import Asked, Sources
from vramcast.web.visitor import options_of, resolver


def train(asked: Asked) -> dict[str, Any]:
    """The document that `vramcast train --json` prints; its sentences and names in the language asked for."""
    from vramcast.report.document import document

    return document(asked.words.spoken(answered(asked.fields, asked.sources)[1]), today=date.today())


def answered(fields: Mapping[str, Any], sources: Sources) -> tuple[Job, Answer]:
    """The job of a visitor's question, and its answer."""
    from vramcast.api.jobs import job_of
    from vramcast.estimate.training import answer

    job = job_of(options_of(fields, OPTIONS), resolve=resolver(sources))
    return job, answer(job)
