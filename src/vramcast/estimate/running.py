"""How many sequences an engine runs at once, however many its cache would hold: the others wait."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.serving import ServeJob


class Limit(NamedTuple):
    """Where an engine's settings say how many sequences one copy runs."""

    module: str
    field: str


LIMITS: Final[dict[str, Limit]] = {
    "vllm": Limit("vramcast.engines.vllm.settings", "max_sequences"),
    "sglang": Limit("vramcast.engines.sglang.settings", "max_running"),
    "tensorrt-llm": Limit("vramcast.engines.tensorrt_llm.settings", "sequences"),
    "llama.cpp": Limit("vramcast.engines.llamacpp.settings", "slots"),
    "ik_llama.cpp": Limit("vramcast.engines.llamacpp.settings", "slots"),
}
"""Engine -> its limit: max_num_seqs, max_running_requests, max_batch_size, -np."""


def most_running(job: ServeJob) -> int | None:
    """Sequences that all copies run at once; None where the settings say nothing."""
    limit = LIMITS.get(job.engine)
    if limit is None:
        return None
    settings: Any = import_module(limit.module).settings_of(job)
    found: int | None = getattr(settings, limit.field)
    return None if found is None else found * job.plan.dp


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
