"""Plans that the tests of emitted files are about."""

import ast
from pathlib import Path
from typing import Any

from vramcast.api import job_of, serve_job_of
from vramcast.domain.job import Job
from vramcast.domain.serving import ServeJob
from vramcast.formats.files import File, needed, option_of, read_back
from vramcast.formats.write import files_of


def training(model: str | None, gpus: str, **options: Any) -> Job:
    """A training job by the options of the command line."""
    return job_of({"model": model, "gpus": gpus} | named(options))


def serving(model: str, gpus: str, **options: Any) -> ServeJob:
    """A serving job by the options of the command line."""
    job = serve_job_of({"model": model, "gpus": gpus} | named(options))
    assert isinstance(job, ServeJob)
    return job


def named(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in options.items()}


def files(job: Job | ServeJob, *formats: str) -> dict[str, File]:
    """The files of a plan by name."""
    return {file.name: file for file in files_of(job, formats)[0]}


def saying_all(job: Job | ServeJob) -> dict[str, File]:
    """The files of a plan by name; what it says stands in one of them or in a note."""
    found, said = files_of(job)  # raises RuntimeError for a name that a tool does not know
    everything = frozenset().union(*(file.said for file in found))
    for setting in needed(job):
        assert setting in everything or any(option_of(setting) in note for note in said), setting
    return {file.name: file for file in found}


def notes(job: Job | ServeJob, *formats: str) -> str:
    """Everything that is said beside the files."""
    return "\n".join(files_of(job, formats)[1])


def values(job: Job | ServeJob, name: str, *formats: str) -> Any:
    """What one file of a plan holds, read back."""
    return read_back(files(job, *formats)[name])


def at(found: Any, path: str) -> Any:
    """What stands at the end of a path of names and places with points between; None where there is nothing."""
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else found.get(key)
    return found


def constants(file: File) -> dict[str, Any]:
    """The constants of a Python script."""
    found = {}
    for node in ast.parse(file.text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def write_all(found: dict[str, File], folder: Path) -> None:
    """The files on disk."""
    for name, file in found.items():
        (folder / name).write_text(file.text, encoding="utf-8")
