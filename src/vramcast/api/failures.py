"""Why memory ran out, and what to change; and what a server printed beside its prediction: `vramcast.reconcile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast import api, doctor, question
from vramcast.api.jobs import by_option, question_of
from vramcast.doctor.failures.diagnose import diagnosed
from vramcast.domain.failure import Diagnosis, Reconciliation
from vramcast.errors import InvalidSpec


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


def reconcile(
    log: str | Path, model: str | None = None, *, gpus: str | None = None, file: str | Path | None = None,
    save_calibration: str | Path | None = None, **options: Any,
) -> Reconciliation:
    """A start-up log of a server held against its prediction.

    Args:
        log: what vLLM, SGLang, TensorRT-LLM or llama.cpp printed
        model: where the log does not name it, or wrongly
        gpus: where the log does not name the cards
        file: a job file; arguments given here win over it, and it over the log
        save_calibration: where to write what `serve(calibration=...)` reads
        options: those of `vramcast serve --help`, with underscores

    Returns: entries measured and predicted, the one that explains most, and the answer
    Raises: VramcastError of one sentence when the log cannot be read or the question not be answered
    """
    given = {"model": model, "gpus": gpus} | by_option(options)
    merged = question_of(given, file, "serve").options
    if save_calibration is not None and "calibration" in merged:
        raise InvalidSpec("--save-calibration compares with the plain prediction; leave out --calibration")
    found = doctor.compare.reconcile(Path(log), merged)
    if save_calibration is not None:
        if found.calibration is None:
            raise InvalidSpec("{} measures nothing that a calibration could correct; save none", Path(log).name)
        question.files.write_calibration(Path(save_calibration), found.calibration)
    return found
