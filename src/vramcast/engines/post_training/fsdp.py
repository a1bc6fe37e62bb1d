"""What a trainer process does with the networks that it trains and asks, sharded by FSDP1 or FSDP2 as verl does it.

[fsdp] verl workers/fsdp_workers.py `_build_model_optimizer`: weights that learn are fp32 unless `model_dtype` says
otherwise, a LoRA's base too; MixedPrecision(param_dtype=bf16, reduce_dtype=fp32); a reference is CPUOffload where
`param_offload` says so
[move] verl/utils/fsdp_utils.py `offload_fsdp_model_to_cpu`, `load_fsdp_model_to_gpu`, `offload_fsdp_optimizer`
[actor] verl/workers/actor/dp_actor.py `update_policy`, `compute_log_prob`

What one rank of a tensor-parallel group has of a network whose linear layers are DTensors.

[nemo] NVIDIA-NeMo/RL 7ea279a nemo_rl/models/dtensor/parallelize.py `_parallelize_qwen`, `_parallelize_llama`,
`get_hf_tp_plan`: projections of queries, keys and values, of gate and up, and the head are divided by columns, those
behind them by rows, the embedding by its vocabulary; norms are whole on every rank
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.job import AttentionKernel, Job, Phase, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.model import MLP, Attention, Head, Layer, Model, scorer
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Category, Program, Tensor, TensorsOf, live_at_end
from vramcast.engines.eager.flat import Flat
from vramcast.engines.eager.fsdp import PerWeight, sharded_phases
from vramcast.engines.eager.graphs import blocks
from vramcast.engines.eager.passes import inference
from vramcast.engines.eager.question import recipe_of, sharded_stepping_of
from vramcast.engines.eager.recipe import Recipe, Sharding, parts
from vramcast.engines.eager.releases import with_its_kernels
from vramcast.engines.post_training.batches import Batches, part_of
from vramcast.engines.post_training.releases import Release, has_own_reference, release_of
from vramcast.engines.post_training.trainer import ON_HOST, Network, alloc, num_bytes
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.loss import policy_loss
from vramcast.states.steps import state_program
from vramcast.units import MIB, ceil_div


def slice_of(model: Model, ranks: int) -> Model:
    """The network that one of so many ranks computes.

    Towers are whole on every rank. Leaves out: what a sum over the ranks is received into

    Raises: InvalidSpec for degrees that do not divide, Unsupported for layers that are not divided here
    """
    if ranks == 1:
        return model
    main = replace(model.main, runs=tuple(
        replace(run, layer=_layer(model, run.layer, ranks)) for run in model.main.runs))
    return replace(model, stacks=(*model.stacks[:-1], main), vocab=ceil_div(model.vocab, ranks))


def _layer(model: Model, layer: Layer, ranks: int) -> Layer:
    mixer, channel = layer.mixer, layer.channel
    if not isinstance(mixer, Attention) or not isinstance(channel, MLP) or layer.beside or layer.cross_attention:
        raise Unsupported("{}: tensor parallelism under FSDP2 divides attention and dense layers here; leave out --tp",
                          model.name)
    for name, count in (("heads", mixer.num_heads), ("key/value heads", mixer.num_kv_heads), ("width", channel.width)):
        if count % ranks:
            raise InvalidSpec("tp={} does not divide {} {} of {}", ranks, count, name, model.name)
    return replace(layer, mixer=replace(mixer, num_heads=mixer.num_heads // ranks,
                                        num_kv_heads=mixer.num_kv_heads // ranks),
                   channel=replace(channel, width=channel.width // ranks))


FP32: Final = 4
HALF: Final = 2
FUSED: Final = LINEAR + "policy"

WHOLE: Final = "log_probabilities_whole_upcast"
"""Of NeMo-RL [model_utils.py `get_next_token_logprobs_from_logits`], which computes no entropy."""

ROUNDS: Final = 3
"""Micro-batches of an optimizer step worth playing: the next ones meet memory as the third did [count]."""

NARROW: Final = (Precision.BF16, Precision.FP16)
"""Precisions whose weights, gradients and states have 16 bits (`model_dtype`)."""


def train_job(job: PostTrainingJob, found: Batches) -> Job:
    """The update as a training job of PyTorch's FSDP.

    Raises: InvalidSpec or Unsupported for what that cannot run
    """
    plan, release, images = job.plan, release_of(job), job.episodes.images
    if plan.recompute is Recompute.SELECTIVE:
        raise Unsupported("FSDP recomputes every layer or none here; use --recompute full or none")
    offloads = {"offload_parameters": "none", "offload_optimizer": "none"}
    peft = None if plan.peft is None else replace(plan.peft, adapter_dtype="bf16")
    asked: Plan = replace(
        plan, shards=Shards.EVERYTHING, sharded_by=sharder(job), peft=peft, tp=1, **offloads,
    )
    made = Job(
        model=slice_of(job.model, plan.tp),
        workload=Workload(
            seq_len=found.tokens // found.samples, micro_batch=found.samples, grad_accum=found.accumulated,
            objective="sft", image_size=job.episodes.image_size,
            images=(1 if images is None else images) * found.sequences // found.samples,
        ),
        plan=replace(asked, attention=AttentionKernel.FLASH),
        cluster=part_of(job.cluster, job.trainer_gpus // plan.tp),  # ranks that shard among themselves
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


def steps_on_host(job: PostTrainingJob) -> bool:
    """Whether FSDP2 keeps shards, gradients and states on the host all the time, and steps there: CPUOffloadPolicy
    [verl workers/engine/fsdp/transformer_impl.py `offload_policy`; nemo dtensor_policy_worker.py `cpu_offload`]."""
    return bool(job.trainer_options.get(ON_HOST))


def sharding(job: PostTrainingJob, *, learns: bool = True) -> Sharding:
    """How FSDP shards the network that learns, or a frozen copy of it [fsdp]."""
    release, plan = release_of(job), job.plan
    every = job.trainer_gpus // plan.tp
    ranks = min(plan.shard_group or every, every)
    narrow = plan.precision in NARROW
    width = HALF if narrow else FP32
    frozen = width if learns else min(width, release.reference_width) if not narrow else HALF
    by = sharder(job)
    return Sharding(
        "fsdp1" if by == "fsdp1" else "fsdp2", ranks, master=width, frozen_master=frozen,
        compute=HALF, reshard=plan.reshard_after_forward, defers=release.defers_sync,
        reduced=FP32,
        offload=steps_on_host(job) or (not learns and offloads_reference(job)),
    )


def offloads_reference(job: PostTrainingJob) -> bool:
    """Whether the reference waits on the host: since 0.6 it does unasked [fsdp: `cpu_offload` of every other role]."""
    asked = job.updates.offload_reference
    return asked is not False if job.version >= (0, 6) else bool(asked)


def _recipe(job: PostTrainingJob, found: Batches, *, entropy: bool, release: Release) -> Recipe:
    """The network's forward and backward with the loss of a policy."""
    made = train_job(job, found)
    kernel = job.updates.entropy_kernel or ("eager" if job.updates.padded else "compiled")
    whole = job.framework == "nemo-rl"
    loss = FUSED if job.updates.fused_loss else WHOLE if whole else policy_loss(
        release.divides, kernel if entropy else "")
    return with_its_kernels(recipe_of(made, loss=loss, narrow=True), made)


def log_prob(job: PostTrainingJob, found: Batches, *, entropy: bool, reference: bool = False) -> Program:
    """Log-probabilities of the answers without gradients, one micro-batch.

    Args:
        entropy: it is computed besides: always of the network that learns
        reference: asked is the network as it was; beside adapters that is the same one
    """
    recipe = _recipe(job, found, entropy=entropy, release=release_of(job))
    apart = reference and has_own_reference(job)
    if apart:
        recipe = replace(recipe, sizes=replace(recipe.sizes, frozen=True), learning=())
    return inference(recipe, blocks(recipe), _around(recipe, sharding(job, learns=not apart)))


def _around(recipe: Recipe, how: Sharding) -> Flat | PerWeight:
    flat = how.by == "fsdp1"
    found = parts(recipe, leaves=flat)
    return Flat(found, how) if flat else PerWeight(found, how, tied=recipe.model.tied)


def actor(job: PostTrainingJob, found: Batches) -> Network:
    """The network that learns."""
    recipe = _recipe(job, found, entropy=job.updates.entropy, release=release_of(job))
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
    rising: Program = ()
    if found.shorter:
        least, *ways = found.shorter
        several = replace(stepping, grad_accum=len(found.shorter) + 1)
        rising = sharded_phases(recipe, several, how, shortest=replace(
            recipe, sizes=replace(recipe.sizes, seq_len=least)), ways=[0.0, *(
            (tokens - least) / max(1, found.tokens - least) for tokens in ways)])[Phase.STEP]
    load = phases[Phase.LOAD]
    shards = tuple(live_at_end(load).items())
    held = tuple(_around(recipe, how).shards())
    states = () if how.offload else tuple(live_at_end(state_program(held, stepping.optimizer)).items())
    step = phases[Phase.STEP]
    return Network(load, shards, (), states, (*stepping.workspaces, *step, *alloc(states)), step, rising)


def reference(job: PostTrainingJob, found: Batches) -> Network:
    """The network as it was: only its shards, on the card or on the host."""
    recipe = _recipe(job, found, entropy=False, release=release_of(job))
    recipe = replace(recipe, sizes=replace(recipe.sizes, frozen=True, adapter=None), learning=())
    how = sharding(job, learns=False)
    load = tuple(_around(recipe, how).load())
    return Network(load, tuple(live_at_end(load).items()))


def reward(job: PostTrainingJob, found: Batches, model: Model) -> tuple[Program, Network]:
    """A pass of a network that rates with one number, and what is kept of it on the card: its 16-bit shards wait on the
    host, whatever its `param_offload` says [fsdp: RewardModelWorker `_build_model`]."""
    made = train_job(replace(job, model=model), found)
    recipe = with_its_kernels(recipe_of(made, loss="torch", narrow=True), made)
    recipe = replace(recipe, sizes=replace(recipe.sizes, frozen=True, adapter=None), learning=())
    how = replace(sharding(job), master=HALF, frozen_master=HALF, offload=True)
    load = tuple(_around(recipe, how).load())
    return inference(recipe, blocks(recipe), _around(recipe, how)), Network(load, tuple(live_at_end(load).items()))


def handover(job: PostTrainingJob, learning: Network) -> tuple[Tensor, ...]:
    """What the trainer makes besides while it hands its weights to the engine.

    FSDP1's sharded state dict is a second copy of the shards; FSDP2's refers to them. A tensor is gathered whole in the
    type of the shards, and cast; another process is handed buckets. Adapters kept apart from their base gather every
    unit, or one after the other ("layered summon").

    Source: [verl] workers/sharding_manager/fsdp_vllm.py, fsdp_workers.py `rollout_mode`, utils/fsdp_utils.py
    `collect_lora_params`, `layered_summon_lora_params`
    """
    release, how = release_of(job), sharding(job)
    width = how.master or FP32
    shards = num_bytes(learning.weights)

    tensor = TensorsOf(owner="handover", category=Category.COMMUNICATION, source="verl/utils/fsdp_utils.py")
    if job.plan.peft is not None and how.ranks == 1:
        return ()  # nothing is sharded over one rank, so nothing is gathered [torch `needs_unshard`]
    if job.plan.peft is not None:
        units = [shard.num_bytes * how.ranks for shard, _ in learning.weights]
        whole = max(units) if job.rollout.layered_summon else shards * how.ranks
        return (tensor("gathered units", whole, formula=Note("in {} B over {} ranks", width, how.ranks)),)
    largest = max(parameter.parameter.elements for parameter in named_parameters(job.model))
    found = [tensor("largest weight, gathered", largest * width, formula=f"{largest:,} x {width} B")]
    if width != HALF:
        found.append(tensor("largest weight, cast", largest * HALF, formula=f"{largest:,} x {HALF} B"))
    if how.by == "fsdp1":
        found.append(tensor("sharded state dict", shards, formula="a copy of the shards"))
    if not release.in_process:
        bucket = job.rollout.bucket_mib or release.bucket_mib
        found.append(tensor("bucket", bucket * MIB, formula=f"{bucket} MiB"))
    return tuple(found)
