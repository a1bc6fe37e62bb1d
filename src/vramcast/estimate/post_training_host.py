"""What post-training keeps in each machine's main memory: what is offloaded, the engine's copy, the processes.

[pin] pytorch aten/src/ATen/core/CachingHostAllocator.h: a pinned block is a power of two, and is never given back
[move] verl utils/fsdp_utils.py: FSDP1's flat shards and the optimizer's states are copied without blocking, and so into
pinned memory, a block each; FSDP2's weights too, in 0.7 into pageable memory
[cumem] vllm device_allocator/cumem.py `sleep`: at level 1 every allocation of the weights is copied into pinned memory
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import HostNeed, HostPart
from vramcast.domain.model import scorer
from vramcast.domain.post_training import WITH_CRITIC, PostTrainingJob
from vramcast.domain.program import Category
from vramcast.engines.post_training import fsdp, megatron, trainer
from vramcast.engines.post_training.batches import batches, trainer_cluster
from vramcast.engines.post_training.releases import (
    has_own_reference,
    leaves_cards,
    lives_inside,
    release_of,
    sleep_level,
)
from vramcast.engines.post_training.rollout import engine, rating_job
from vramcast.engines.post_training.trainer import Held, Network
from vramcast.errors import Note
from vramcast.estimate import host_memory
from vramcast.estimate.host_memory import PROCESS_BYTES, RUNS, power_of_two
from vramcast.units import FP32, HALF, ceil_div

PAGEABLE: Final = ((0, 7), (0, 8))
"""Releases from one up to another whose FSDP2 weights wait in pageable memory [move]."""

MOVED: Final = "verl utils/fsdp_utils.py"
CUMEM: Final = "vllm device_allocator/cumem.py"


def host_need(job: PostTrainingJob, *, device_bytes: int) -> HostNeed:
    """What the ranks of a machine keep there together [bytes].

    Args:
        device_bytes: of the card at its fullest, which leaves the rest to the host where both memories are one
    """
    need, gpu = _host_need(job), job.cluster.gpu
    return replace(need, memory_there_bytes=max(0, gpu.visible_bytes - device_bytes)) if gpu.shares_memory else need


def _host_need(job: PostTrainingJob) -> HostNeed:
    cluster = job.cluster
    if job.engine == "huggingface":  # what DeepSpeed's offload takes is that of the same training
        found = host_memory.host_need(trainer.of(job).train_job(job, batches(job, learns=True)))
        if found is not None:
            return found
    parts = tuple(_parts(job, trainer_cluster(job).gpus_per_node))
    return HostNeed(
        memory_bytes=sum(part.low_bytes for part in parts), memory_high_bytes=sum(part.high_bytes for part in parts),
        memory_there_bytes=cluster.host_bytes, parts=parts,
    )


def _parts(job: PostTrainingJob, ranks: int) -> Iterator[HostPart]:
    found = batches(job, learns=True)
    learning, release = trainer.of(job).actor(job, found), release_of(job)
    steps_there = job.engine == "deepspeed" or (job.engine == "megatron" and megatron.steps_on_host(job))
    apart = steps_there and job.plan.offload_optimizer != "none"
    networks = {"": learning}
    away = "+".join(job.own_gpus).split("+")
    if job.algorithm in WITH_CRITIC and "critic" not in away:
        networks["critic's "] = trainer.of(job).critic(job, found)[0]
    pageable = job.engine == "pytorch" and fsdp.sharder(job) == "fsdp2" and PAGEABLE[0] <= job.version[:2] < PAGEABLE[1]
    moves, moved = trainer.moved_by_stage(job)
    stored = learning
    if job.engine == "pytorch" and fsdp.steps_on_host(job):
        on_card = replace(job, trainer_options={})
        stored = trainer.of(on_card).actor(on_card, found)
        yield from _all_there(on_card, stored, ranks)
    for whose, network in networks.items():
        if apart:
            need = host_memory.host_need(trainer.of(job).train_job(job, found))
            for part in need.parts if need is not None else ():
                if part.name != "processes":
                    yield replace(part, name=f"{whose}{part.name}")
        exact = job.framework == "slime"  # torch_memory_saver's own copies
        if moves or leaves_cards(job):
            yield _part(f"{whose}sharded weights", network.weights, ranks, pinned=not (pageable or exact))
        if moved or leaves_cards(job):
            yield _part(f"{whose}moments", network.moments, ranks, pinned=not exact)
    own = has_own_reference(job) and not trainer.rates_inside(job)
    if release.swaps_reference and job.updates.reference and job.plan.peft is None:
        shards = tuple((tensor, count) for tensor, count in learning.weights if tensor.category is Category.WEIGHTS)
        yield _part("weights of the reference", shards, ranks)
        yield _part("weights that learn, while the reference has their place", shards, ranks)
    if own and trainer.offloads_reference(job):
        frozen = trainer.of(job).reference(job, found)
        width = HALF if job.engine == "deepspeed" else FP32  # of what the network that learns keeps
        shards = frozen.weights or tuple(
            (replace(tensor, num_bytes=tensor.num_bytes * release.reference_width // width), count)
            for tensor, count in stored.weights)
        yield _part("weights of the reference", shards, ranks)
    served = rating_job(job)
    if served is not None:
        weights = engine(served, held_bytes=0).weights.num_bytes
        yield _at_most_pinned("weights of the reward network", weights, ranks, CUMEM)
    elif job.reward is not None and job.engine == "pytorch":
        weights = ceil_div(HALF * count_parameters(scorer(job.reward)).total, job.trainer_gpus)
        yield _at_most_pinned("weights of the reward network", weights, ranks, MOVED)
    drops = release.shares_weights or sleep_level(job) != 1
    if job.rollout.sleeps and job.rollout.gpus is None and not drops:
        weights = engine(job, held_bytes=0).weights.num_bytes
        yield _at_most_pinned("weights of the engine, asleep", weights, ranks, CUMEM)
    low, high = PROCESS_BYTES
    beside = job.cluster.gpus_per_node - ranks if job.rollout.gpus is not None else ranks  # of the engine
    rating = {"reference": job.updates.reference, "reward": job.reward is not None}
    trainers = len(networks) + sum(is_there and role not in away for role, is_there in rating.items())
    trainers = trainers if release.apart else 1 + int(served is not None)
    processes = ranks * trainers + (0 if lives_inside(job) else beside)
    yield HostPart(name="processes", low_bytes=processes * low, high_bytes=processes * high,
                   formula=Note("{} processes x {:g} to {:g} GB", processes, low / 1e9, high / 1e9), source=RUNS)


def _all_there(job: PostTrainingJob, learning: Network, ranks: int) -> Iterator[HostPart]:
    """What FSDP2's CPUOffloadPolicy keeps: pinned shards and their gradients; the optimizer's states are pageable.

    Args:
        job: the same on the card
        learning: its network
    """
    networks = {"": learning}
    if job.algorithm in WITH_CRITIC:
        networks["critic's "] = trainer.of(job).critic(job, batches(job, learns=True, of_critic=True))[0]
    for whose, network in networks.items():
        yield _part(f"{whose}sharded weights", network.weights, ranks)
        yield _part(f"{whose}gradients", network.weights, ranks)
        yield _part(f"{whose}moments", network.moments, ranks, pinned=False)


def _at_most_pinned(name: str, num_bytes: int, ranks: int, source: str) -> HostPart:
    """Blocks whose sizes are not known: between their own and twice that [pin]."""
    formula = Note("{} ranks x {:,} B, each block a power of two at most", ranks, num_bytes)
    return HostPart(name=name, low_bytes=ranks * num_bytes, high_bytes=2 * ranks * num_bytes, formula=formula,
                    source=source)


def _part(name: str, held: Held, ranks: int, *, pinned: bool = True) -> HostPart:
    """Every block of one kind; pinned ones are powers of two [pin]."""
    exact = sum(tensor.num_bytes * count for tensor, count in held)
    rounded = sum(power_of_two(tensor.num_bytes) * count for tensor, count in held) if pinned else exact
    return HostPart(
        name=name, low_bytes=ranks * rounded, high_bytes=ranks * rounded,
        formula=Note(
            "{} ranks x {:,} B, each block a power of two" if rounded > exact else "{} ranks x {:,} B", ranks, exact
        ),
        source=MOVED,
    )
