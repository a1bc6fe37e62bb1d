"""The Python interface: `vramcast.train(...)` returns what the command line prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from vramcast.domain.job import Job
from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.question.configs.paths import NO_CONFIGS, Configs, is_script

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer, ServeAnswer
    from vramcast.domain.failure import Diagnosis
    from vramcast.domain.planning import PlanAnswer
    from vramcast.domain.reconciliation import Reconciliation
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.domain.snapshot import DeviceSnapshot, Snapshot
    from vramcast.estimate.cost import AnswerT
    from vramcast.question.build import Resolve
    from vramcast.question.configs.readers import Given
    from vramcast.question.configs.searched import ForSearch
    from vramcast.question.options import Option
    from vramcast.question.planning import PlanQuestion
    from vramcast.report.notebook import ShownAnswer, ShownDiagnosis, ShownPlanAnswer, ShownServeAnswer
    from vramcast.report.replay_shown import ShownReplay


def train(
    model: str | Model | None = None, *, gpus: str | None = None, file: str | Path | None = None,
    from_: str | Path | Sequence[str | Path] = (), **options: Any,
) -> ShownAnswer:
    """Memory of one training plan.

    Args:
        model: catalogue name, path, hub id, importable description, or None with params, layers and hidden
        gpus: "8xh100-sxm-80gb", "2x8xa100-sxm-80gb", "t4"
        file: a job file; arguments given here win over it
        from_: configuration files of other tools: a ds_config.json, Megatron's arguments ...; arguments win over them
        options: those of `vramcast train --help`, with underscores: seq_len=8192, micro_batch=2, tp=4

    Returns: the answer; it shows itself in a notebook
    Raises: VramcastError of one sentence when the question cannot be answered

    >>> answer = train("llama-3.2-1b", gpus="h100", engine="megatron", seq_len=1024)
    >>> answer.fits
    True
    """
    from vramcast.estimate.training import answer
    from vramcast.report.notebook import shown

    given = {"model": model, "gpus": gpus} | _by_option(options)
    if from_:
        from vramcast.question.configs.merged import with_configs

        given, said = with_configs(given, [from_] if isinstance(from_, (str, Path)) else from_, command="train")
        return shown(noted(answer(job_of(given, file=file)), said))
    return shown(answer(job_of(given, file=file)))


def _by_option(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the tables of options name them."""
    return {name.replace("_", "-"): value for name, value in keywords.items()}


def noted(answer: AnswerT, said: Given) -> AnswerT:
    """An answer with what configuration files said."""
    return replace(
        answer, assumptions=(*said.assumptions, *answer.assumptions), warnings=(*said.warnings, *answer.warnings)
    )


def serve(
    model: str | Model | None = None, *, gpus: str | None = None, file: str | Path | None = None, **options: Any
) -> ShownServeAnswer:
    """Memory, KV capacity and concurrency of one serving plan.

    Args:
        model: catalogue name, path, hub id, importable description, or None with params, layers and hidden
        gpus: "2xl40s", "8xh100-sxm-80gb", "t4"
        file: a job file; arguments given here win over it
        options: those of `vramcast serve --help`, with underscores: context=32768, concurrency=64, engine="vllm@0.19";
            find="smallest-gpu" and its kin answer an inverse question, `found` of the answer says what it came to

    Returns: the answer; it shows itself in a notebook
    Raises: VramcastError of one sentence when the question cannot be answered

    >>> serve("llama-3.1-8b", gpus="h100", context=8192).fits
    True
    """
    from vramcast.report.notebook import shown_serving

    given = {"model": model, "gpus": gpus} | _by_option(options)
    return shown_serving(serve_answer(given, file=file))


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
    from vramcast.domain.planning import PlanAnswer
    from vramcast.report.notebook import shown, shown_plan

    if kind not in PLANNERS:
        raise UnknownName.of("kind of plan", kind, PLANNERS)
    given = {"model": model, "on": on or None} | _by_option(options)
    configs = Configs((from_,) if isinstance(from_, (str, Path)) else tuple(from_))
    result = PLANNERS[kind](given, file=file, configs=configs)
    return shown_plan(result) if isinstance(result, PlanAnswer) else shown(result)


class Planned(NamedTuple):
    """What a search came to."""

    answer: PlanAnswer | Answer
    job: Job | None  # the plan to run; None where none fits or none was looked for


SearchedT = TypeVar("SearchedT", bound="PlanAnswer | Answer")


def plan_train_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, configs: Configs = NO_CONFIGS
) -> PlanAnswer | Answer:
    """The answer to a search for training plans on top of a job file, or to the inverse question it asks."""
    return planned_training(options, file=file, configs=configs).answer


def planned_training(
    options: Mapping[str, Any], *, file: str | Path | None = None, configs: Configs = NO_CONFIGS,
    progress: Callable[[int], None] | None = None, before: Callable[[Sequence[str]], None] | None = None,
) -> Planned:
    """The same with the plan it leads to.

    Args:
        options: as of `vramcast plan train`
        file: a job file
        configs: configurations of other tools: what they train is taken, how they split it is searched
        progress: told how many plans were looked at
        before: told which engines will be looked at, before any work: what it raises ends it
    """
    from vramcast.question.configs.merged import model_named
    from vramcast.question.plan_options import PLAN_OPTIONS
    from vramcast.question.planning import build_planning, goal_of

    said = _fixed_by(configs, options, "train")
    options = said.options if said else options
    merged, resolve = _question(options, file, PLAN_OPTIONS)
    goal = goal_of(merged)
    if goal is not None:
        planned = _found(goal, merged, resolve, before)
    else:
        asked = build_planning(merged, resolve=resolve)
        if before is not None:
            before(asked.space.engines)
        planned = _searched(asked, progress)
    planned = _with_command(planned, merged | model_named(options.get("model"), configs))
    if said is None:
        return planned
    own = _own_plan(configs, options, planned.answer) if goal is None else ()
    return planned._replace(answer=_noted(planned.answer, said, own))


def _fixed_by(configs: Configs, options: Mapping[str, Any], command: str) -> ForSearch | None:
    """The options with what configuration files fix of a search; None without files."""
    if not configs.paths:
        return None
    from vramcast.question.configs.readers import read_files
    from vramcast.question.configs.searched import for_search

    return for_search(read_files(configs.paths, command=command, format_name=configs.format_name), options, command)


def _noted(answer: SearchedT, said: ForSearch, own: tuple[str, ...] = ()) -> SearchedT:
    """An answer with what configuration files said, and how their own plan does."""
    return replace(
        answer, assumptions=(*said.assumptions, *own, *answer.assumptions), warnings=(*said.warnings, *answer.warnings)
    )


def _own_plan(configs: Configs, options: Mapping[str, Any], found: PlanAnswer | Answer) -> tuple[str, ...]:
    """The plan that the files have themselves, on the machines of the winner, in one line."""
    from vramcast.domain.planning import PlanAnswer
    from vramcast.estimate.training import answer
    from vramcast.question.configs.merged import with_configs
    from vramcast.units import format_bytes, format_seconds

    best = (found.plans or (found.nearest_failing,))[0] if isinstance(found, PlanAnswer) else None
    if best is None:
        return ()
    gpus = best.question["gpus"]
    same = {name: value for name, value in options.items() if name in ("model", "seq-len", "hardware")}
    try:
        merged, _ = with_configs(
            same | {"gpus": gpus}, configs.paths, command="train", format_name=configs.format_name
        )
        own = answer(job_of(merged), with_changes=False, every_role=False)
    except VramcastError as reason:
        return (f"the file's own plan is not possible on {gpus}: {reason}",)
    size = f"{format_bytes(own.fullest.needed_bytes)} of {format_bytes(own.capacity_bytes)} per GPU"
    step = f", {format_seconds(own.time.step_s)} a step" if own.time is not None else ""
    rate = f", {own.time.tokens_per_s:,.0f} tokens/s" if own.time is not None else ""
    return (f"the file's own plan on {gpus}: {'fits' if own.fits else 'does not fit'}, {size}{step}{rate}",)


def _with_command(planned: Planned, options: Mapping[str, Any]) -> Planned:
    """The same with the whole command of its plan; a network that only Python has cannot be named in one."""
    from vramcast.domain.planning import PlanAnswer
    from vramcast.question.whole_command import train_command

    answer, job = planned
    if job is None or isinstance(options.get("model"), Model):
        return planned
    found = None if isinstance(answer, PlanAnswer) else answer.found
    named = options.get("model")
    if named is None and options.get("params") is None:
        named = job.model.name  # of an inverse question that looked for it
    command = train_command(job, options, named)
    if found is None:
        return planned._replace(answer=replace(answer, command=command))
    return planned._replace(answer=replace(answer, found=replace(found, command=command)))


def _found(
    goal: str, options: Mapping[str, Any], resolve: Resolve, before: Callable[[Sequence[str]], None] | None
) -> Planned:
    """An inverse question."""
    from vramcast.catalogue.models import text_decoders
    from vramcast.estimate.training import answer
    from vramcast.question.planning import build_inverse
    from vramcast.search.inverse import choose

    asked = build_inverse(options, resolve=resolve, models=text_decoders)
    if before is not None:
        before(asked.engines or (asked.job.engine,))
    job, found = choose(goal, asked)
    return Planned(replace(answer(job), found=found), job if found.what is not None else None)


def _searched(asked: PlanQuestion, progress: Callable[[int], None] | None) -> Planned:
    """A search, or only how techniques do where no plans are asked for."""
    from vramcast.question.planning import cluster_of_best
    from vramcast.question.planning import job_of as job_behind
    from vramcast.search.explained import explained, unsearched

    if asked.top:
        _require_numpy()
        from vramcast.search.training.search import search

        found = search(asked.space, asked.limits, asked.goal, top=asked.top, progress=progress)
    else:
        found = unsearched(asked.space, asked.goal)
    found = explained(found, asked.space, asked.limits, cluster_of_best(asked.space, found))
    found = replace(found, assumptions=(*found.assumptions, *asked.assumptions))
    return Planned(found, job_behind(asked.space, found.plans[0]) if found.plans else None)


def _require_numpy() -> None:
    """Raise Unsupported, which says what to install, where NumPy is missing."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise Unsupported("a search over training plans needs NumPy: pip install 'vramcast[search]'") from None


def plan_serve_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, configs: Configs = NO_CONFIGS
) -> PlanAnswer:
    """The answer to a search for deployments on top of a job file."""
    return planned_serving(options, file=file, configs=configs)[0]


def planned_serving(
    options: Mapping[str, Any], *, file: str | Path | None = None, configs: Configs = NO_CONFIGS
) -> tuple[PlanAnswer, ServeJob | None]:
    """The same with one replica of the deployment it leads to."""
    from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS, build_plan_serving
    from vramcast.question.whole_command import serve_command
    from vramcast.search.serving_plans import search

    said = _fixed_by(configs, options, "serve")
    options = said.options if said else options
    merged, resolve = _question(options, file, PLAN_SERVE_OPTIONS)
    asked = build_plan_serving(merged, resolve=resolve)
    found, job = search(asked.space, asked.limits, asked.goal, top=asked.top)
    if job is not None and not isinstance(options.get("model"), Model):
        found = replace(found, command=serve_command(job, merged, merged.get("model"), found.labels[0]))
    found = replace(found, assumptions=(*found.assumptions, *asked.assumptions))
    return found if said is None else _noted(found, said), job


PLANNERS: Final[dict[str, Callable[..., PlanAnswer | Answer]]] = {
    "train": plan_train_answer, "serve": plan_serve_answer,
}
"""Kinds of plan that can be searched for."""


def serve_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> ServeAnswer:
    """The answer to a serving question on top of a job file: of its plan, or of the plan it asks to find."""
    from vramcast.domain.serving import PipelineJob
    from vramcast.question.serving import build_serving, goal_of
    from vramcast.question.serving_options import SERVE_OPTIONS

    merged, found = _question(options, file, SERVE_OPTIONS)
    goal, job = goal_of(merged), build_serving(merged, resolve=resolve or found)
    if goal is None or isinstance(job, PipelineJob):
        from vramcast.estimate.serving import answer

        return answer(job, with_changes=with_changes)
    from vramcast.catalogue.gpus import gpu_names, load_gpu
    from vramcast.search.serving import find

    return find(goal, job, cards=map(load_gpu, gpu_names()))


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
    given = {"model": model, "gpus": gpus} | _by_option(options)
    return reconciliation_of(Path(log), given, file=file, save_calibration=save_calibration)


def reconciliation_of(
    log: Path, options: Mapping[str, Any], *, file: str | Path | None = None,
    save_calibration: str | Path | None = None,
) -> Reconciliation:
    """What a log says beside what the options and the log together ask; its calibration saved where that is wanted."""
    from vramcast.doctor.reconcile import reconcile as reconciled
    from vramcast.question.calibration import write_calibration
    from vramcast.question.serving_options import SERVE_OPTIONS

    merged, _ = _question(options, file, SERVE_OPTIONS)
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
    from vramcast.replay.examine import Asked, examine
    from vramcast.report.replay_shown import ShownReplay
    from vramcast.sources.snapshots import read_snapshot

    asked = Asked(
        top=top, leaks=leaks, confs=(alloc_conf,) if isinstance(alloc_conf, str) else tuple(alloc_conf),
        all_confs=all_confs, capacity_bytes=None if capacity is None else parse_bytes("capacity", capacity),
    )
    recording = read_snapshot(Path(snapshot))
    before = None if against is None else read_snapshot(Path(against))
    earlier = {one.device: one for one in before.devices} if before is not None else {}
    found = []
    for one in _devices(recording, device):
        old = earlier.get(one.device)
        plain = None if before is None or old is None else examine(before, old, Asked(top=top))
        found.append(examine(recording, one, asked, against=plain))
    return ShownReplay(devices=tuple(found), top=top)


def _devices(recording: Snapshot, device: int | None) -> Sequence[DeviceSnapshot]:
    """The devices asked for; raises where there are none."""
    if not recording.devices:
        raise SourceError(
            f"{recording.name} holds no memory events and no segments; record with "
            "torch.cuda.memory._record_memory_history() before the first allocation"
        )
    wanted = [one for one in recording.devices if device in (None, one.device)]
    if not wanted:
        there = ", ".join(str(one.device) for one in recording.devices)
        raise InvalidSpec(f"{recording.name} has no device {device}; use one of {there}")
    return wanted


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
    from vramcast.question.files import LARGEST_FILE, read_document
    from vramcast.question.options import OPTIONS
    from vramcast.question.serving_options import SERVE_OPTIONS

    values, _ = read_document(path, largest=LARGEST_FILE)
    names = set(values) if isinstance(values, dict) else set()
    serves = bool(names & set(SERVE_OPTIONS) - set(OPTIONS)) or _serves(values)
    return serve_job_of({}, file=path) if serves else job_of({}, file=path)


def _serves(values: Any) -> bool:
    """Whether the engine of a job file is a server."""
    from vramcast.estimate.serving import ENGINES

    engine = values.get("engine") if isinstance(values, dict) else None
    return isinstance(engine, str) and engine.partition("@")[0] in ENGINES


def job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> Job:
    """The training job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    from vramcast.question.build import build_job
    from vramcast.question.options import OPTIONS

    merged, found = _question(options, file, OPTIONS)
    return build_job(merged, resolve=resolve or found)


def serve_job_of(options: Mapping[str, Any], *, file: str | Path | None = None) -> ServeJob | PipelineJob:
    """The serving job that options ask for, on top of a job file."""
    from vramcast.question.serving import build_serving
    from vramcast.question.serving_options import SERVE_OPTIONS

    merged, resolve = _question(options, file, SERVE_OPTIONS)
    return build_serving(merged, resolve=resolve)


def _question(
    options: Mapping[str, Any], file: str | Path | None, table: Mapping[str, Option]
) -> tuple[dict[str, Any], Resolve]:
    """The options over those of a job file, and what turns a model's name into the model."""
    from vramcast.domain.checkpoint import Checkpoint
    from vramcast.sources.resolve import resolve_checkpoint

    merged: dict[str, Any] = {}
    if file is not None:
        from vramcast.question.files import read_job

        merged |= read_job(Path(file), table)
    merged |= {name: value for name, value in options.items() if value is not None}
    model = merged.get("model")
    if isinstance(model, Model):
        return merged | {"model": model.name}, lambda _: Checkpoint(model=model)

    def resolve(text: str) -> Checkpoint:
        if is_script(text):
            from vramcast.question.configs.merged import script_checkpoint

            return script_checkpoint(text)
        return resolve_checkpoint(text)

    return merged, resolve
