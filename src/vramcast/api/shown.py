"""The Python interface: `vramcast.train(...)` and its kin return what the command line prints.

What computes an answer is imported when it is first asked for one.

Why memory ran out, and what to change.

`vramcast.replay`: a recording of GPU memory, replayed and looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from vramcast import api, doctor, question
from vramcast.api.jobs import by_option, paths, question_of
from vramcast.domain.model import Model
from vramcast.domain.planning import PlanAnswer
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.report.shown import (
    ShownAnswer,
    ShownDiagnosis,
    ShownPlanAnswer,
    ShownPostTrainingAnswer,
    ShownServeAnswer,
)

if TYPE_CHECKING:
    from vramcast.domain.failure import Reconciliation

from vramcast.doctor.failures.diagnose import diagnosed
from vramcast.domain.failure import Diagnosis
from vramcast.domain.snapshot import DeviceSnapshot, Snapshot
from vramcast.errors import SourceError
from vramcast.question.option import parse_bytes
from vramcast.recordings.examine import Asked, examine
from vramcast.report.shown import ShownReplay
from vramcast.sources.snapshots import read_snapshot


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
    asked = Asked(
        top=top, leaks=leaks, confs=(alloc_conf,) if isinstance(alloc_conf, str) else tuple(alloc_conf),
        all_confs=all_confs, capacity_bytes=None if capacity is None else parse_bytes("capacity", capacity),
    )
    for given in (snapshot, snapshot if against is None else against):
        if not isinstance(given, (str, Path)):
            raise InvalidSpec("a recording is named by a path, not by {}; give a str or a Path", type(given).__name__)
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
    earlier = {one.device: one for one in against.devices} if against is not None else {}
    found, wanted = [], _devices(recording, device)
    if against is not None and not any(one.device in earlier for one in wanted):
        raise InvalidSpec(
            "{} holds no device that is looked at ({}); it holds {}: compare with a recording of the same device",
            against.name, _listed(wanted), _listed(against.devices) or "none"
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
            "{} holds no memory events and no segments; record with torch.cuda.memory._record_memory_history() before "
            "the first allocation", recording.name
        )
    wanted = [one for one in recording.devices if device in (None, one.device)]
    if not wanted:
        raise InvalidSpec("{} has no device {}; use one of {}", recording.name, device, _listed(recording.devices))
    return wanted


def _listed(devices: Sequence[DeviceSnapshot]) -> str:
    return ", ".join(str(one.device) for one in devices)


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


def train(
    model: str | Model | None = None, *, gpus: str | None = None, file: str | Path | None = None,
    from_: str | Path | Sequence[str | Path] = (), **options: Any,
) -> ShownAnswer:
    """Memory of one training plan.

    Args:
        model: catalogue name, path, hub id, importable description, or None with params, layers and hidden
        gpus: "8xh100-sxm-80gb", "2x8xa100-sxm-80gb", "t4"
        file: a job file; arguments given here win over it
        from_: configuration files of other tools: a ds_config.json, Megatron's arguments ...; arguments win over them.
            What they say and nobody here understands is refused by its name; ignore_unread=True leaves it out instead,
            and `ignored` of the answer says it
        options: those of `vramcast train --help`, with underscores: seq_len=8192, micro_batch=2, tp=4

    Returns: the answer; it shows itself in a notebook
    Raises: VramcastError of one sentence when the question cannot be answered

    >>> answer = train("llama-3.2-1b", gpus="h100", engine="megatron", seq_len=1024)
    >>> answer.fits
    True
    """
    given = {"model": model, "gpus": gpus, "from": paths(from_)} | by_option(options)
    return ShownAnswer(**asdict(api.train_answer(given, file=file)[1]))


def serve(
    model: str | Model | None = None, *, gpus: str | None = None, file: str | Path | None = None,
    from_: str | Path | Sequence[str | Path] = (), **options: Any,
) -> ShownServeAnswer:
    """Memory, KV capacity and concurrency of one serving plan.

    Args:
        model: catalogue name, path, hub id, importable description, or None with params, layers and hidden
        gpus: "2xl40s", "8xh100-sxm-80gb", "t4"
        file: a job file; arguments given here win over it
        from_: commands or configurations of vLLM or SGLang, as for `train`
        options: those of `vramcast serve --help`, with underscores: context=32768, concurrency=64, engine="vllm@0.19";
            find="smallest-gpu" and its kin answer an inverse question, `found` of the answer says what it came to

    Returns: the answer; it shows itself in a notebook
    Raises: VramcastError of one sentence when the question cannot be answered

    >>> serve("llama-3.1-8b", gpus="h100", context=8192).fits
    True
    """
    given = {"model": model, "gpus": gpus, "from": paths(from_)} | by_option(options)
    return ShownServeAnswer(**asdict(api.serve_answer(given, file=file)))


def rl(
    model: str | Model | None = None, *, gpus: str | None = None, file: str | Path | None = None,
    from_: str | Path | Sequence[str | Path] = (), **options: Any,
) -> ShownPostTrainingAnswer:
    """Memory of reinforcement-learning post-training, stage by stage.

    Args:
        model: catalogue name, path, hub id, importable description, or None with params, layers and hidden
        gpus: "8xh100-sxm-80gb", "2x8xa100-sxm-80gb"
        file: a job file; arguments given here win over it
        from_: commands or configurations of verl, as for `train`
        options: those of `vramcast rl --help`, with underscores: algorithm="grpo", samples=5, micro_batch=8

    Returns: the answer, whose first rank is the card and the others its processes; it shows itself in a notebook
    Raises: VramcastError of one sentence when the question cannot be answered

    >>> [rank.role for rank in rl("qwen2.5-7b", gpus="8xh100-sxm-80gb", micro_batch=4).ranks]
    ['card', 'trainer', 'engine']
    """
    given = {"model": model, "gpus": gpus, "from": paths(from_)} | by_option(options)
    return ShownPostTrainingAnswer(**asdict(api.post_training_answer(given, file=file)))


def plan(
    kind: str, model: str | Model | None = None, *, on: str | Sequence[str] = (), file: str | Path | None = None,
    from_: str | Path | Sequence[str | Path] = (), **options: Any,
) -> ShownPlanAnswer | ShownAnswer:
    """A search: the best plans for a goal, or with `find` an inverse question.

    Args:
        kind: "train" or "serve"
        model: catalogue name, path, hub id, importable description, or None with params, layers and hidden
        on: what to look at: "8xh100-sxm-80gb", or several of them
        file: a job file; arguments given here win over it
        from_: configuration files of other tools: what they train or serve is taken, how they split it is searched
        options: those of `vramcast plan train --help`, with underscores: goal="cheapest", global_batch=512,
            tokens="1T", allow="offload"; find="largest-batch" and its kin answer an inverse question

    Returns: the answer; it shows itself in a notebook
    Raises: VramcastError of one sentence when the question cannot be answered
    """
    planners: dict[str, Callable[..., Any]] = {"train": api.planned_training, "serve": api.planned_serving}
    if kind not in planners:
        raise UnknownName.of("kind of plan", kind, planners)
    given = {"model": model, "on": on or None, "from": paths(from_)} | by_option(options)
    result, _ = planners[kind](given, file=file)
    return (ShownPlanAnswer if isinstance(result, PlanAnswer) else ShownAnswer)(**asdict(result))


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
    found = api.diagnosis_of(text_or_path, job_file=file, snapshot=snapshot, every_check=checks)
    return ShownDiagnosis(**asdict(found))


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
