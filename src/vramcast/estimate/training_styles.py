"""How each training engine runs a step: kernels, overlap, what data-parallel ranks exchange and when.

[TE] TransformerEngine pytorch/module/_common.py, cpp_extensions: inputs are quantised as they are and transposed.
[Megatron] Megatron-LM training/arguments.py: overlap-grad-reduce and overlap-param-gather are off by default.
[FSDP2] pytorch torch/distributed/fsdp/_fully_shard: gathers are prefetched one layer ahead, reductions run behind.
[DDP] pytorch torch/nn/parallel/distributed.py: buckets are reduced while backward goes on, in the last micro-batch.
[ZeRO] deepspeed runtime/zero/stage_1_and_2.py: stage 2 reduces gradients after every micro-batch.
[Accelerate] accelerate utils/dataclasses.py `set_mixed_precision`: FSDP gathers, computes and reduces in 16 bits,
whether amp- or mixed- is asked, and holds what learns in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast import blocks, engines, operators
from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Shards
from vramcast.engines import eager
from vramcast.engines.eager.releases import optimizer_kernel, runs_deepspeed, sharder, with_its_loss
from vramcast.engines.training import TRAINING, engine_of
from vramcast.estimate.techniques import of_plain_layers
from vramcast.states.optimizers import optimizer
from vramcast.timing.training.fabric import Update, orthogonalisation_flops
from vramcast.timing.training.parts import LAUNCH_S, OTHER_LAUNCH_S, Style

MEGATRON_SCORES: Final = 13.0
"""Bytes of a score: the product writes 2, the fused softmax moves 4, dropout 5 with its mask, then 2 are read."""

EAGER_SCORES: Final = 30.0
"""The same one operator after the other: scaled, masked, softmax in fp32, cast, dropped."""

CONVERTED_BYTES: Final = 3.0
"""Of an element cast to 8 bits: 2 read, 1 written as it is and 1 transposed; the product then reads 1 where it would
read 2 [TE]."""

HIDDEN: Final = 0.9
"""Share of a bucketed transfer that can overlap: the first or last bucket has nothing to run under."""

MEGATRON_LAUNCH_S: Final = 4e-6
"""Host time of one kernel of fused modules, of which few are started from Python one by one; assumed."""

ZERO3_MODULE_S: Final = 100e-6
"""Host time of DeepSpeed's hooks that fetch and release a module's weights, every pass; fitted on the steps of Qwen-72B
with LoRA under ZeRO-3, 256 and 1,024 tokens, in qwen-lora."""

FSDP: Final = ("fsdp1", "fsdp2")

AUTOCAST: Final = (Precision.AMP_BF16, Precision.AMP_FP16)
WHOLE: Final = (Precision.FP32, Precision.TF32, Precision.FP64)
MASTER: Final = (Precision.MIXED_BF16, Precision.MIXED_FP16, Precision.FP8)


class Recipe(Struct, frozen=True):
    """An engine's way of running a job."""

    style: Style
    update: Update
    loss: Loss
    gradient_bytes: float  # of an element that data-parallel ranks exchange
    weight_bytes: float  # of an element that they gather
    gradients_hidden: float  # share of the gradients' reduction that can run under backward
    weights_hidden: float  # share of the weights' gathering that can run under passes
    exchanged: str  # key of `composition.EXCHANGES`
    sequence_parallel: bool
    modules: tuple[str, ...] = ()  # of selective recomputation
    host_s: float = 2e-3  # between two steps
    learning: float | None = None  # weights that learn, where not all do
    stage_layers: tuple[int, ...] = ()  # layers of every pipeline rank, where the engine divides them its own way
    pieces: int | None = None  # that a pipeline cuts each local batch into; None: its micro-batches are the step's


def recipe_of(job: Job) -> Recipe:
    """The recipe of a job's engine."""
    return RECIPES.get(job.engine, _eager)(job)


def _megatron(job: Job) -> Recipe:
    plan, options = job.plan, engines.megatron.options.options_of(job)
    whole = plan.precision is Precision.FP32
    width = 4 if whole else 2
    in_fp32 = options.accumulate_in_fp32
    gradient = 4.0 if (plan.precision is not Precision.MIXED_FP16 if in_fp32 is None else in_fp32) else 2.0
    fsdp = options.fsdp or plan.shards is Shards.EVERYTHING
    style = Style(
        width=width, residual=width, launch_s=MEGATRON_LAUNCH_S,
        attention="cudnn" if (job.cluster.gpu.sm or 80) >= 90 else "flash",
        gradient_bytes=2 * gradient if options.gradient_accumulation_fusion else width,
        summed_bytes=0.0 if options.gradient_accumulation_fusion else width + 2 * gradient,
        dispatch=options.dispatcher == "flex", expert_overlap=options.overlap_moe_comm,
        tensor_overlap="both" if options.tp_comm_overlap else "backward",
        converted_bytes=CONVERTED_BYTES if plan.precision is Precision.FP8 else 0.0,
        eager_scores=MEGATRON_SCORES if options.attention_backend in ("unfused", "local") else 0.0,
    )
    return Recipe(
        style=style,
        update=replace(_update(job, copy=0.0 if whole else 2.0, kernel="fused"), clips=options.clip_grad),
        loss=Loss.EAGER if options.cross_entropy == "unfused" else Loss.FUSED,
        gradient_bytes=gradient,
        weight_bytes=1.0 if options.fp8_param_gather else float(width),
        gradients_hidden=HIDDEN if options.overlap_grad_reduce or fsdp else 0.0,
        weights_hidden=HIDDEN if options.overlap_param_gather or fsdp else 0.0,
        exchanged="everything" if fsdp else "once",
        sequence_parallel=plan.sequence_parallel is not False and plan.tp > 1,
        modules=plan.recompute_modules or ("core_attn",),
        stage_layers=_stage_layers(options.stage_layers, plan.pp),
        learning=None if plan.peft is None else _learning(job),
    )


def _stage_layers(text: str, stages: int) -> tuple[int, ...]:
    """Layers of every rank, from those of every virtual stage."""
    counts = engines.megatron.chunk.placed_layers(text) if text else []
    return tuple(sum(counts[rank::stages]) for rank in range(stages)) if counts else ()


def _eager(job: Job) -> Recipe:
    """PyTorch and the trainers on top of it: operators one by one, or compiled."""
    plan, fsdp = job.plan, sharder(job) in FSDP
    # FSDP whose weights stay gathered until backward [FSDP2 `reshard_after_forward`], not [ZeRO]'s second stage
    shards = Shards.EVERYTHING if fsdp and plan.shards is Shards.OPTIMIZER_AND_GRADIENTS else plan.shards
    sharded = shards is Shards.EVERYTHING
    held = _held_as(job)
    whole, autocast = held in WHOLE, held in AUTOCAST
    in_fp32 = whole or autocast or held in MASTER
    width = 4 if whole else 2
    style = _eager_style(job, width)
    kernel = plan.optimizer_kernel or ("foreach" if runs_deepspeed(job) else optimizer_kernel(job))
    return Recipe(
        style=style,
        update=_update(job, copy=2.0 if held in MASTER else 0.0, kernel=kernel, width=4.0 if in_fp32 else 2.0),
        loss=with_its_loss(job).plan.loss or (Loss.COMPILED if plan.compile else Loss.EAGER),
        gradient_bytes=4.0 if whole or (autocast and not (fsdp and job.engine == "huggingface")) else 2.0,
        weight_bytes=1.0 if style.float8.endswith("gathered") else float(width),
        gradients_hidden=HIDDEN,
        weights_hidden=HIDDEN if sharded else 0.0,
        exchanged=EXCHANGED[shards],
        sequence_parallel=plan.tp > 1,
        modules=("per-operator",),
        learning=None if plan.peft is None else _learning(job),
        pieces=1 if plan.pp > 1 else None,  # device_map: the cards work in turn, every micro-batch alone
    )


def _held_as(job: Job) -> Precision:
    engine = "deepspeed" if runs_deepspeed(job) else job.engine
    return TRAINING[engine].runs_as.get(job.plan.precision, job.plan.precision)


def _torchtitan(job: Job) -> Recipe:
    """As above; a pipeline cuts each local batch, and its weights stay gathered [pipelining stage.py,
    `backward_maybe_with_nosync`]."""
    plan = job.plan
    compiled = plan.loss in (Loss.COMPILED, Loss.FUSED) or (plan.compile and plan.loss is not Loss.EAGER)
    # chunks of the head are compiled with the rest [components/loss.py `ChunkedLossWrapper`]
    recipe = replace(_eager(job), loss=Loss.COMPILED if compiled else Loss.EAGER)
    if plan.pp == 1:
        return recipe
    run = engines.torchtitan.run
    return replace(
        recipe, exchanged="once", pieces=run.pipeline_micro_batches(job), stage_layers=run.stage_layers(job)
    )


EXCHANGED: Final[dict[Shards, str]] = {
    Shards.NOTHING: "once",  # [DDP]
    Shards.OPTIMIZER: "once",
    Shards.OPTIMIZER_AND_GRADIENTS: "gradients",  # [ZeRO]
    Shards.EVERYTHING: "everything",  # [FSDP2]
}
"""What is split -> key of `composition.EXCHANGES`."""


def _eager_style(job: Job, width: int) -> Style:
    plan, kernel = job.plan, eager.checks.attention_of(job)
    if job.engine == "torchtitan" or (job.engine == "torchtune" and plan.peft is None):
        norm = engines.torchtune.norm_of(job) if job.engine == "torchtune" else "torch"
        kind = "compiled" if plan.compile else "eager"
        sizes = blocks.parts.Sizes(
            batch=1, seq_len=job.workload.seq_len, hidden=job.model.hidden,
            numerics=operators.linear.Numerics(2, 2, 2, 2),
            norm="compiled" if plan.compile else norm, activation=kind,
            rope="compiled" if plan.compile else "complex",
        )
    elif job.engine == "torchtune":
        sizes = engines.torchtune.eager_recipe(job).sizes
    else:
        asked = replace(job, plan=replace(plan, precision=_held_as(job)))
        trainer = engine_of(job).is_trainer and asked.plan.precision in AUTOCAST
        gathered = trainer and sharder(job) in FSDP  # in 16 bits: autocast has nothing to cast
        sizes = eager.question.recipe_of(asked, autocast=trainer, narrow=gathered).sizes
        if runs_deepspeed(job) and sizes.adapter is not None:  # cast with the rest
            sizes = replace(sizes, adapter=replace(sizes.adapter, width=width, compute=width))
    return Style(
        fused=plan.compile, sizes=sizes, launch_s=LAUNCH_S.get(job.cluster.gpu.arch, OTHER_LAUNCH_S), width=width,
        module_s=ZERO3_MODULE_S if plan.shards is Shards.EVERYTHING and runs_deepspeed(job) else 0.0,
        residual=sizes.numerics.residual, gradient_bytes=3.0 * width,  # the head's
        attention=str(kernel), float8=float8_casts(job),
        eager_scores=EAGER_SCORES if kernel is AttentionKernel.EAGER else 0.0,
        trains=plan.peft is None or "head" in plan.peft.modules_to_save,
    )


def float8_casts(job: Job) -> str:
    """How torchtitan's float8 linears convert, key of `timing.training.float8.CASTS`; empty where there are none."""
    options = job.engine_options
    if job.engine != "torchtitan" or not options.get("float8", job.plan.precision is Precision.FP8):
        return ""
    return ("compiled" if job.plan.compile else "eager") + (", gathered" if options.get("float8_all_gather") else "")


def _update(job: Job, *, copy: float, kernel: str, width: float = 4.0) -> Update:
    """What the optimizer's step reads and writes of one weight."""
    rule, hidden = optimizer(job.plan.optimizer), job.model.hidden
    states = sum(state.num_bytes for state in rule.state_tensors((hidden, hidden), width=int(width))) / hidden**2
    flops = orthogonalisation_flops(hidden, hidden) if rule.orthogonalises else 0.0
    kernel = "fused" if rule.has_own_kernel else kernel
    return Update(weight=width, gradient=width, states=states, copy=copy, kernel=kernel, flops=flops)


def _learning(job: Job) -> float:
    """Weights of adapters and of modules trained whole, as the memory program counts them."""
    weights = eager.recipe.weights(eager.question.recipe_of(of_plain_layers(job)))
    return float(eager.recipe.elements(weights, learning_only=True))


RECIPES: Final[dict[str, Callable[[Job], Recipe]]] = {"megatron": _megatron, "torchtitan": _torchtitan}
"""Engine -> its recipe; the others run PyTorch's operators."""
