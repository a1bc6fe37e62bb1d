"""Copies of a question's own files that say what makes it fit; each is read back before it is written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vramcast import formats
from vramcast.api.answers import job_of, serve_job_of
from vramcast.api.jobs import question_of
from vramcast.domain.answer import Answer, Change
from vramcast.domain.job import Job
from vramcast.domain.serving import ServeJob
from vramcast.errors import InvalidSpec, Note, SourceError, Unsupported, VramcastError
from vramcast.estimate.serving import answer as serving_answer
from vramcast.estimate.training import answer as training_answer
from vramcast.formats.paths import configs_in
from vramcast.question.option import table_of
from vramcast.question.options import applied_in
from vramcast.sources.files import write_whole


class Fixed(NamedTuple):
    """A change that makes a plan fit, in the user's own files."""

    change: Change
    files: tuple[Path, ...]  # that were written


def write_fixed(options: Mapping[str, Any], answer: Answer, *, command: str, force: bool = False) -> Fixed:
    """Write a copy of each file of a question that says the first change that makes it fit, beside the file.

    Args:
        options: of the question, as given by name
        answer: to it
        command: "train" or "serve"
        force: overwrite copies that are there

    Raises: InvalidSpec where there is nothing to change, Unsupported where the files cannot say any change that helps,
        SourceError where copies are there already or cannot be written
    """
    paths = [Path(path) for path in configs_in({name: value for name, value in options.items() if value}).paths]
    if not paths:
        raise InvalidSpec("--fix changes a copy of the file that --from names; give --from FILE")
    change, texts = fitting_texts(options, answer, paths, command)
    return Fixed(change, tuple(_written(texts, force=force)))


def fitting_texts(
    options: Mapping[str, Any], answer: Answer, paths: list[Path], command: str
) -> tuple[Change, dict[Path, str]]:
    """The first change that makes a plan fit and that its files can say, and what each of them says with it.

    Raises: InvalidSpec where there is nothing to change, Unsupported where the files cannot say any change that helps
    """
    if answer.fits:
        raise InvalidSpec("it fits as it is; leave --fix out")
    reasons: list[str] = []
    fitting = [change for change in answer.changes if change.fits]
    for change in fitting:
        try:
            return change, _texts(options, change, paths, command)
        except VramcastError as reason:
            reasons.append(Note("{}: {}", change.change, reason))
    if not reasons:
        raise Unsupported("no change makes it fit, so no file says one; use more or larger GPUs")
    raise Unsupported("no change that makes it fit can be said in these files: {}", reasons[0])


def _texts(options: Mapping[str, Any], change: Change, paths: list[Path], command: str) -> dict[Path, str]:
    """What the files say with the change.

    Raises: VramcastError where they cannot say it, or do not come to what it promises
    """
    applied = applied_in(change.change, table_of(command))
    if applied is None:
        raise Unsupported("is no option of a file")
    asked = question_of(options, None, command)
    before, after = (_job(found, command) for found in (
        asked.options, {**asked.options, **applied}))
    texts = {path: text for path in paths if (text := formats.fix.fixed(path, command, before, after)) is not None}
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            (Path(folder) / path.name).write_text(texts.get(path) or path.read_text(encoding="utf-8"), encoding="utf-8")
        again = {**options, "from": tuple(str(Path(folder) / path.name) for path in paths)}
        found = _answer(_job(question_of(again, None, command).options, command))
    if found.fullest.needed_bytes != change.device_bytes or not found.fits:
        raise Unsupported("the files have no words for it")
    return texts


def _job(options: Mapping[str, Any], command: str) -> Job | ServeJob:
    given = {name: value for name, value in options.items() if value is not None}
    if command == "train":
        return job_of(given)
    job = serve_job_of(given)
    assert isinstance(job, ServeJob)  # no file is of a pipeline
    return job


def _answer(job: Job | ServeJob) -> Answer:
    return training_answer(job, with_changes=False) if isinstance(job, Job) else serving_answer(job, with_changes=False)


def _written(texts: Mapping[Path, str], *, force: bool) -> list[Path]:
    copies = {path.with_name(f"{path.stem}.fixed{path.suffix}"): text for path, text in texts.items()}
    there = [copy.name for copy in copies if copy.exists()]
    if there and not force:
        raise SourceError("{}: there already; --force overwrites", ", ".join(there))
    for copy, text in copies.items():
        write_whole(copy, text)
    return list(copies)
