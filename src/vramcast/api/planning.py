"""Searches for training plans.

Searches for deployments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from vramcast.api.answers import train_answer
from vramcast.api.jobs import question_of
from vramcast.catalogue.models import text_decoders
from vramcast.domain.answer import Answer
from vramcast.domain.job import Job
from vramcast.domain.model import Model
from vramcast.domain.planning import PlanAnswer, Progress
from vramcast.domain.serving import ServeJob
from vramcast.errors import Note, Unsupported, VramcastError
from vramcast.question.build import Resolve
from vramcast.question.plan_serving import build_plan_serving
from vramcast.question.planning import PlanQuestion, build_inverse, build_planning, cluster_of_best, goal_of, job_of
from vramcast.question.whole_command import serve_command, train_command
from vramcast.search.serving_plans import search
from vramcast.search.techniques import explained, unsearched
from vramcast.units import format_bytes, format_seconds


class Planned(NamedTuple):
    """What a search came to."""

    answer: PlanAnswer | Answer
    job: Job | None  # the plan to run; None where none fits or none was looked for


def planned_training(
    options: Mapping[str, Any], *, file: str | Path | None = None,
    progress: Progress | None = None, before: Callable[[Sequence[str]], None] | None = None,
    resolve: Resolve | None = None,
) -> Planned:
    """A search for training plans on top of a job file, or the inverse question it asks; and the plan it leads to.

    Args:
        options: as of `vramcast plan train`
        file: a job file
        progress: told meanwhile how far the search is
        before: told which engines will be looked at, before any work: what it raises ends it
        resolve: finds models in another way than usual
    """
    given = question_of(options, file, "plan train")
    merged, resolve = given.options, resolve or given.resolve
    goal = goal_of(merged)
    if goal is not None:
        planned = _found(goal, merged, resolve, before)
    else:
        asked = build_planning(merged, resolve=resolve)
        if before is not None:
            before(asked.space.engines)
        planned = _searched(asked, progress)
    planned = _with_command(planned, merged | {"model": given.model})
    own = _own_plan(options, planned.answer) if goal is None else ()
    noted = replace(given, assumptions=(*given.assumptions, *own)).noted(planned.answer)
    return planned._replace(answer=noted)


def _own_plan(options: Mapping[str, Any], found: PlanAnswer | Answer) -> tuple[str, ...]:
    """The plan that files of other tools have themselves, on the machines of the winner, in one line."""
    best = (found.plans or (found.nearest_failing,))[0] if isinstance(found, PlanAnswer) else None
    if best is None or not any(options.get(name) for name in ("from", "from-command")):
        return ()
    gpus = best.question["gpus"]
    same = ("model", "seq-len", "hardware", "from", "from-command", "from-format", "ignore-unread")
    try:
        _, own = train_answer({name: options[name] for name in same if name in options} | {"gpus": gpus},
                              with_changes=False)
    except VramcastError as reason:
        return (Note("the file's own plan is not possible on {}: {}", gpus, reason),)
    size = Note("{} of {} per GPU", format_bytes(own.fullest.needed_bytes), format_bytes(own.capacity_bytes))
    step = Note(", {} a step", format_seconds(own.time.step_s)) if own.time is not None else ""
    rate = Note(", {:,.0f} tokens/s", own.time.tokens_per_s) if own.time is not None else ""
    return (Note("the file's own plan on {}: {}, {}{}{}", gpus, Note(str(own.verdict)), size, step, rate),)


def _with_command(planned: Planned, options: Mapping[str, Any]) -> Planned:
    """The same with the whole command of its plan; a network that only Python has cannot be named in one."""
    answer, job = planned
    if job is None or isinstance(options.get("model"), Model):
        return planned
    found = None if isinstance(answer, PlanAnswer) else answer.found
    named = options.get("model")
    if named is None and options.get("params") is None:
        named = job.model.name  # of an inverse question that looked for it
    try:
        command, said = train_command(job, options, named), tuple[str, ...]()
    except Unsupported as reason:
        command, said = "", (str(reason),)
    answer = replace(answer, assumptions=(*answer.assumptions, *said))
    if found is None:
        return planned._replace(answer=replace(answer, command=command))
    return planned._replace(answer=replace(answer, found=replace(found, command=command)))


def _found(
    goal: str, options: Mapping[str, Any], resolve: Resolve, before: Callable[[Sequence[str]], None] | None
) -> Planned:
    from vramcast.search.inverse import choose

    asked = build_inverse(options, resolve=resolve, models=text_decoders)
    if before is not None:
        before(asked.engines or (asked.job.engine,))
    job, answer = choose(goal, asked)
    return Planned(answer, job if answer.found is not None and answer.found.what is not None else None)


def _searched(asked: PlanQuestion, progress: Progress | None) -> Planned:
    """A search, or only how techniques do where no plans are asked for."""
    if asked.top:
        _require_numpy()
        from vramcast.search.training.search import search

        found = search(asked.space, asked.limits, asked.goal, top=asked.top, progress=progress)
    else:
        found = unsearched(asked.space, asked.goal)
    found = explained(found, asked.space, asked.limits, cluster_of_best(asked.space, found))
    found = replace(found, assumptions=(*found.assumptions, *asked.assumptions))
    if not found.plans:
        return Planned(found, None)
    return Planned(found, replace(job_of(asked.space, found.plans[0]), run_tokens=asked.limits.run_tokens))


def _require_numpy() -> None:
    """Raise Unsupported, which says what to install, where NumPy is missing; nobody installs anything in a browser."""
    try:
        import_module("numpy")
    except ImportError:
        if sys.platform == "emscripten":
            raise Unsupported(
                "a search over training plans needs NumPy, which this page does not have; ask the command line"
            ) from None
        raise Unsupported("a search over training plans needs NumPy: pip install 'vramcast[search]'") from None


def planned_serving(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    progress: Progress | None = None,
) -> tuple[PlanAnswer, ServeJob | None]:
    """A search for deployments on top of a job file, and one replica of what it leads to;
    `resolve` finds models in another way than usual, `progress` is told meanwhile how far the search is."""
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
