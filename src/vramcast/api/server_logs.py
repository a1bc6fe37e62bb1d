"""`vramcast.reconcile`: what a server printed beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.api.jobs import by_option, question_of
from vramcast.doctor.compare import reconcile as reconciled
from vramcast.domain.failure import Reconciliation
from vramcast.errors import InvalidSpec
from vramcast.question.calibration import write_calibration


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
    found = reconciled(Path(log), merged)
    if save_calibration is not None:
        if found.calibration is None:
            raise InvalidSpec("{} measures nothing that a calibration could correct; save none", Path(log).name)
        write_calibration(Path(save_calibration), found.calibration)
    return found
