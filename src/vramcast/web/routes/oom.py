"""`/api/oom`: why memory ran out, by a text or a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vramcast.question.options import OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS
from vramcast.report.messages import LANGUAGES, Words
from vramcast.web.exchange import (
    BYTES,
    Asked,
    Refused,
    Reply,
    Sources,
    choice_field,
    fields_of,
    refuse_others,
    text_field,
)
from vramcast.web.routes.replay import FORMATS, recording_of
from vramcast.web.routes.written import written
from vramcast.web.visitor import options_of, resolver

if TYPE_CHECKING:
    from vramcast.domain.failure import Diagnosis
    from vramcast.domain.job import Job
    from vramcast.domain.serving import PipelineJob, ServeJob

FIELDS: Final = ("text", "job", "checks", "lang")
NO_OPTIONS: Final = "'job' must be an object of options"


def oom(asked: Asked) -> dict[str, Any] | Reply:
    """The document that `vramcast oom --json` prints, its sentences in the language asked for; or its report."""
    from vramcast.report.failure import diagnosis_document

    shape, fields = choice_field(asked.query, "format", FORMATS, "json"), asked.query
    if asked.content_type == BYTES:
        found = _diagnosed_recording(asked)
    else:
        fields = asked.fields
        found = diagnosed(fields, asked.sources)
    lang = choice_field(fields, "lang", LANGUAGES, asked.words.language)
    return diagnosis_document(found, Words(lang)) if shape == "json" else written("oom", found, shape, lang)


def _diagnosed_recording(asked: Asked) -> Diagnosis:
    """The diagnosis of the recording that the body holds; its job stands in the address, as JSON."""
    from vramcast.doctor.failures.diagnose import Given, diagnosed_recording

    job = _job(_options(asked.query.get("job", "")), asked.sources)  # refused before anything is read
    recording = recording_of(asked)
    return diagnosed_recording(recording, Given(job=job, snapshot=recording, every_check=asked.flag("checks")))


def _options(text: str) -> Any:
    """The options of a job that an address holds; None where it holds none."""
    if not text:
        return None
    try:
        return fields_of(text.encode())
    except Refused:
        raise Refused(422, "InvalidSpec", NO_OPTIONS) from None


def diagnosed(fields: Mapping[str, Any], sources: Sources) -> Diagnosis:
    """The diagnosis of a visitor's text, with the job that failed where it is given."""
    from vramcast.doctor.failures.diagnose import Given, diagnosed_text

    refuse_others(fields, FIELDS)
    text, checks = text_field(fields, "text"), fields.get("checks", False)
    if not isinstance(checks, bool):
        raise Refused(422, "InvalidSpec", "'checks' must be true or false")
    return diagnosed_text(text, Given(job=_job(fields.get("job"), sources), every_check=checks))


def _job(options: Any, sources: Sources) -> Job | ServeJob | PipelineJob | None:
    """The job that failed, of training or of serving as its options tell."""
    from vramcast.api.jobs import job_of, serve_job_of
    from vramcast.api.observed import is_serving

    if options is None:
        return None
    if not isinstance(options, dict):
        raise Refused(422, "InvalidSpec", NO_OPTIONS)
    if is_serving(options):
        return serve_job_of(options_of(options, SERVE_OPTIONS), resolve=resolver(sources))
    return job_of(options_of(options, OPTIONS), resolve=resolver(sources))
