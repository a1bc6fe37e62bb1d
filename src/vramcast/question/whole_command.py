"""A plan that a search found, or a question, as the whole command that asks for it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import Job, Peft, Plan, Workload
from vramcast.domain.model import Model
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.domain.version import named
from vramcast.question.options import OPTIONS, Option
from vramcast.question.serving_options import SERVE_OPTIONS

KEPT: Final = ("model", "market")
"""Sections whose options are passed on as they were given."""

WRITTEN: Final = ("seq-len", "micro-batch", "grad-accum", "precision", "context", "concurrency")
"""Written whatever their value: engines and questions have defaults of their own."""

OTHERWISE: Final = ("zero",)
"""Options that say what another one says."""


def train_command(job: Job, options: Mapping[str, Any], model: str | None) -> str:
    """`vramcast train` with the options that make this job.

    Args:
        job: the plan
        options: what the search was asked; a model by numbers, prices and the length of the run are passed on
        model: how the question named it; None: by numbers
    """
    shards = ("shards",) if job.cluster.count > 1 else ()
    words = [
        "vramcast", "train", *([model] if model else []), "--gpus", job.cluster.name,
        "--engine", named(job.engine, job.engine_version),
        *_differing(job.workload, Workload(), OPTIONS, "workload"),
        *_differing(replace(job.plan, peft=None), Plan(), OPTIONS, "plan", always=shards),
    ]
    if job.plan.peft is not None:
        words += ["--peft", job.plan.peft.method, *_differing(job.plan.peft, Peft(), OPTIONS, "peft")]
    words += [*_engine_options(job.engine_options), *(["--alloc-conf", job.alloc_conf] if job.alloc_conf else [])]
    words += _passed_on(options, OPTIONS, also=("tokens",))
    return shlex.join(words)


def serve_command(job: ServeJob, options: Mapping[str, Any], model: str | None, label: str) -> str:
    """`vramcast serve` for one replica.

    Args:
        job: the replica
        options: what the search was asked
        model: how the question named it; None: by numbers
        label: the options of the replica, which say how its cards are named
    """
    gpus = label.split()[1]
    engine = named(job.engine, job.version)
    split = () if gpus.startswith("1x") else ("tp", "pp")  # by default tp is every card
    words = [
        "vramcast", "serve", *([model] if model else []), "--gpus", gpus, "--engine", engine,
        *_differing(job.requests, Requests(), SERVE_OPTIONS, "requests"),
        *_differing(replace(job.plan, draft=None), ServePlan(), SERVE_OPTIONS, "plan", always=split),
        *_engine_options(job.engine_options), *_passed_on(options, SERVE_OPTIONS, also=("calibration",)),
    ]
    return shlex.join(words)


def question_command(
    command: str, options: Mapping[str, Any], *, file: str | Path | None = None, configs: Iterable[str | Path] = (),
    behind: Iterable[str] = (),
) -> str:
    """What is typed to ask a question.

    Args:
        command: "train", "plan serve" ...
        options: by their names on the command line; what stands without a name is "model"; None: not given
        file: a job file beneath them
        configs: files of other tools beneath them
        behind: what stands behind "--"

    >>> question_command("train", {"model": "llama-3.1-8b", "gpus": "h100", "seq-len": 8192, "compile": False})
    'vramcast train llama-3.1-8b --gpus h100 --seq-len 8192 --no-compile'
    """
    model = options.get("model")
    name = model.name if isinstance(model, Model) else model
    words = ["vramcast", *command.split(), *([str(name)] if name is not None else [])]
    for option, value in {**options, "file": file, "from": tuple(configs)}.items():
        if option == "model" or value in (None, ""):
            continue
        for one in value if isinstance(value, (list, tuple)) else (value,):
            words += _written(option, one)
    arguments = tuple(behind)
    return shlex.join([*words, *(("--", *arguments) if arguments else ())])


def _differing(
    noun: Struct, usual: Struct, table: Mapping[str, Option], section: str, *, always: tuple[str, ...] = ()
) -> Iterator[str]:
    """Options of the fields that are not as usual."""
    for name, option in table.items():
        if option.section != section or name in OTHERWISE or name == "peft":
            continue
        value = getattr(noun, option.field)
        if value is not None and (value != getattr(usual, option.field) or name in (*WRITTEN, *always)):
            yield from _written(name, value)


def _written(name: str, value: object) -> Iterator[str]:
    """One option as the command line takes it."""
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    yield f"--{name}"
    yield ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _engine_options(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        yield "--engine-option"
        yield f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def _passed_on(options: Mapping[str, Any], table: Mapping[str, Option], *, also: tuple[str, ...]) -> Iterator[str]:
    for name, value in options.items():
        known = table.get(name)
        if known is not None and value is not None and (known.section in KEPT or name in also):
            yield from _written(name, value)
