"""The Python interface: `vramcast.train(...)` and its kin return what the command line prints.

What computes an answer is imported when it is first asked for one.
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
