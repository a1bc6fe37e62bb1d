"""Options of a text read back into a job, as the command line would."""

import shlex
from typing import Any

from vramcast.api import job_of
from vramcast.domain.job import Job


def job(model: str = "llama-3.2-1b", gpus: str = "8xa100-sxm4-80gb", **options: Any) -> Job:
    return job_of({"model": model, "gpus": gpus} | {name.replace("_", "-"): value for name, value in options.items()})


def read(text: str) -> dict[str, Any]:
    """'--tp 2 --compile' as {'tp': '2', 'compile': True}."""
    found: dict[str, Any] = {}
    words = shlex.split(text)
    while words:
        name = words.pop(0).removeprefix("--")
        if words and not words[0].startswith("--"):
            found[name] = words.pop(0)
        else:
            found[name.removeprefix("no-")] = not name.startswith("no-")
    return found
