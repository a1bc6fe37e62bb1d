"""The job that failed, of training or of serving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.api.serving import serve_job_of
from vramcast.api.training import job_of
from vramcast.domain.job import Job
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.engines.serving.table import SERVING
from vramcast.question.files import LARGEST_FILE, read_document
from vramcast.question.options import OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS


def failed_job(path: Path) -> Job | ServeJob | PipelineJob:
    """The job of a file, whether of `train` or of `serve`.

    Raises: VramcastError of the reading that got further
    """
    return serve_job_of({}, file=path) if asks_serve(path) else job_of({}, file=path)


def asks_serve(path: Path) -> bool:
    """Whether a job file asks `serve`: by its options or its engine.

    Raises: SourceError where it cannot be read
    """
    values, _ = read_document(path, largest=LARGEST_FILE)
    return isinstance(values, dict) and is_serving(values)


def is_serving(options: Mapping[Any, Any]) -> bool:
    """Whether options are those of a server: one that `train` has not, or the engine."""
    engine = options.get("engine")
    serves = isinstance(engine, str) and engine.partition("@")[0] in SERVING
    return serves or bool(set(options) & set(SERVE_OPTIONS) - set(OPTIONS))
