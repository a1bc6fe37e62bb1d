"""How many sequences an engine runs at once, however many its cache would hold: the others wait; and what
a load itself needs of the cards, beside what the engine takes because it is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from vramcast.domain.answer import LoadMemory, RankAnswer
from vramcast.domain.job import Phase
from vramcast.domain.model import Attention, MultiLatentAttention
from vramcast.domain.serving import ServeJob, ServingRank
from vramcast.engines.serving.table import SERVING
from vramcast.errors import Note
from vramcast.units import ceil_div


def most_running(job: ServeJob) -> int | None:
    """Sequences that all copies run at once; None where the settings say nothing."""
    found = _setting(job, SERVING[job.engine].limit)
    return None if found is None else found * job.plan.dp


def prompt_step(job: ServeJob) -> int | None:
    """Tokens of prompts that one forward takes, as the engine settles it for the card; None where it cuts none."""
    return _setting(job, SERVING[job.engine].step)


def finds_its_own(job: ServeJob) -> bool:
    """Whether who was cut off finds blocks that it wrote and nobody took since [see timing.batching, cache]: in vLLM
    with prefix caching, of networks whose layers all keep every token."""
    settings: Any = import_module(SERVING[job.engine].module).settings_of(job)
    keeps = all(
        isinstance(mixer, Attention | MultiLatentAttention) and getattr(mixer, "window", None) is None
        for mixer in (run.layer.mixer for run in job.model.main.runs)
    )
    return keeps and getattr(settings, "prefix_caching", False)


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
    return Note("{} runs {} of {} sequences at once, the others wait; raise --max-sequences", job.engine, limit, asked)


def load_memory(job: ServeJob, ranks: Iterable[tuple[ServingRank, RankAnswer]]) -> LoadMemory:
    """Bytes that the sequences in flight need, over all cards and on the fullest.

    Leaves out cards without a rank, and what a larger memory fraction or fewer sequences a step would change.

    Args:
        job: the question; its sequences are as long as its context
        ranks: each role of the deployment with its peaks
    """
    sequences = ceil_div(job.requests.concurrency, job.plan.dp)
    needed = [(rank.program.count, _needed_bytes(rank, answer, sequences, job.context)) for rank, answer in ranks]
    return LoadMemory(
        total_bytes=sum(count * num_bytes for count, num_bytes in needed),
        per_gpu_bytes=max(num_bytes for _, num_bytes in needed),
    )


def _needed_bytes(rank: ServingRank, answer: RankAnswer, sequences: int, context: int) -> int:
    """Of one rank, at the highest phase once the unused part of the pool is left out [bytes]."""
    cache = rank.cache
    unused = 0
    if cache is not None and not rank.grows:
        unused = max(0, cache.num_bytes - sequences * cache.sequence_bytes(context))
    return max(
        peak.device_bytes - (0 if name == Phase.LOAD.value else unused) for name, peak in answer.phases.items()
    )
