"""What a load itself needs of the cards, beside what an engine takes because it is there.

An engine with a pool fills a share of the card with it, whatever the load: the pool's size says how large the card is.
What is needed is everything else (weights, activations, graphs, contexts) and the part of the pool that the sequences
in flight fill.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.domain.answer import LoadMemory, RankAnswer
from vramcast.domain.job import Phase
from vramcast.domain.serving import ServeJob, ServingRank
from vramcast.units import ceil_div


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
