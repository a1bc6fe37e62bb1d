"""What a process left behind, explained: `vramcast.reconcile`, `vramcast.replay`, `vramcast.diagnose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.api.jobs import by_option, job_of, question_of, serve_job_of
from vramcast.domain.job import Job
from vramcast.errors import InvalidSpec, SourceError

if TYPE_CHECKING:
    from vramcast.domain.failure import Diagnosis
    from vramcast.domain.reconciliation import Reconciliation
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.domain.snapshot import DeviceSnapshot, Snapshot
    from vramcast.recordings.examine import Asked
    from vramcast.report.notebook import ShownDiagnosis
    from vramcast.report.recorded import ShownReplay


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
    return reconciliation_of(Path(log), given, file=file, save_calibration=save_calibration)


def reconciliation_of(
    log: Path, options: Mapping[str, Any], *, file: str | Path | None = None,
    save_calibration: str | Path | None = None,
) -> Reconciliation:
    """What a log says beside what the options and the log together ask; its calibration saved where that is wanted."""
    from vramcast.doctor.reconcile import reconcile as reconciled
    from vramcast.question.calibration import write_calibration
    from vramcast.question.serving_options import SERVE_OPTIONS

    merged = question_of(options, file, SERVE_OPTIONS, command="serve").options
    if save_calibration is not None and "calibration" in merged:
        raise InvalidSpec("--save-calibration compares with the plain prediction; leave out --calibration")
    found = reconciled(log, merged)
    if save_calibration is not None:
        if found.calibration is None:
            raise InvalidSpec(f"{log.name} measures nothing that a calibration could correct; save none")
        write_calibration(Path(save_calibration), found.calibration)
    return found


def replay(
    snapshot: str | Path, *, against: str | Path | None = None, device: int | None = None,
    alloc_conf: str | Sequence[str] = (), all_confs: bool = False, capacity: str | int | None = None,
    leaks: bool = False, top: int = 10,
) -> ShownReplay:
    """A recording of GPU memory, replayed and looked at.

    Args:
        snapshot: what torch.cuda.memory._dump_snapshot wrote, a profiler trace with memory events, our own timeline
        against: an earlier recording to compare with
        device: only this device; None: all
        alloc_conf: values of PYTORCH_CUDA_ALLOC_CONF to replay under as well
        all_confs: replay under every setting that usually helps
        capacity: what those replays may reserve: "24GiB" or bytes
        leaks: look for what grows step by step
        top: rows of each list

    Returns: what was found, device by device; it shows itself in a notebook
    Raises: VramcastError of one sentence when the recording cannot be read or a setting not be used
    """
    from vramcast.question.amounts import parse_bytes
    from vramcast.recordings.examine import Asked
    from vramcast.sources.snapshots import read_snapshot

    asked = Asked(
        top=top, leaks=leaks, confs=(alloc_conf,) if isinstance(alloc_conf, str) else tuple(alloc_conf),
        all_confs=all_confs, capacity_bytes=None if capacity is None else parse_bytes("capacity", capacity),
    )
    for given in (snapshot, snapshot if against is None else against):
        if not isinstance(given, (str, Path)):
            raise InvalidSpec(f"a recording is named by a path, not by {type(given).__name__}; give a str or a Path")
    before = None if against is None else read_snapshot(Path(against))
    return replayed(read_snapshot(Path(snapshot)), asked, against=before, device=device)


def replayed(
    recording: Snapshot, asked: Asked, *, against: Snapshot | None = None, device: int | None = None
) -> ShownReplay:
    """A recording that was read already, replayed and looked at.

    Args:
        recording: what was read
        asked: what to look at
        against: an earlier recording to compare with
        device: only this device; None: all

    Raises: VramcastError of one sentence when it holds nothing, or a setting cannot be used
    """
    from vramcast.recordings.examine import Asked, examine
    from vramcast.report.recorded import ShownReplay

    earlier = {one.device: one for one in against.devices} if against is not None else {}
    found, wanted = [], _devices(recording, device)
    if against is not None and not any(one.device in earlier for one in wanted):
        raise InvalidSpec(
            f"{against.name} holds no device that is looked at ({_listed(wanted)}); it holds "
            f"{_listed(against.devices) or 'none'}: compare with a recording of the same device"
        )
    for one in wanted:
        old = earlier.get(one.device)
        plain = None if against is None or old is None else examine(against, old, Asked(top=asked.top))
        found.append(examine(recording, one, asked, against=plain))
    return ShownReplay(devices=tuple(found), top=asked.top)


def _devices(recording: Snapshot, device: int | None) -> Sequence[DeviceSnapshot]:
    """The devices asked for; raises where there are none."""
    if not recording.devices:
        raise SourceError(
            f"{recording.name} holds no memory events and no segments; record with "
            "torch.cuda.memory._record_memory_history() before the first allocation"
        )
    wanted = [one for one in recording.devices if device in (None, one.device)]
    if not wanted:
        raise InvalidSpec(f"{recording.name} has no device {device}; use one of {_listed(recording.devices)}")
    return wanted


def _listed(devices: Sequence[DeviceSnapshot]) -> str:
    return ", ".join(str(one.device) for one in devices)


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
    from vramcast.doctor.failures.read import diagnosed

    job = None if job_file is None else _failed_job(Path(job_file))
    return diagnosed(source, job=job, snapshot=None if snapshot is None else Path(snapshot), every_check=every_check)


def _failed_job(path: Path) -> Job | ServeJob | PipelineJob:
    """The job of a file, whether of `train` or of `serve`.

    Raises: VramcastError of the reading that got further
    """
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
