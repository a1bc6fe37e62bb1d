"""How many sequences an engine runs at once, however many its cache would hold: the others wait."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from msgspec.structs import replace

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.table import SERVING


def most_running(job: ServeJob) -> int | None:
    """Sequences that all copies run at once; None where the settings say nothing."""
    found = _setting(job, SERVING[job.engine].limit)
    return None if found is None else found * job.plan.dp


def prompt_step(job: ServeJob) -> int | None:
    """Tokens of prompts that one forward takes, as the engine settles it for the card; None where it cuts none."""
    return _setting(job, SERVING[job.engine].step)


def _setting(job: ServeJob, name: str) -> int | None:
    if not name:
        return None
    settings: Any = import_module(SERVING[job.engine].module).settings_of(job)
    found: int | None = getattr(settings, name)
    return found


def running_of(job: ServeJob) -> ServeJob:
    """The job with the sequences of its load that run at once."""
    limit = most_running(job)
    if limit is None or limit >= job.requests.concurrency:
        return job
    return replace(job, requests=replace(job.requests, concurrency=limit))


def waiting_caution(job: ServeJob) -> str | None:
    """What is to be said of a load of more sequences than run at once."""
    asked, limit = job.requests.concurrency, most_running(job)
    if limit is None or limit >= asked:
        return None
    return f"{job.engine} runs {limit} of {asked} sequences at once, the others wait; raise --max-sequences"
