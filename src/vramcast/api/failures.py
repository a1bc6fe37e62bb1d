"""Why memory ran out, and what to change."""

from __future__ import annotations

from pathlib import Path

from vramcast import api
from vramcast.doctor.failures.diagnose import diagnosed
from vramcast.domain.failure import Diagnosis


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
    job = None if job_file is None else api.answers.failed_job(Path(job_file))
    return diagnosed(source, job=job, snapshot=None if snapshot is None else Path(snapshot), every_check=every_check)
