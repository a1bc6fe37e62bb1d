"""The README of a folder: what the plan is, what each file is for, why every value stands there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.job import Job
from vramcast.domain.serving import ServeJob
from vramcast.emit.asked import needed, option_of
from vramcast.emit.files import PLACEHOLDER, File
from vramcast.emit.replicas import fleet_sentence
from vramcast.units import GIB

STARTS: Final = {
    "run.sh": "`bash run.sh` on every machine; NODE_RANK and MASTER_ADDR say which one it is",
    "serve.sh": "`bash serve.sh` starts the server",
    "ds_config.json": "DeepSpeed reads it through the Trainer, Accelerate or LLaMA-Factory",
    "accelerate.yaml": "`accelerate launch --config_file accelerate.yaml YOUR_SCRIPT`",
    "training_args.yaml": "the Trainer's arguments; `run.sh` hands them over",
    "llamafactory.yaml": "`FORCE_TORCHRUN=1 llamafactory-cli train llamafactory.yaml`",
    "pai_dlc_job.json": "body of PAI-DLC's CreateJob",
    "pai_dlc_submit.sh": "the same by the `pai` command line",
    "pai_eas_service.json": "`eascmd create pai_eas_service.json`, or JSON deployment in the console",
    "pytorchjob.yaml": "`kubectl apply -f pytorchjob.yaml` with Kubeflow's training operator",
    "trainjob.yaml": "`kubectl apply -f trainjob.yaml` with Kubeflow Trainer 2",
    "deployment.yaml": "`kubectl apply -f deployment.yaml`",
    "skypilot.yaml": "`sky launch skypilot.yaml`, for a service `sky serve up skypilot.yaml`",
}
"""File -> how it is used."""


def readme(job: Job | ServeJob, files: Iterable[File], notes: tuple[str, ...], answer: Answer | None) -> File:
    """One page."""
    files = tuple(files)
    cluster = job.cluster
    lines = [f"# {job.model.name} on {cluster.name}", "", f"Planned by vramcast for {job.engine}.", ""]
    if answer is not None:
        lines += [*_answer_lines(answer), ""]
    lines += ["| setting | value |", "|---|---|"]
    lines += [f"| `{option_of(name)}` | {_cell(value)} |" for name, value in needed(job).items()]
    lines += ["", "| file | what to do with it |", "|---|---|"]
    lines += [f"| `{file.name}` | {STARTS.get(file.name, 'read by the others')} |" for file in files]
    if any(PLACEHOLDER in file.text for file in files):
        lines += ["", f"Replace every `{PLACEHOLDER}`: only you know these values."]
    if notes:
        lines += ["", "## What to know", "", *(f"- {note}" for note in notes)]
    for file in files:
        if file.reasons:
            lines += ["", f"## Why `{file.name}` says what it says", "", "| value | reason |", "|---|---|"]
            lines += [f"| `{path}` | {_cell(why)} |" for path, why in file.reasons]
    return File("README.md", "\n".join(lines) + "\n")


def _answer_lines(answer: Answer) -> list[str]:
    needed_bytes = answer.fullest.needed_bytes
    lines = [f"It {answer.verdict}: {needed_bytes / GIB:.2f} of {answer.capacity_bytes / GIB:.2f} GiB per GPU."]
    if isinstance(answer, ServeAnswer):
        lines += _served_lines(answer)
    if answer.time is not None:
        lines.append(f"One step takes {answer.time.step_s:.3g} s: {answer.time.tokens_per_s:,.0f} tokens/s in all.")
    return lines


def _served_lines(answer: ServeAnswer) -> list[str]:
    """Replicas, what users get, and the price, as far as they are known."""
    lines, speed, fleet = [], answer.speed, answer.fleet
    if fleet is not None:
        lines.append(fleet_sentence(fleet))
        if fleet.replicas_per_machine > 1:
            lines.append(f"Up to {fleet.replicas_per_machine} of them share a machine, each on cards of its own.")
    if speed is not None and speed.tokens_per_s is not None and speed.tokens_per_s_per_user is not None:
        of_all = speed.tokens_per_s if fleet is None else fleet.tokens_per_s
        lines.append(
            f"With the prompts' time a user gets {speed.tokens_per_s_per_user:,.1f} tokens/s, all together "
            f"{of_all:,.0f} tokens/s."
        )
    if answer.cost is not None:
        lines.append(f"All machines cost {answer.cost.per_hour:.2f} {answer.cost.price.currency} an hour.")
    return lines


def _cell(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
