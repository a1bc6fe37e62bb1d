"""Questions about reinforcement-learning post-training and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast import search
from vramcast.api.jobs import question_of
from vramcast.domain.answer import Found, PostTrainingAnswer
from vramcast.domain.post_training import PostTrainingJob
from vramcast.estimate.post_training import answer
from vramcast.question.build import Resolve
from vramcast.question.options import parse
from vramcast.question.post_training import build_post_training
from vramcast.question.post_training_options import POST_TRAINING_OPTIONS


def post_training_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> PostTrainingAnswer:
    """The answer to a question about post-training on top of a job file, with what files of other tools said."""
    asked = question_of(options, file, "rl")
    job, goal = build_post_training(asked.options, resolve=resolve or asked.resolve), asked.options.get("find")
    if goal is not None:
        named = [name for name, value in options.items() if value not in (None, ())]
        return asked.noted(search.post_training.find(str(parse("find", goal, POST_TRAINING_OPTIONS)), job, named))
    return asked.noted(answer(job, with_changes=with_changes))


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
    return build_post_training(asked.options, resolve=resolve or asked.resolve)
