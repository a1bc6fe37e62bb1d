"""Which files a plan asks for, and the folder they are written to, with a README that says why each value stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Answer, Fleet, ServeAnswer
from vramcast.domain.job import Job
from vramcast.domain.pipeline import DiffusionJob
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName, Unsupported, joined
from vramcast.estimate.serving import as_placed
from vramcast.formats.files import PLACEHOLDER, Asked, File, Order, defects, hub_id, is_cut, needed, option_of
from vramcast.formats.launch import fleet_sentence
from vramcast.formats.registry import EMITTERS
from vramcast.sources.files import Content, write_folder
from vramcast.states.optimizers import canonical
from vramcast.units import GIB

README: Final = "README.md"


STARTS: Final = {
    "run.sh": "`bash run.sh` on every machine; NODE_RANK and MASTER_ADDR say which one it is",
    "serve.sh": "`bash serve.sh` starts the server",
    "ds_config.json": "DeepSpeed reads it through the Trainer, Accelerate or LLaMA-Factory",
    "accelerate.yaml": "`accelerate launch --config_file accelerate.yaml YOUR_SCRIPT`",
    "training_args.yaml": "the Trainer's arguments; `run.sh` hands them over",
    "llamafactory.yaml": "`FORCE_TORCHRUN=1 llamafactory-cli train llamafactory.yaml`",
    "axolotl.yaml": "`axolotl train axolotl.yaml`",
    "pai_dlc_job.json": "body of PAI-DLC's CreateJob",
    "pai_dlc_submit.sh": "the same by the `pai` command line",
    "pai_eas_service.json": "`eascmd create pai_eas_service.json`, or JSON deployment in the console",
    "pytorchjob.yaml": "`kubectl apply -f pytorchjob.yaml` with Kubeflow's training operator",
    "trainjob.yaml": "`kubectl apply -f trainjob.yaml` with Kubeflow Trainer 2",
    "deployment.yaml": "`kubectl apply -f deployment.yaml`",
    ".dstack.yml": "`dstack apply -f .dstack.yml`",
    "skypilot.yaml": "`sky launch skypilot.yaml`, for a service `sky serve up skypilot.yaml`",
}
"""File -> how it is used."""


class Written(NamedTuple):
    """What came of writing."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]  # what no file says, and what to know of those there are


def write_configs(
    job: Job | ServeJob | PipelineJob | DiffusionJob, directory: Path, *, formats: Iterable[str] = (),
    force: bool = False, answer: Answer | None = None,
) -> Written:
    """Write a plan as the files of the tools that run it.

    Args:
        job: the question, with its cluster
        directory: where to; made when it is not there
        formats: keys of EMITTERS; none: those of the job's engine, and launchers
        force: overwrite files that are there
        answer: its memory and time stand in the README, where given, and its replicas in every file

    Raises: UnknownName for a format, Unsupported for a plan that one asked for cannot say, SourceError where files
        are there already or cannot be written
    """
    files, notes = files_of(job, tuple(formats), answer=answer)
    write_files(directory, files, force=force)
    return Written(tuple(directory / file.name for file in files), notes)


def refuse_early(
    engines: Iterable[str], directory: Path, *, formats: Iterable[str] = (), force: bool = False
) -> None:
    """Refuse what writing a plan of one of these engines would refuse whatever the plan: before a search, not after.

    Raises: as `write_configs`
    """
    chosen = tuple(formats)
    for engine in engines:
        for name in chosen or formats_for(engine):
            _check(name, engine)
    _refuse_there(directory, [README], force=force)  # every plan has one
    existing = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise SourceError("{}: {} is a file; name another folder", directory, existing)
    if not os.access(existing, os.W_OK):
        raise SourceError("{}: no permission to write; name another folder", directory)


def files_of(
    job: Job | ServeJob | PipelineJob | DiffusionJob, formats: tuple[str, ...] = (), *, answer: Answer | None = None
) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The files of a plan, checked against the snapshots, and what is to be said of them.

    Raises: as `write_configs`
    """
    chosen = formats or formats_for(job.engine)
    for name in chosen:
        _check(name, job.engine)
    assert not isinstance(job, (PipelineJob, DiffusionJob))  # no format is for the engines of pipelines
    if isinstance(job, Job):
        job = replace(job, plan=replace(job.plan, optimizer=canonical(job.plan.optimizer)))
    else:
        job, _ = as_placed(job)  # the command says where layers lie: an engine moves none that are given
    fleet = answer.fleet if isinstance(answer, ServeAnswer) else None
    files, notes = _built(job, chosen, fleet, strict=bool(formats))
    problems = [text for file in files for text in defects(file)]
    if problems:
        raise RuntimeError("; ".join(problems))  # our own slip: a name that its tool does not know
    notes += tuple(text for file in files for text in file.notes) + _model_notes(job)
    notes += unsaid(job, files)
    notes = tuple(dict.fromkeys(notes))
    return (*files, _readme(job, files, notes, answer)), notes


def _model_notes(job: Job | ServeJob) -> tuple[str, ...]:
    """Where the checkpoint that files name is not the network of the plan."""
    found = []
    if is_cut(job.model) and job.engine != "megatron":
        found.append(Note("the plan is of {}; the checkpoint that the files name has all of them", job.model.name))
    if hub_id(job.model) == PLACEHOLDER:
        found.append(Note(
            "no checkpoint is known for {}: replace {} by its path or hub id", job.model.name, PLACEHOLDER
        ))
    return tuple(found)


def formats_for(engine: str) -> tuple[str, ...]:
    """What is written unasked.

    Raises: Unsupported for an engine without any format
    """
    chosen = tuple(name for name, emitter in EMITTERS.items() if engine in emitter.engines)
    frameworks = [emitter for emitter in EMITTERS.values() if emitter.kind == "framework"]
    if not any(engine in emitter.engines for emitter in frameworks):
        known = dict.fromkeys(name for emitter in frameworks for name in emitter.engines)
        raise Unsupported("no configuration files are written for engine {}; use {}", engine, ", ".join(known))
    return chosen


def check_formats(names: Iterable[str]) -> None:
    """Raise UnknownName for a format that is none."""
    for name in names:
        if name not in EMITTERS:
            raise UnknownName.of("format", name, EMITTERS)


def _check(name: str, engine: str) -> None:
    check_formats([name])
    emitter = EMITTERS[name]
    if engine not in (*emitter.engines, *emitter.also):
        fitting = ", ".join(other for other, e in EMITTERS.items() if engine in (*e.engines, *e.also))
        raise InvalidSpec("format {} is not for plans of engine {}; use {}", name, engine, fitting or "another engine")


def _built(
    job: Job | ServeJob, chosen: tuple[str, ...], fleet: Fleet | None, *, strict: bool
) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """Files by name, a framework's before the launchers'; formats nobody asked for may refuse."""
    found: dict[str, File] = {}
    notes: list[str] = []
    for name in sorted(chosen, key=lambda name: EMITTERS[name].kind):
        emitter = EMITTERS[name]
        if emitter.kind == "launcher" and not found and not strict:
            raise Unsupported(joined("; ", notes))  # nothing that could be started
        beside = tuple(found.values()) if emitter.kind == "launcher" else ()
        order = Order(job, Asked(job), beside, fleet)
        write: Callable[[Order], tuple[File, ...]] = getattr(
            import_module(f"vramcast.formats.tools.{emitter.module}"), emitter.function
        )
        try:
            files = write(order)
        except Unsupported as error:
            if strict:
                raise
            notes.append(Note("no {}: {}", name, error))
            continue
        if not files and strict:
            raise Unsupported("format {} has nothing to say of this plan: it runs without", name)
        for file in files:
            if file.name in found:
                raise InvalidSpec("format {} and another one chosen both write {}; choose one of them", name, file.name)
            found[file.name] = file
    if strict and not any(EMITTERS[name].kind == "framework" for name in chosen):
        notes.append("launchers alone: they start run.sh, which --format of a framework writes")
    return tuple(found.values()), tuple(notes)


def unsaid(job: Job | ServeJob, files: Iterable[File]) -> tuple[str, ...]:
    """The settings of a plan that none of the files says, one sentence each."""
    said = frozenset().union(*(file.said for file in files))
    return tuple(
        Note("{}={} stands in none of the files: set it by hand", option_of(name), _shown(value))
        for name, value in needed(job).items() if name not in said
    )


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def write_files(directory: Path, files: Iterable[File], *, force: bool) -> None:
    """All files or none: what is there already is only overwritten when that is asked for."""
    contents = {file.name: Content(file.text, file.executable) for file in files}
    _refuse_there(directory, contents, force=force)
    write_folder(directory, contents)


def _refuse_there(directory: Path, names: Iterable[str], *, force: bool) -> None:
    there = [name for name in names if (directory / name).exists()]
    if there and not force:
        raise SourceError(
            "{}: {} is there already; --force overwrites, or name another folder" if len(there) == 1
            else "{}: {} are there already; --force overwrites, or name another folder",
            directory, ", ".join(there)
        )


def _readme(job: Job | ServeJob, files: Iterable[File], notes: tuple[str, ...], answer: Answer | None) -> File:
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
