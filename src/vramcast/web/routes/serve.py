"""`/api/serve`: memory, KV capacity and concurrency of one serving plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from vramcast.domain.answer import ServeAnswer
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.question.serving_options import SERVE_OPTIONS
from vramcast.web.exchange import Asked, Sources
from vramcast.web.visitor import options_of, resolver


def serve(asked: Asked) -> dict[str, Any]:
    """The document that `vramcast serve --json` prints; its sentences and names in the language asked for."""
    from vramcast.report.document import document

    return document(asked.words.spoken(answered(asked.fields, asked.sources)), today=date.today())


def answered(fields: Mapping[str, Any], sources: Sources) -> ServeAnswer:
    """The answer to a visitor's question."""
    from vramcast.api.jobs import serve_answer

    return serve_answer(options_of(fields, SERVE_OPTIONS), resolve=resolver(sources))


def job_of(fields: Mapping[str, Any], sources: Sources) -> ServeJob | PipelineJob:
    """The job of a visitor's question."""
    from vramcast.api.jobs import serve_job_of

    return serve_job_of(options_of(fields, SERVE_OPTIONS), resolve=resolver(sources))
