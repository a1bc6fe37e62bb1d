"""Searches for deployments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from vramcast.api.jobs import question_of
from vramcast.domain.model import Model
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.serving import ServeJob
from vramcast.errors import Unsupported
from vramcast.question.build import Resolve
from vramcast.question.plan_serving import build_plan_serving
from vramcast.question.whole_command import serve_command
from vramcast.search.serving_plans import search


def planned_serving(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[PlanAnswer, ServeJob | None]:
    """A search for deployments on top of a job file, and one replica of what it leads to;
    `resolve` finds models in another way than usual, `progress` is told how many replicas were looked at."""
    given = question_of(options, file, "plan serve")
    asked = build_plan_serving(given.options, resolve=resolve or given.resolve)
    found, job = search(asked.space, asked.limits, asked.goal, top=asked.top, progress=progress)
    if job is not None and not isinstance(given.model, Model):
        try:
            found = replace(found, command=serve_command(job, given.options, given.model, found.labels[0]))
        except Unsupported as reason:
            found = replace(found, assumptions=(*found.assumptions, str(reason)))
    found = replace(found, assumptions=(*found.assumptions, *asked.assumptions))
    return given.noted(found), job
