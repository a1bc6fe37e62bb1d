"""`vramcast.diagnose`: why memory ran out, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.doctor.failures.diagnose import diagnosed

if TYPE_CHECKING:
    from vramcast.domain.failure import Diagnosis
    from vramcast.domain.job import Job
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.report.notebook import ShownDiagnosis


def diagnose(
    text_or_path: str | Path, *, file: str | Path | None = None, snapshot: str | Path | None = None,
    checks: bool = False,
) -> ShownDiagnosis:
    """Why memory ran out, how sure that is, what each number means, and what to change.

    Args:
        text_or_path: a text, or the path of one or of a memory snapshot
        file: a job file of `train` or `serve`: the job that failed
        snapshot: a memory snapshot of the process that failed
        checks: all stability and compatibility checks, not only those that the text or the job gives reason for

    Returns: the findings; they show themselves in a notebook
    Raises: VramcastError of one sentence when a file cannot be used

    >>> diagnose("CUDA out of memory. Tried to allocate more than 1EB memory.").findings[0].cause.value
    'bug'
    """
    from vramcast.report.notebook import shown_diagnosis

    found = diagnosis_of(text_or_path, job_file=file, snapshot=snapshot, every_check=checks)
    return shown_diagnosis(found)


def diagnosis_of(
    source: str | Path | None, *, job_file: str | Path | None = None, snapshot: str | Path | None = None,
    every_check: bool = False,
) -> Diagnosis:
    """The diagnosis of a text, a file of it, standard input ("-"), or of a snapshot alone.

    Args:
        source: a text, a path, Path("-"); None: nothing but what else is given
        job_file: of the job that failed
        snapshot: of its process
        every_check: see `diagnose`

    Raises: VramcastError of one sentence when a file cannot be used
    """
    job = None if job_file is None else _failed_job(Path(job_file))
    return diagnosed(source, job=job, snapshot=None if snapshot is None else Path(snapshot), every_check=every_check)


def _failed_job(path: Path) -> Job | ServeJob | PipelineJob:
    """The job of a file, whether of `train` or of `serve`.

    Raises: VramcastError of the reading that got further
    """
    from vramcast.api.serving import serve_job_of
    from vramcast.api.training import job_of

    return serve_job_of({}, file=path) if asks_serve(path) else job_of({}, file=path)


def asks_serve(path: Path) -> bool:
    """Whether a job file asks `serve`: by its options or its engine.

    Raises: SourceError where it cannot be read
    """
    from vramcast.question.files import LARGEST_FILE, read_document

    values, _ = read_document(path, largest=LARGEST_FILE)
    return isinstance(values, dict) and is_serving(values)


def is_serving(options: Mapping[Any, Any]) -> bool:
    """Whether options are those of a server: one that `train` has not, or the engine."""
    from vramcast.engines.serving.table import SERVING
    from vramcast.question.options import OPTIONS
    from vramcast.question.serving_options import SERVE_OPTIONS

    engine = options.get("engine")
    serves = isinstance(engine, str) and engine.partition("@")[0] in SERVING
    return serves or bool(set(options) & set(SERVE_OPTIONS) - set(OPTIONS))
