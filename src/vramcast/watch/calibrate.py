"""`vramcast.calibrate`: a recording summed up, and held against the prediction of its job.

SQLite sums: long runs take no memory. What a file says is taken for what it is by msgspec: text where a size should be
is a damaged file, in one sentence.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from vramcast import doctor, question
from vramcast.api import job_of
from vramcast.api.jobs import by_option
from vramcast.domain.model import Model
from vramcast.domain.observation import Highest, MeasuredRun, TorchRun
from vramcast.errors import InvalidSpec, SourceError
from vramcast.watch.recording import TORCH_RUNS, reading, rows_of

if TYPE_CHECKING:
    from vramcast.domain.failure import Reconciliation


PEAKS: Final = "MAX(peak_allocated_bytes), MAX(peak_reserved_bytes), MAX(device_used_bytes)"
STEPS: Final = "run = :run AND pid = :pid AND phase = 'step'"
PHASES: Final = {
    "load": "run = :run AND pid = :pid AND phase = 'load'",
    "first step": f"{STEPS} AND step = 1",
    "step": f"{STEPS} AND step > 1",
}
"""Phase -> the samples that it is made of."""


def measured_of(path: Path) -> MeasuredRun:
    """The last run of a recording that torch's counters are in, else the last one with a reading of cards.

    Of several processes the one that needs most counts.

    Raises: SourceError where the file is no recording, or nothing was measured
    """
    with reading(path) as database:
        query = "SELECT run, pid FROM torch_samples WHERE phase = 'step' ORDER BY run DESC, peak_reserved_bytes DESC"
        of_torch = database.execute(f"{query} LIMIT 1").fetchone()
        if of_torch is not None:
            return _of_torch(path, database, {"run": of_torch[0], "pid": of_torch[1]})
        of_cards = database.execute("SELECT MAX(run) FROM gpu_samples").fetchone()[0]
        if of_cards is not None:
            return _of_cards(path, database, {"run": of_cards})
    raise SourceError(
        "{} holds no step and no reading of a card: record a run of a few steps with vramcast.record_memory, or with "
        "vramcast watch --record", path
    )


def fullest_of(paths: Sequence[Path]) -> MeasuredRun:
    """Of the recordings of several ranks, the one that needs most.

    Raises: SourceError as `measured_of`, InvalidSpec where they are not of one run
    """
    runs = [measured_of(path) for path in paths]
    if len({run.num_gpus for run in runs}) > 1:
        names = ", ".join(f"{run.name} ({run.num_gpus})" for run in runs)
        raise InvalidSpec("the recordings are of runs on different numbers of GPUs: {}; give those of one run", names)
    return max(runs, key=lambda run: max(_known(run.phases.get("step", Highest())), default=0))


def _known(levels: Highest) -> list[int]:
    values = (levels.device_bytes, levels.reserved_bytes, levels.allocated_bytes)
    return [value for value in values if value is not None]


def _of_torch(path: Path, database: sqlite3.Connection, of: dict[str, int]) -> MeasuredRun:
    phases = {name: _highest(database, where, of) for name, where in PHASES.items()}
    known = {name: levels for name, levels in phases.items() if levels is not None}
    if "step" not in known:
        known["step"] = known.get("first step", Highest())
    run = _torch_run(database, of)
    (count,) = database.execute(f"SELECT COUNT(*) FROM torch_samples WHERE {STEPS}", of).fetchone()
    columns = "device_total_bytes, rank, num_alloc_retries, num_ooms"
    last = database.execute(f"SELECT {columns} FROM torch_samples WHERE {STEPS} ORDER BY id DESC LIMIT 1", of)
    gpu_bytes, rank, retries, ooms = last.fetchone()
    part = database.execute(
        "SELECT phase FROM torch_samples WHERE run = :run AND pid = :pid AND step > 1 "
        "AND phase IN ('forward', 'backward', 'optimizer') ORDER BY peak_allocated_bytes DESC LIMIT 1", of,
    ).fetchone()
    return _checked(
        name=path.name, gpu=run.gpu if run else "", gpu_bytes=gpu_bytes, num_gpus=run.world_size if run else 1,
        rank=rank, versions=_versions(database, of), run=run, num_steps=count, phases=known,
        peak_phase=part[0] if part else "", step_s=_median_step(database, of), num_retries=retries or 0,
        num_ooms=ooms or 0,
    )


def _checked(**fields: Any) -> MeasuredRun:
    return msgspec.convert(msgspec.to_builtins(fields), MeasuredRun, strict=False)


def _highest(database: sqlite3.Connection, where: str, of: dict[str, int]) -> Highest | None:
    found = database.execute(f"SELECT {PEAKS}, COUNT(*) FROM torch_samples WHERE {where}", of).fetchone()
    *levels, count = found
    names = ("allocated_bytes", "reserved_bytes", "device_bytes")
    return msgspec.convert(dict(zip(names, levels, strict=True)), Highest, strict=False) if count else None


def _median_step(database: sqlite3.Connection, of: dict[str, int]) -> float | None:
    """Of the steps after the first one, the lower one of the two in the middle."""
    where = f"{PHASES['step']} AND step_s IS NOT NULL"
    found = database.execute(
        f"SELECT step_s FROM torch_samples WHERE {where} ORDER BY step_s LIMIT 1 "
        f"OFFSET (SELECT (COUNT(*) - 1) / 2 FROM torch_samples WHERE {where})", of,
    ).fetchone()
    return found[0] if found else None


def _torch_run(database: sqlite3.Connection, of: dict[str, int]) -> TorchRun | None:
    newest = "id = (SELECT MAX(id) FROM torch_runs WHERE run = ? AND pid = ?)"
    return next((noun for _, _, noun in rows_of(database, TORCH_RUNS, TorchRun, newest, of["run"], of["pid"])), None)


def _versions(database: sqlite3.Connection, of: dict[str, int]) -> dict[str, str]:
    (text,) = database.execute("SELECT versions FROM runs WHERE id = :run", of).fetchone() or (None,)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, str])


def _of_cards(path: Path, database: sqlite3.Connection, of: dict[str, int]) -> MeasuredRun:
    """Device level alone: the largest process where processes are known, else the card on which most was used."""
    process = database.execute(
        "SELECT gpu, memory_bytes FROM process_samples JOIN gpu_samples ON sample = gpu_samples.id "
        "WHERE run = :run AND memory_bytes > 0 ORDER BY memory_bytes DESC LIMIT 1", of,
    ).fetchone()
    whole = "SELECT gpu, memory_used_bytes FROM gpu_samples WHERE run = :run ORDER BY memory_used_bytes DESC LIMIT 1"
    gpu, num_bytes = process or database.execute(whole, of).fetchone()
    card = database.execute("SELECT model, memory_total_bytes FROM gpus WHERE id = ?", (gpu,)).fetchone()
    if card is None:
        raise SourceError("{} is damaged: it has readings of a card that it does not name", path)
    model, total = card
    return _checked(
        name=path.name, gpu=model, gpu_bytes=total, versions=_versions(database, of),
        phases={"step": {"device_bytes": num_bytes}}, by_process=process is not None,
    )


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
    from vramcast.api.answers import asks_serve

    run = fullest_of(recordings)
    if file is not None and asks_serve(Path(file)):
        return _served(recordings, options, file, save)
    job = job_of(options, file=file)
    if job.calibration is not None:
        raise InvalidSpec("calibrate compares with the plain prediction; leave out --calibration")
    found = doctor.training_run.compared_run(run, job)
    if found.calibration is not None:
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        found = replace(found, calibration=replace(found.calibration, date=today))
    _save(found, save)
    return found


def _served(
    recordings: Sequence[Path], options: Mapping[str, Any], file: str | Path, save: str | Path | None
) -> Reconciliation:
    from vramcast.api import serve_job_of

    found = doctor.training_run.compared_service(fullest_of(recordings), serve_job_of(options, file=file))
    _save(found, save)
    return found


def _save(found: Reconciliation, path: str | Path | None) -> None:

    if path is None:
        return
    if found.calibration is None:
        raise InvalidSpec(
            "{} tells no entries apart that a calibration could correct; record with vramcast.record_memory and "
            "attach(model, optimizer), or for a server compare its log with vramcast serve --reconcile", found.log
        )
    question.files.write_calibration(Path(path), found.calibration)
