"""`vramcast.serve` and `vramcast.reconcile`: one serving plan, and what a server's log says beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.api.jobs import by_option, paths, question_of
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.model import Model
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import InvalidSpec
from vramcast.estimate.serving import answer as serving_answer
from vramcast.question.options import NO_SEARCH
from vramcast.question.serving import build_serving, goal_of
from vramcast.question.serving_options import SERVE_OPTIONS

if TYPE_CHECKING:
    from vramcast.domain.reconciliation import Reconciliation
    from vramcast.question.build import Resolve
    from vramcast.report.notebook import ShownServeAnswer


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
    from vramcast.report.notebook import shown_serving

    given = {"model": model, "gpus": gpus, "from": paths(from_)} | by_option(options)
    return shown_serving(serve_answer(given, file=file))


def serve_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> ServeAnswer:
    """The answer to a serving question on top of a job file: of its plan, or of the plan it asks to find."""
    asked = question_of(options, file, SERVE_OPTIONS, command="serve")
    goal, job = goal_of(asked.options), build_serving(asked.options, resolve=resolve or asked.resolve)
    if goal is None and asked.options.get("headroom") is not None:
        raise InvalidSpec(NO_SEARCH)
    if goal is None or isinstance(job, PipelineJob):
        return asked.noted(serving_answer(job, with_changes=with_changes))
    from vramcast.catalogue.gpus import gpu_names, load_gpu
    from vramcast.question.amounts import headroom_of
    from vramcast.search.serving import find

    return asked.noted(find(goal, job, cards=map(load_gpu, gpu_names()), headroom=headroom_of(asked.options)))


def serve_job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> ServeJob | PipelineJob:
    """The serving job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    asked = question_of(options, file, SERVE_OPTIONS, command="serve")
    return build_serving(asked.options, resolve=resolve or asked.resolve)


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
    merged = question_of(given, file, SERVE_OPTIONS, command="serve").options
    if save_calibration is not None and "calibration" in merged:
        raise InvalidSpec("--save-calibration compares with the plain prediction; leave out --calibration")
    from vramcast.doctor.compare import reconcile as reconciled
    from vramcast.question.calibration import write_calibration

    found = reconciled(Path(log), merged)
    if save_calibration is not None:
        if found.calibration is None:
            raise InvalidSpec(f"{Path(log).name} measures nothing that a calibration could correct; save none")
        write_calibration(Path(save_calibration), found.calibration)
    return found
