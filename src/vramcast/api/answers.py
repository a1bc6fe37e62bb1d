"""`vramcast.train` and `vramcast.serve`: the answer to one plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.api.jobs import by_option, paths, serve_answer, train_answer
from vramcast.domain.model import Model

if TYPE_CHECKING:
    from vramcast.report.notebook import ShownAnswer, ShownServeAnswer


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
    from vramcast.report.notebook import shown

    return shown(train_answer({"model": model, "gpus": gpus, "from": paths(from_)} | by_option(options), file=file)[1])


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
