"""`vramcast.calibrate`: a recording held against the prediction of its job."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from vramcast.api.jobs import by_option, job_of
from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec
from vramcast.watch.measured import fullest_of

if TYPE_CHECKING:
    from vramcast.domain.reconciliation import Reconciliation


def calibrate(
    recording: str | Path | Sequence[str | Path], model: str | Model | None = None, *, gpus: str | None = None,
    file: str | Path | None = None, save: str | Path | None = None, **options: Any,
) -> Reconciliation:
    """A recorded run held against the prediction of its job.

    Args:
        recording: what `record_memory` or `vramcast watch --record` wrote; of several ranks all their files
        model: that was trained
        gpus: on which it was
        file: a job file of `train`, or of `serve`; arguments given here win over it
        save: where to write what `train(calibration=...)` reads
        options: those of `vramcast train --help`, with underscores

    Returns: parts of the peak measured and predicted, what was underestimated most, and the answer
    Raises: VramcastError of one sentence when the recording cannot be used or is not of such a job
    """
    paths = [recording] if isinstance(recording, (str, Path)) else list(recording)
    given = {"model": model, "gpus": gpus} | by_option(options)
    return calibration_of([Path(path) for path in paths], given, file=file, save=save)


def calibration_of(
    recordings: Sequence[Path], options: Mapping[str, Any], *, file: str | Path | None = None,
    save: str | Path | None = None,
) -> Reconciliation:
    """The same with the options by their names on the command line; the calibration saved where that is wanted."""
    from vramcast.api.observed import asks_serve
    from vramcast.doctor.training_run import compared_run

    run = fullest_of(recordings)
    if file is not None and asks_serve(Path(file)):
        return _served(recordings, options, file, save)
    job = job_of(options, file=file)
    if job.calibration is not None:
        raise InvalidSpec("calibrate compares with the plain prediction; leave out --calibration")
    found = compared_run(run, job)
    if found.calibration is not None:
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        found = replace(found, calibration=replace(found.calibration, date=today))
    _save(found, save)
    return found


def _served(
    recordings: Sequence[Path], options: Mapping[str, Any], file: str | Path, save: str | Path | None
) -> Reconciliation:
    from vramcast.api.jobs import serve_job_of
    from vramcast.doctor.training_run import compared_service

    found = compared_service(fullest_of(recordings), serve_job_of(options, file=file))
    _save(found, save)
    return found


def _save(found: Reconciliation, path: str | Path | None) -> None:
    from vramcast.question.calibration import write_calibration

    if path is None:
        return
    if found.calibration is None:
        raise InvalidSpec(
            f"{found.log} tells no entries apart that a calibration could correct; record with vramcast.record_memory "
            "and attach(model, optimizer), or for a server compare its log with vramcast serve --reconcile"
        )
    write_calibration(Path(path), found.calibration)
