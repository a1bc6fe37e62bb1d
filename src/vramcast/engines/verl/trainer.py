"""What verl's trainer process does with the networks that it trains and asks, sharded by FSDP1 or FSDP2.

[fsdp] verl workers/fsdp_workers.py `_build_model_optimizer`: weights that learn are fp32 unless `model_dtype` says
otherwise, a LoRA's base too; MixedPrecision(param_dtype=bf16, reduce_dtype=fp32); a reference is CPUOffload where
`param_offload` says so
[move] verl/utils/fsdp_utils.py `offload_fsdp_model_to_cpu`, `load_fsdp_model_to_gpu`, `offload_fsdp_optimizer`
[actor] verl/workers/actor/dp_actor.py `update_policy`, `compute_log_prob`
[batch] verl/workers/fsdp_workers.py `__init__`: sizes are given in prompts before `rollout.n`, and normalised to a rank
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.blocks.parameters import named_parameters
from vramcast.domain.job import AttentionKernel, Job, Phase, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.model import Head, scorer
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor, live_at_end
from vramcast.engines.eager.fsdp import Flat, PerWeight, sharded_phases
from vramcast.engines.eager.graphs import blocks
from vramcast.engines.eager.passes import inference
from vramcast.engines.eager.question import recipe_of, sharded_stepping_of
from vramcast.engines.eager.recipe import Recipe, Sharding, parts
from vramcast.engines.eager.releases import with_its_kernels
from vramcast.engines.verl.releases import MICRO_TOKENS, Release, release_of
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.operators.loss import policy_loss
from vramcast.states.steps import Weight, state_program
from vramcast.units import MIB, ceil_div

FP32: Final = 4
HALF: Final = 2
FUSED: Final = LINEAR + "policy"

ROUNDS: Final = 3
"""Micro-batches of an optimizer step worth playing: the next ones meet memory as the third did [count]."""

NARROW: Final = (Precision.BF16, Precision.FP16)
"""Precisions whose weights, gradients and states have 16 bits (`model_dtype`)."""


class Batches(NamedTuple):
    """What passes through a network at once on one card, and how often."""

    tokens: int  # of one forward on this rank, padding included where there is any
    samples: int  # rows of it: 1 where sequences lie behind one another
    accumulated: int  # micro-batches of an optimizer step
    steps: int  # optimizer steps of a step of the algorithm


def replicas(job: PostTrainingJob) -> int:
    """Data-parallel ranks, a sequence's divided over `ulysses` of them.

    Raises: InvalidSpec for degrees that do not divide
    """
    ranks, ulysses = job.cluster.count, job.updates.ulysses
    if ranks % ulysses:
        raise InvalidSpec(f"ulysses={ulysses} does not divide {ranks} GPUs; use a divisor of {ranks}")
    return ranks // ulysses


def batches(job: PostTrainingJob, *, learns: bool, micro_batch: int | None = None) -> Batches:
    """How the sequences of a step are cut on one rank [batch].

    Args:
        learns: the update; else a pass without gradients
        micro_batch: sequences of it, where they are not the actor's

    Raises: InvalidSpec for sizes that do not divide or are too small for a sequence
    """
    updates, episodes, data = job.updates, job.episodes, replicas(job)
    length = episodes.longest if updates.padded else episodes.usual
    whole = episodes.prompts * episodes.samples
    mini = updates.mini_batch * episodes.samples
    if whole % data or mini % data or updates.mini_batch > episodes.prompts:
        raise InvalidSpec(
            f"prompts={episodes.prompts} and mini-batch={updates.mini_batch} x samples={episodes.samples} must be "
            f"multiples of {data} data-parallel ranks, and a mini-batch no larger than the step"
        )
    local = (mini if learns else whole) // data
    sequences, tokens = updates.micro_batch, updates.micro_tokens
    if not learns and (updates.log_prob_micro_batch or updates.log_prob_tokens):
        sequences, tokens = updates.log_prob_micro_batch, updates.log_prob_tokens
    sequences = micro_batch or sequences
    steps = ceil_div(episodes.prompts, updates.mini_batch) * updates.epochs if learns else 1
    if sequences is not None and tokens is None:
        sequences = min(sequences, local)
        rows = sequences if updates.padded else 1
        at_once = sequences * length if updates.padded else episodes.most_tokens(sequences)
        count = ceil_div(local, sequences)
    else:
        budget = (tokens or MICRO_TOKENS) * updates.ulysses
        if budget < episodes.longest:
            raise InvalidSpec(
                f"micro-tokens={tokens or MICRO_TOKENS} x ulysses={updates.ulysses} are fewer than the "
                f"{episodes.longest} tokens of the longest sequence; use at least "
                f"{ceil_div(episodes.longest, updates.ulysses)}"
            )
        at_once, rows = min(budget, local * length), 1
        count = ceil_div(local * length, at_once)
    return Batches(ceil_div(at_once, updates.ulysses), rows, count, steps)


class Network(NamedTuple):
    """One network as a rank has it. What is moved between card and host are all its shards, all its states."""

    load: Program  # from nothing to the shards on the card
    shards: tuple[tuple[Tensor, int], ...]
    states: tuple[tuple[Tensor, int], ...]  # of its optimizer
    update: Program = ()  # one mini-batch, states there
    workspaces: Program = ()  # of cuBLAS, which the first products take and keep


def alloc(held: tuple[tuple[Tensor, int], ...]) -> Program:
    """Everything comes to the card."""
    return tuple(Loop(count, (Alloc(tensor),)) for tensor, count in held)


def free(held: tuple[tuple[Tensor, int], ...]) -> Program:
    """Everything leaves it."""
    return tuple(Loop(count, (Free(tensor),)) for tensor, count in held)


def train_job(job: PostTrainingJob, found: Batches) -> Job:
    """The update as a training job of PyTorch's FSDP.

    Raises: InvalidSpec or Unsupported for what that cannot run
    """
    plan, release = job.plan, release_of(job.version)
    if plan.recompute is Recompute.SELECTIVE:
        raise Unsupported("verl recomputes every layer or none; use --recompute full or none")
    offloads = {"offload_parameters": "none", "offload_optimizer": "none"}
    peft = None if plan.peft is None else replace(plan.peft, adapter_dtype="bf16")
    asked: Plan = replace(
        plan, shards=Shards.EVERYTHING, sharded_by=sharder(job), peft=peft, **offloads,
    )
    made = Job(
        model=job.model,
        workload=Workload(
            seq_len=found.tokens // found.samples, micro_batch=found.samples, grad_accum=found.accumulated,
            objective="sft",
        ),
        plan=replace(asked, attention=AttentionKernel.FLASH),
        cluster=job.cluster,
        engine="pytorch",
        engine_options={"defers_sync": release.defers_sync, **({"padded": True} if job.updates.padded else {})},
    )
    try:
        recipe_of(made, loss="torch", narrow=True)
    except Unsupported:
        return replace(made, plan=asked)  # of a family without FlashAttention in transformers
    return made


def sharder(job: PostTrainingJob) -> str:
    """`actor.strategy`: "fsdp" is FSDP1."""
    return job.plan.sharded_by or "fsdp1"


def sharding(job: PostTrainingJob, *, learns: bool = True) -> Sharding:
    """How FSDP shards the network that learns, or a frozen copy of it [fsdp]."""
    release, plan = release_of(job.version), job.plan
    ranks = min(plan.shard_group or job.cluster.count, job.cluster.count)
    narrow = plan.precision in NARROW
    width = HALF if narrow else FP32
    frozen = width if learns else min(width, release.reference_width) if not narrow else HALF
    by = sharder(job)
    return Sharding(
        "fsdp1" if by == "fsdp1" else "fsdp2", ranks, master=width, frozen_master=frozen,
        compute=HALF, reshard=plan.reshard_after_forward, defers=release.defers_sync,
        reduced=FP32 if by == "fsdp2" else None,
        offload=not learns and offloads_reference(job),
    )


def offloads_reference(job: PostTrainingJob) -> bool:
    """Whether the reference waits on the host: since 0.6 it does unasked [fsdp: `cpu_offload` of every other role]."""
    asked = job.updates.offload_reference
    return asked is not False if job.version >= (0, 6) else bool(asked)


def _recipe(job: PostTrainingJob, found: Batches, *, entropy: bool, release: Release) -> Recipe:
    """The network's forward and backward with the loss of a policy."""
    made = train_job(job, found)
    kernel = job.updates.entropy_kernel or ("eager" if job.updates.padded else "compiled")
    loss = FUSED if job.updates.fused_loss else policy_loss(release.divides, kernel if entropy else "")
    return with_its_kernels(recipe_of(made, loss=loss, narrow=True), made)


def log_prob(job: PostTrainingJob, found: Batches, *, entropy: bool, reference: bool = False) -> Program:
    """Log-probabilities of the answers without gradients, one micro-batch.

    Args:
        entropy: it is computed besides: always of the network that learns
        reference: asked is the network as it was; beside adapters that is the same one
    """
    recipe = _recipe(job, found, entropy=entropy, release=release_of(job.version))
    apart = reference and job.plan.peft is None
    if apart:
        recipe = recipe._replace(sizes=recipe.sizes._replace(frozen=True), learning=())
    return inference(recipe, blocks(recipe), _around(recipe, sharding(job, learns=not apart)))


def _around(recipe: Recipe, how: Sharding) -> Flat | PerWeight:
    flat = how.by == "fsdp1"
    found = parts(recipe, leaves=flat)
    return Flat(found, how) if flat else PerWeight(found, how, tied=recipe.model.tied)


def actor(job: PostTrainingJob, found: Batches) -> Network:
    """The network that learns."""
    recipe = _recipe(job, found, entropy=job.updates.entropy, release=release_of(job.version))
    return _network(job, recipe, found)


def critic(job: PostTrainingJob, found: Batches) -> tuple[Network, Program]:
    """The network that estimates values, and one pass of it without gradients."""
    valued = replace(job, model=scorer(job.model), updates=replace(job.updates, fused_loss=False))
    made = train_job(valued, found)
    recipe = with_its_kernels(recipe_of(made, loss="torch", narrow=True), made)
    assert recipe.model.head is Head.CLASSIFIER
    values = inference(recipe, blocks(recipe), _around(recipe, sharding(job)))
    return _network(valued, recipe, found), values


def _network(job: PostTrainingJob, recipe: Recipe, found: Batches) -> Network:
    few = found._replace(accumulated=min(found.accumulated, ROUNDS))
    how, stepping = sharding(job), sharded_stepping_of(train_job(job, few))
    phases = sharded_phases(recipe, stepping, how)
    load = phases[Phase.LOAD]
    shards = tuple(live_at_end(load).items())
    held = tuple(_shares(recipe, how))
    states = tuple(live_at_end(state_program(held, stepping.optimizer)).items())
    return Network(load, shards, states, phases[Phase.STEP], workspaces=stepping.workspaces)


def _shares(recipe: Recipe, how: Sharding) -> tuple[Weight, ...]:
    return tuple(_around(recipe, how).shards())


def reference(job: PostTrainingJob, found: Batches) -> Network:
    """The network as it was: only its shards, on the card or on the host."""
    recipe = _recipe(job, found, entropy=False, release=release_of(job.version))
    recipe = recipe._replace(sizes=recipe.sizes._replace(frozen=True, adapter=None), learning=())
    how = sharding(job, learns=False)
    load = tuple(_around(recipe, how).load())
    return Network(load, tuple(live_at_end(load).items()), ())


def handover(job: PostTrainingJob, learning: Network) -> tuple[Tensor, ...]:
    """What the trainer makes besides while it hands its weights to the engine.

    FSDP1's sharded state dict is a second copy of the shards; FSDP2's refers to them. A tensor is gathered whole in the
    type of the shards, and cast; another process is handed buckets. Adapters kept apart from their base gather every
    unit, or one after the other ("layered summon").

    Source: [verl] workers/sharding_manager/fsdp_vllm.py, fsdp_workers.py `rollout_mode`, utils/fsdp_utils.py
    `collect_lora_params`, `layered_summon_lora_params`
    """
    release, how = release_of(job.version), sharding(job)
    width = how.master or FP32
    shards = sum(tensor.block_bytes * count for tensor, count in learning.shards)

    def tensor(name: str, num_bytes: int, formula: str) -> Tensor:
        return Tensor(name=name, num_bytes=num_bytes, category=Category.COMMUNICATION, owner="handover",
                      formula=formula, source="verl/utils/fsdp_utils.py")

    if job.plan.peft is not None:
        units = [tensor.num_bytes * how.ranks for tensor, _ in learning.shards]
        whole = max(units) if job.rollout.layered_summon else shards * how.ranks
        return (tensor("gathered units", whole, f"in {width} B over {how.ranks} ranks"),)
    largest = max(parameter.parameter.elements for parameter in named_parameters(job.model))
    found = [tensor("largest weight, gathered", largest * width, f"{largest:,} x {width} B")]
    if width != HALF:
        found.append(tensor("largest weight, cast", largest * HALF, f"{largest:,} x {HALF} B"))
    if how.by == "fsdp1":
        found.append(tensor("sharded state dict", shards, "a copy of the shards"))
    if not release.in_process:
        found.append(tensor("bucket", release.bucket_mib * MIB, f"{release.bucket_mib} MiB"))
    return tuple(found)
