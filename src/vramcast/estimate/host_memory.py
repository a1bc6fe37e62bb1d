"""What a training plan keeps beside the cards: main memory and local disks of every machine.

A figure is a range. Its lower end is what the run cannot do without: a plan refused for it cannot run. Its upper end
adds what depends on settings and on the loader: PyTorch's pinned allocator rounds every block up to a power of two and
gives none back, every rank may read the whole checkpoint, the rank that saves gathers all weights. Leaves out data
sets, their loaders' workers, and the operating system.

Symbols:  N elements of all weights   n elements of a rank's partition
[pin] pytorch aten/src/ATen/core/CachingHostAllocator.h `allocate`: `c10::llvm::PowerOf2Ceil`; blocks are kept for reuse
[zero3] deepspeed 0.19.6 runtime/zero/stage3.py `_create_fp32_partitions`, `initialize_optimizer_states`,
`_setup_for_real_optimizer`, `_create_param_groups_fp16_flat_cpu_memory`; partition_parameters.py `_partition_param`
[zero2] runtime/zero/stage_1_and_2.py `__init__`, `initialize_optimizer_states`, `async_accumulate_grad_in_cpu_via_gpu`
[swap] runtime/swap_tensor/optimizer_utils.py `OptimizerSwapper`, partitioned_param_swapper.py, zero/offload_config.py
[adam] deepspeed ops/adam/cpu_adam.py; pytorch torch/optim/adamw.py: moments like the weights they belong to
[fsdp] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py `_init_sharded_param`, _fsdp_collectives.py
`foreach_reduce`; FSDP1's _flat_param.py `init_flat_param_attributes`: pinned shards; gradients come back by a copy that
does not block, into pinned memory
[hybrid] Megatron-LM megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py
[hf] transformers modeling_utils.py `from_pretrained`: each rank opens the checkpoint; deepspeed runtime/engine.py
`_zero3_consolidated_16bit_state_dict`
[gemini] ColossalAI colossalai/zero/low_level/low_level_optim.py: master weights and moments of its partition
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import Final

from msgspec import Struct

from vramcast.blocks.parameters.model import count_parameters, named_parameters
from vramcast.domain.answer import HostNeed, HostPart
from vramcast.domain.job import Job, Precision, Shards
from vramcast.domain.model import Model
from vramcast.engines import eager
from vramcast.engines.eager.releases import runs_deepspeed
from vramcast.engines.training import TRAINING, TrainingEngine, engine_of
from vramcast.errors import Note, VramcastError, joined
from vramcast.estimate.checks import sharded_by
from vramcast.estimate.techniques import of_plain_layers
from vramcast.units import FP32, HALF, ceil_div, format_bytes

MOMENTS: Final[dict[str, int]] = {"adam": 8, "adamw": 8, "adam-8bit": 2, "adamw-8bit": 2}
"""Optimizer -> bytes of its states of a parameter in fp32; of others only the copy of the weights is counted."""

SUB_GROUP: Final = 1_000_000_000
"""Elements of a rank that are stepped together: `sub_group_size` [zero3]."""

SWAP_BUFFERS: Final = 4
PARAM_BUFFERS: Final = 5
BUFFER_ELEMENTS: Final = 100_000_000
"""`buffer_count` of offload_optimizer and of offload_param, and its `buffer_size` [swap]."""

PROCESS_BYTES: Final = (3 * 10**9, 6 * 10**9)
"""Interpreter, CUDA's pages on the host and libraries of one rank [RUNS]."""

ZERO3: Final = "deepspeed runtime/zero/stage3.py"
ZERO2: Final = "deepspeed runtime/zero/stage_1_and_2.py"
SWAP: Final = "deepspeed runtime/swap_tensor"
ADAM: Final = "deepspeed ops/adam/cpu_adam.py, torch/optim/adamw.py"
FULLY_SHARD: Final = "pytorch torch/distributed/fsdp"
HYBRID: Final = "Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py"
LOW_LEVEL: Final = "ColossalAI zero/low_level/low_level_optim.py"
LOADING: Final = "transformers modeling_utils.py; deepspeed runtime/engine.py"
RUNS: Final = "runs of verl, OpenRLHF and TRL"

FSDP: Final = ("fsdp1", "fsdp2")
"""Sharders whose offload takes weights, gradients and states together [fsdp]."""


class Blocks(Struct, frozen=True):
    """How an offloaded tensor lies in main memory."""

    pinned: bool = False  # page-locked: every block is a power of two [pin]
    elements: int = 0  # of one block on a rank; 0: a block for each weight


class Part(Struct, frozen=True):
    """One thing that the ranks of a machine keep there."""

    name: str
    width: int  # bytes an element
    source: str
    blocks: Blocks = Blocks()
    learning: bool = True  # of what learns only
    whole: bool = False  # on every rank, not a partition
    certain: bool = True  # False: counted in the upper end only
    most: int = 0  # elements of a rank that are there at once; 0: all


class Sharing(Struct, frozen=True):
    """Who keeps how much."""

    ranks: int  # of one machine
    shards: int  # a copy of the weights is divided into
    number: int  # elements of all weights
    learning: int  # of those that learn


def offload_of(job: Job) -> tuple[str, str]:
    """Where an optimizer's states and where weights wait: "none", "cpu" or "nvme"; FSDP moves both or neither [fsdp].

    The engines refuse what FSDP cannot do.
    """
    asked = (job.plan.offload_optimizer, job.plan.offload_parameters)
    return ("cpu", "cpu") if "cpu" in asked and _fully_sharded(job) else asked


def _sharder(job: Job) -> TrainingEngine:
    """Whose optimizer it is: DeepSpeed's under the Trainer, too."""
    return TRAINING.get(sharded_by(job) or "") or engine_of(job)


def _fully_sharded(job: Job) -> bool:
    return engine_of(job).wraps_alone or sharded_by(job) in FSDP


def host_need(job: Job) -> HostNeed | None:
    """What the offloaded parts of a plan take of each machine; None where nothing is offloaded [bytes]."""
    cluster = job.cluster
    moved, sharing = set(offload_of(job)) != {"none"}, _sharing(job)
    parts = [_measured(part, job.model, sharing) for part in _parts(job)] if moved else []
    parts += _saved_activations(job, sharing)
    if not parts:
        return None
    parts += [_processes(sharing), *_passing(job, sharing, sum(part.high_bytes for part in parts))]
    return HostNeed(
        memory_bytes=sum(part.low_bytes for part in parts),
        memory_high_bytes=sum(part.high_bytes for part in parts),
        disk_bytes=ceil_div(_on_disks(job, sharing), cluster.num_nodes),
        memory_there_bytes=cluster.host_bytes,
        disk_there_bytes=cluster.nvme_bytes,
        parts=tuple(parts),
    )


def _saved_activations(job: Job, sharing: Sharing) -> Iterator[HostPart]:
    """What layers save of a micro-batch, page-locked at most [pin]."""
    if not job.plan.offload_activations or job.engine not in eager.checks.SAVES_ON_HOST:
        return
    of_rank = eager.passes.offloaded_bytes(eager.question.recipe_of(job))
    yield HostPart(
        name="activations saved for backward", low_bytes=sharing.ranks * of_rank,
        high_bytes=2 * sharing.ranks * of_rank, formula=Note(
            "{} ranks x {:,} B, page-locked twice", sharing.ranks, of_rank
        ),
        source="pytorch torch/autograd/graph.py `save_on_cpu`, trl models/activation_offloading.py",
    )


def _sharing(job: Job) -> Sharing:
    plan, cluster = job.plan, job.cluster
    number = count_parameters(job.model).total
    data = job.data_parallel * plan.cp
    sharded = plan.shards is not Shards.NOTHING or _sharder(job).divides_states
    divided = min(plan.shard_group or data, data) if sharded else 1
    part = float(job.engine_options.get("offload_fraction", 1))
    return Sharing(
        ranks=ceil_div(cluster.count, cluster.num_nodes), shards=max(1, divided * plan.model_parallel), number=number,
        learning=ceil((number if plan.peft is None else _adapters(job)) * part),
    )


def _adapters(job: Job) -> int:
    """Elements that adapters add, as far as they are known."""
    assert job.plan.peft is not None
    if job.plan.peft.trainable_parameters:
        return job.plan.peft.trainable_parameters
    try:
        weights = eager.recipe.weights(eager.question.recipe_of(of_plain_layers(job)))
        return sum(weight.elements * weight.repeats for weight in weights if weight.learns)
    except VramcastError:
        return 0


def _parts(job: Job) -> Iterator[Part]:
    """Everything that stands in main memory, by who shards."""
    plan = job.plan
    moments = MOMENTS.get(plan.optimizer, 0)
    if _fully_sharded(job):
        narrow = plan.precision in (Precision.BF16, Precision.FP16) and not job.engine_options.get("autocast")
        width = HALF if narrow else FP32
        frozen = width if plan.peft is None or plan.precision in (Precision.FP32, Precision.TF32) else HALF
        yield Part("sharded weights", frozen, FULLY_SHARD, Blocks(pinned=True), learning=False)
        yield Part("sharded gradients", width, FULLY_SHARD, Blocks(pinned=True))
        yield Part("moments", moments * width // FP32, ADAM)
    elif job.engine == "megatron":
        yield Part("fp32 weights", FP32, HYBRID, Blocks(pinned=True))
        yield Part("gradients", FP32, HYBRID, Blocks(pinned=True))
        yield Part("moments", moments, ADAM)
        yield Part("16-bit weights they were made of", HALF, HYBRID, Blocks(pinned=True), certain=False)
    elif job.engine == "colossalai":
        yield Part("fp32 weights", FP32, LOW_LEVEL)
        yield Part("moments", moments, ADAM)
        yield Part("fp32 gradients of a step", FP32, LOW_LEVEL, certain=False)
    else:
        everything = plan.shards is Shards.EVERYTHING
        yield from (_zero3 if everything else _zero2)(job, moments)
        if everything and plan.offload_parameters != "none":
            yield from _parameters(job)


def _passing(job: Job, sharing: Sharing, steady: int) -> Iterator[HostPart]:
    """What is there before training or when a checkpoint is saved, as far as it is more than training takes."""
    if not runs_deepspeed(job):
        return
    weights = sharing.number * HALF
    read, saved = max(0, sharing.ranks * weights - steady), weights if job.plan.shards is Shards.EVERYTHING else 0
    for name, num_bytes, formula in (
        ("checkpoint, read by every rank", read, Note(
            "{} ranks x {:,} B, less what comes after it", sharing.ranks, weights
        )),
        ("weights gathered to be saved", saved, Note("{:,} B on one rank", weights)),
    ):
        if num_bytes:
            yield HostPart(name=name, low_bytes=0, high_bytes=num_bytes, formula=formula, source=LOADING)


def _zero3(job: Job, moments: int) -> Iterator[Part]:
    """Optimizer states of ZeRO-3."""
    width = FP32 if job.engine_options.get("grad_accum_dtype") == "fp32" else HALF
    match job.plan.offload_optimizer:
        case "cpu":
            yield Part("fp32 weights", FP32, ZERO3)
            yield Part("moments", moments, ADAM)
            yield Part("fp32 gradients", FP32, ZERO3, Blocks(pinned=True, elements=SUB_GROUP))
            yield Part("gradient partitions", width, ZERO3, Blocks(pinned=True, elements=_FLAT))
        case "nvme":
            yield Part("gradient partitions", width, ZERO3, Blocks(pinned=True, elements=_FLAT))
            yield Part("swap buffers", FP32 * SWAP_BUFFERS, SWAP, most=SUB_GROUP)


def _zero2(job: Job, moments: int) -> Iterator[Part]:
    """Optimizer states of ZeRO-1 and 2: one flat partition a rank."""
    if job.plan.offload_optimizer == "none":
        return
    flat = Blocks(pinned=True, elements=_FLAT)
    yield Part("fp32 weights", FP32, ZERO2, flat)
    yield Part("moments", moments, ADAM)
    yield Part("fp32 gradients", FP32, ZERO2, flat)
    yield Part("16-bit copy of the partition", HALF, ZERO2, flat)
    if job.workload.grad_accum > 1:
        yield Part("accumulated gradients", HALF, ZERO2, Blocks(pinned=True), whole=True)


def _parameters(job: Job) -> Iterator[Part]:
    """Weights of ZeRO-3 that wait beside the card."""
    if job.plan.offload_parameters == "cpu":
        yield Part("16-bit weights", HALF, ZERO3, Blocks(pinned=True, elements=_FLAT), learning=False)
        yield Part(
            "partitions they were made of", HALF, ZERO3, Blocks(pinned=True), learning=False, certain=False
        )
    else:
        yield Part("swap buffers of weights", HALF, SWAP, learning=False, most=PARAM_BUFFERS * BUFFER_ELEMENTS)


_FLAT: Final = -1
"""One block of everything that a rank has."""


def _measured(part: Part, model: Model, sharing: Sharing) -> HostPart:
    """Both ends of what one part takes of a machine."""
    ranks, shards, number = sharing.ranks, 1 if part.whole else sharing.shards, sharing.number
    count = sharing.learning if part.learning else number
    share = min(ceil_div(count, shards), part.most or count)
    exact = rounded = share * part.width
    if part.blocks.pinned:
        rounded = _rounded(part, model, shards, share) if count == number else 2 * exact
    return HostPart(
        name=part.name, low_bytes=ranks * exact * part.certain, high_bytes=ranks * rounded,
        formula=Note(
            "{} ranks x {:,} x {} B, each block a power of two" if rounded > exact else "{} ranks x {:,} x {} B",
            ranks, share, part.width
        ),
        source=part.source,
    )


def _rounded(part: Part, model: Model, shards: int, share: int) -> int:
    """A rank's blocks, each rounded up to a power of two [pin]."""
    if part.blocks.elements == _FLAT:
        return power_of_two(share * part.width)
    if part.blocks.elements:
        groups, rest = divmod(share, part.blocks.elements)
        return groups * power_of_two(part.blocks.elements * part.width) + power_of_two(rest * part.width)
    return _of_weights(model, shards, part.width)


@lru_cache(maxsize=256)
def _of_weights(model: Model, shards: int, width: int) -> int:
    """A rank's share of every weight, a pinned block each [bytes]."""
    return sum(
        owned.repeats * power_of_two(ceil_div(owned.parameter.elements, shards) * width)
        for owned in named_parameters(model)
    )


def power_of_two(num_bytes: int) -> int:
    """The block that the pinned allocator takes for a request [pin].

    >>> power_of_two(4097), power_of_two(4096), power_of_two(0)
    (8192, 4096, 0)
    """
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


def _processes(sharing: Sharing) -> HostPart:
    low, high = PROCESS_BYTES
    return HostPart(
        name="processes", low_bytes=sharing.ranks * low, high_bytes=sharing.ranks * high,
        formula=Note("{} ranks x {:g} to {:g} GB", sharing.ranks, low / 1e9, high / 1e9), source=RUNS,
    )


def _on_disks(job: Job, sharing: Sharing) -> int:
    """What all machines write to their disks together [bytes]."""
    plan, states = job.plan, 0
    if plan.offload_optimizer == "nvme":  # of a parameter its copy and the optimizer's states
        whole = FP32 + MOMENTS.get(plan.optimizer, 0)
        half = plan.precision in (Precision.BF16, Precision.FP16) and not _sharder(job).copies_in_fp32
        states = sharing.learning * (whole // 2 if half else whole)
    return states + (sharing.number * HALF if plan.offload_parameters == "nvme" else 0)


def has_room(job: Job) -> bool:
    """Whether what is offloaded goes into main memory and onto the disks, as far as their size is known."""
    need = host_need(job)
    return need is None or need.fits


def takes(need: HostNeed | None) -> str:
    """What is taken beside the cards, as one clause that says what was not checked; empty where nothing is."""
    if need is None:
        return ""
    return joined(", ", (
        Note(
            "{}{}",
            Note("at least {} of {} in each machine", format_bytes(needed), name) if not high else
            Note("at least {}, at most {} of {} in each machine", format_bytes(needed), format_bytes(high), name),
            Note(", not checked") if there is None else Note(" of {}", format_bytes(there)),
        ) for name, needed, there, high in need.places
    )) if need.places else ""


def shortfall(need: HostNeed | None) -> str:
    """What there is too little of, as one clause; empty where nothing is."""
    if need is None:
        return ""
    return joined("; ", (
        Note("{}: at least {} needed in each machine, {} there", name, format_bytes(needed), format_bytes(there))
        for name, needed, there, _ in need.places if there is not None and needed > there
    ))
