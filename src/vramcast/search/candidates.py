"""The plans that each inverse question looks at, in the order in which they are preferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.model import Attention, LinearAttention, Mixer, Model, MultiLatentAttention
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.checks import dtype_on, has_kernel, runs_on
from vramcast.engines.serving.table import SERVING
from vramcast.errors import Unsupported
from vramcast.estimate.serving_changes import with_length
from vramcast.states.storage import FORMATS

NODE_CARDS: Final = 8
"""Cards of one machine, when more are asked for than one has."""

COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of cards that are looked at."""

class Candidate(NamedTuple):
    """One plan to look at."""

    what: str  # the options in which it differs
    value: int | str
    job: ServeJob


def smallest_gpu(job: ServeJob, cards: Iterable[Gpu]) -> Iterator[Candidate]:
    """As many cards as the question has, of every kind that the engine runs on, the smallest first."""
    alone = job.cluster.count == 1
    fitting = [gpu for gpu in cards if runs_on(job.engine, job.version, gpu) and (alone or not gpu.stands_alone)]
    for gpu in sorted(fitting, key=lambda gpu: (gpu.visible_bytes, gpu.bandwidth_bytes_per_s or 0, gpu.name)):
        if job.plan.weights is not None and not has_kernel(
            job.plan.weights, gpu, job.engine, job.version
        ):
            continue
        cluster = Cluster(gpu=gpu, gpus_per_node=job.cluster.gpus_per_node, num_nodes=job.cluster.num_nodes)
        moved = replace(job, cluster=cluster)
        what = f"--gpus {cluster.name}"
        dtype = dtype_on(gpu, job.plan.dtype or job.model.dtype)
        if dtype != (job.plan.dtype or job.model.dtype):
            moved, what = replace(moved, plan=replace(job.plan, dtype=dtype)), f"{what} --dtype {dtype}"
        yield Candidate(what, gpu.name, moved)


def fewest_gpus(job: ServeJob) -> Iterator[list[Candidate]]:
    """For every number of cards all splits over them."""
    for count in COUNTS if not job.cluster.gpu.stands_alone else (1,):
        per_node = min(count, NODE_CARDS)
        cluster = Cluster(gpu=job.cluster.gpu, gpus_per_node=per_node, num_nodes=count // per_node)
        yield [
            Candidate(f"--gpus {cluster.name} {split.what}".rstrip(), count, split.job)
            for split in splits(replace(job, cluster=cluster))
        ]


def splits(job: ServeJob) -> Iterator[Candidate]:
    """Tensor and pipeline degrees that use every card, the largest tensor groups within one machine first."""
    count = job.cluster.count
    if not SERVING[job.engine].splits:
        yield Candidate("", count, replace(job, plan=replace(job.plan, tp=count, pp=1, dp=1)))
        return
    degrees = [tp for tp in range(count, 0, -1) if count % tp == 0 and divisible(tp, job.model)]
    for tp in sorted(degrees, key=lambda tp: tp > job.cluster.gpus_per_node):
        plan = replace(job.plan, tp=tp, pp=count // tp, dp=1)
        yield Candidate(f"--tp {tp} --pp {count // tp}", f"tp={tp} pp={count // tp}", replace(job, plan=plan))


def divisible(tp: int, model: Model) -> bool:
    """Whether every layer's heads can be divided by so many ranks."""
    return all(heads % tp == 0 for run in model.main.runs for heads in _heads(run.layer.mixer))


def _heads(mixer: Mixer | None) -> Iterator[int]:
    match mixer:
        case Attention() | MultiLatentAttention():
            yield mixer.num_heads
        case LinearAttention():
            yield from (mixer.num_k_heads, mixer.num_v_heads)


def formats(job: ServeJob) -> Iterator[Candidate]:
    """The checkpoint as it is, then every smaller format that the engine loads and the card has kernels for.

    Raises: Unsupported for an engine whose formats are not known
    """
    if not SERVING[job.engine].formats:
        known = ", ".join(name for name, engine in SERVING.items() if engine.formats)
        raise Unsupported(f"which formats {job.engine} loads is not known; use {known}")
    own = job.model.quantisation or job.model.dtype
    yield Candidate("as stored", own, replace(job, plan=replace(job.plan, weights=None), weights=job.weights))
    bits = FORMATS[own].bits_per_weight if own in FORMATS else 16.0
    for name in SERVING[job.engine].formats:
        if FORMATS[name].bits_per_weight < bits and has_kernel(
            name, job.cluster.gpu, job.engine, job.version
        ):
            changed = replace(job, plan=replace(job.plan, weights=name), weights=None)
            yield Candidate(f"--weights {name}", name, changed)


def with_context(job: ServeJob, tokens: int) -> Candidate:
    """The same load with longer or shorter sequences; a prompt that would not go in is cut."""
    words, changed = with_length(job.requests, tokens)
    return Candidate(words, tokens, replace(job, requests=changed))


def with_users(job: ServeJob, sequences: int) -> Candidate:
    """The same load with more or fewer sequences at once."""
    changed = replace(job.requests, concurrency=sequences)
    return Candidate(f"--concurrency {sequences}", sequences, replace(job, requests=changed))
