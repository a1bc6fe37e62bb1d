"""Failures and recordings, explained as JSON, and every answer as a report to keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.api import job_of, serve_job_of
from vramcast.api.answers import is_serving
from vramcast.api.recordings import replayed
from vramcast.doctor.failures.diagnose import Given, diagnosed_recording, diagnosed_text
from vramcast.domain.failure import Diagnosis
from vramcast.domain.job import Job
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.domain.snapshot import Snapshot
from vramcast.errors import InvalidSpec
from vramcast.question.option import parse_bytes
from vramcast.question.whole_command import question_command
from vramcast.recordings.examine import Asked as LookAt
from vramcast.report.failure import diagnosis_document
from vramcast.report.messages import LANGUAGES, Words
from vramcast.report.replay import about
from vramcast.report.replay_document import replay_document
from vramcast.report.replay_page import page
from vramcast.report.written import report_of
from vramcast.sources.snapshots import snapshot_of
from vramcast.web.exchange import (
    BYTES,
    HTML,
    LARGEST_UNPACKED,
    MARKDOWN,
    Asked,
    Refused,
    Reply,
    Sources,
    choice_field,
    fields_of,
    refuse_others,
    text_field,
)
from vramcast.web.routes.answers import PLANS, question_in
from vramcast.web.visitor import options_of, resolver

FORMATS: Final = ("json", "html", "md")
REPORTS: Final[dict[str, str]] = {"html": HTML, "md": MARKDOWN}
"""Format of a report -> its content type."""
OOM_FIELDS: Final = ("text", "job", "checks", "lang")
REPORT_FIELDS: Final = ("command", "question", "format", "lang")
MOST_TOP: Final = 1000
MOST_DEVICE: Final = 1 << 16
LONGEST_NAME: Final = 120
UNNAMED: Final = "recording"
NO_OPTIONS: Final = "'job' must be an object of options"


def report(asked: Asked) -> Reply:
    """The file that --report writes."""
    fields = asked.fields
    refuse_others(fields, REPORT_FIELDS)
    command = choice_field(fields, "command", (*PLANS, "oom"), "")
    shape = choice_field(fields, "format", REPORTS, "html")
    language, question = choice_field(fields, "lang", LANGUAGES, "en"), question_in(fields)
    if command == "oom":  # its question is what /api/oom takes
        return _written(command, _diagnosed_text(question, asked.sources), shape, language)
    answer = PLANS[command](question, asked.sources).answer
    return _written(command, answer, shape, language, typed=question_command(command, question))


def _written(command: str, answer: Any, shape: str, language: str, *, typed: str = "") -> Reply:
    """The report as a file to save; `typed`: the command line that asks the question."""
    text = report_of(command, answer, shape, language, asked=typed)
    name = f'attachment; filename="vramcast-{command.replace(" ", "-")}.{shape}"'
    return Reply(200, REPORTS[shape], text.encode(), (("content-disposition", name),))


def oom(asked: Asked) -> dict[str, Any] | Reply:
    """The document that `vramcast oom --json` prints, its sentences in the language asked for; or its report."""
    shape, fields = choice_field(asked.query, "format", FORMATS, "json"), asked.query
    if asked.content_type == BYTES:
        found = _diagnosed_recording(asked)
    else:
        fields = asked.fields
        found = _diagnosed_text(fields, asked.sources)
    lang = choice_field(fields, "lang", LANGUAGES, asked.words.language)
    return diagnosis_document(found, Words(lang)) if shape == "json" else _written("oom", found, shape, lang)


def _diagnosed_recording(asked: Asked) -> Diagnosis:
    """The diagnosis of the recording that the body holds; its job stands in the address, as JSON."""
    options, text = None, asked.query.get("job", "")
    if text:
        try:
            options = fields_of(text.encode())
        except Refused:
            raise Refused(422, "InvalidSpec", NO_OPTIONS) from None
    job = _failed_job(options, asked.sources)  # refused before anything is read
    recording = _recording(asked)
    return diagnosed_recording(recording, Given(job=job, snapshot=recording, every_check=asked.flag("checks")))


def _diagnosed_text(fields: Mapping[str, Any], sources: Sources) -> Diagnosis:
    """The diagnosis of a visitor's text, with the job that failed where it is given."""
    refuse_others(fields, OOM_FIELDS)
    text, checks = text_field(fields, "text"), fields.get("checks", False)
    if not isinstance(checks, bool):
        raise Refused(422, "InvalidSpec", "'checks' must be true or false")
    return diagnosed_text(text, Given(job=_failed_job(fields.get("job"), sources), every_check=checks))


def _failed_job(options: Any, sources: Sources) -> Job | ServeJob | PipelineJob | None:
    """The job that failed, of training or of serving as its options tell."""
    if options is None:
        return None
    if not isinstance(options, dict):
        raise Refused(422, "InvalidSpec", NO_OPTIONS)
    if is_serving(options):
        return serve_job_of(options_of(options, "serve"), resolve=resolver(sources))
    return job_of(options_of(options, "train"), resolve=resolver(sources))


def replay(asked: Asked) -> dict[str, Any] | Reply:
    """The document that `vramcast replay --json` prints, the page that --html writes, or --report's Markdown."""
    query, words = asked.query, asked.words
    shape = choice_field(query, "format", FORMATS, "json")
    device = number(query.get("device", ""), "device", most=MOST_DEVICE)
    look_at = LookAt(
        top=number(query.get("top", ""), "top", least=1, most=MOST_TOP) or 10,
        leaks=asked.flag("leaks"),
        confs=tuple(filter(None, (query.get("alloc-conf"),))),
        all_confs=asked.flag("all-confs"),
        capacity_bytes=parse_bytes("capacity", query["capacity"]) if query.get("capacity") else None,
    )
    found = replayed(_recording(asked), look_at, device=device)
    if shape == "html":
        return Reply(200, HTML, page(found.devices, words, top=look_at.top).encode())
    if shape == "md":
        return _written("replay", found, shape, words.language)
    plain = replay_document(found.devices, top=look_at.top, blocks=asked.flag("blocks"))
    for device, shown in zip(plain["devices"], found.devices, strict=True):
        device["about"] = list(about(shown, words))
    if "warnings" in plain:
        plain["warnings"] = [words.said(text) for text in plain["warnings"]]
    return plain


def _recording(asked: Asked) -> Snapshot:
    """The recording that the body holds; pickles are read as data, none of their code is run."""
    name = "".join(mark for mark in asked.query.get("name", "")[:LONGEST_NAME] if mark.isprintable())
    return snapshot_of(asked.body, name=name or UNNAMED, limit_bytes=LARGEST_UNPACKED)


def number(text: str, name: str, *, least: int = 0, most: int) -> int | None:
    """A whole number of the query; None where it is not given.

    Raises: InvalidSpec
    """
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise InvalidSpec("{}={!r} must be a whole number from {} to {}", name, text[:40], least, most)
    return int(text)
