"""From a job to a recipe: what the eager engines have in common."""

from __future__ import annotations

from typing import Final

from vramcast.blocks.ends import LINEAR
from vramcast.blocks.parameters import named_parameters
from vramcast.blocks.sizes import Sizes, norm_variant
from vramcast.domain.job import AttentionKernel, Job, Loss, Peft, Plan, Precision, Recompute, Shards
from vramcast.domain.model import Model, Norm, Stack
from vramcast.domain.version import Version
from vramcast.engines.blas import blas_workspaces
from vramcast.engines.eager.models import cache_width
from vramcast.engines.eager.phases import Stepping
from vramcast.engines.eager.recipe import IN_MEMORY, Recipe, Tower
from vramcast.engines.transformers.versions import NEWEST, has_fused_attention, left_sentences, left_whole
from vramcast.errors import UnknownName, Unsupported
from vramcast.operators.linear import NUMERICS, Numerics
from vramcast.operators.lora import ADAPTERS, Adapter
from vramcast.operators.quantised import QUANTISED
from vramcast.states.optimizers import optimizer
from vramcast.units import DTYPE_BITS

LOSSES: Final[dict[Loss, str]] = {
    Loss.EAGER: "eager",
    Loss.COMPILED: "compiled",
    Loss.FUSED: "liger",
    Loss.FUSED_LINEAR: LINEAR + "liger",
}
"""Keys of the loss tables."""

WITHOUT_ADAPTER: Final = ("prefix", "prompt", "ln")
"""PEFT methods that add no correction to linear layers."""

FP32: Final = 4

SAVED_MODULES: Final[dict[str, str]] = {"embedding": "embedding.tokens", "head": "head.output"}

NORM_WEIGHTS: Final = ("mixer_norm", "channel_norm", "final_norm")


def refuse_splits(job: Job) -> None:
    """Eager engines split over data-parallel ranks only.

    Raises: Unsupported with the engine that would work
    """
    plan = job.plan
    for name in ("tp", "pp", "cp", "ep"):
        if getattr(plan, name) > 1:
            raise Unsupported(
                f"{name}={getattr(plan, name)} is not modelled for --engine {job.engine}; "
                f"use --engine megatron, or {name}=1"
            )
    if plan.virtual_stages > 1 or plan.shard_group is not None:
        raise Unsupported(
            f"virtual stages and shard groups are not modelled for --engine {job.engine}; use --engine megatron for "
            "the former, --engine torchtitan for the latter"
        )
    if plan.precision is Precision.FP8:
        raise Unsupported(f"fp8 is not modelled for --engine {job.engine}; use --engine megatron or --precision bf16")
    if plan.recompute is Recompute.SELECTIVE:
        raise Unsupported(
            f"selective recomputation is not modelled for --engine {job.engine}; use --recompute full, or --engine "
            "torchtitan or megatron"
        )
    if plan.offload_activations:
        raise Unsupported(f"activation offload is not modelled for --engine {job.engine}; use --recompute full")
    if not job.model.stacks or not job.model.main.runs:
        raise Unsupported(f"{job.model.name} has no transformer layers to build; trace it instead")


def recipe_of(
    job: Job, *, loss: str | None = None, outputs_fp32: bool = False, variants: str = "eager", autocast: bool = False
) -> Recipe:
    """The model's forward and backward as the job asks for it.

    Args:
        job: the question
        loss: key of the loss tables; None: what the plan says
        outputs_fp32: the trainer converts returned logits to fp32
        variants: which forms of norm, activation and rotary embedding: "eager", "compiled", "liger"
        autocast: the trainer's own autocast, under which a frozen base is loaded in 16 bits

    Raises: Unsupported for what eager engines cannot be asked
    """
    refuse_splits(job)
    plan, peft = job.plan, job.plan.peft
    chosen = plan.loss or (Loss.COMPILED if plan.compile else Loss.EAGER)
    if loss is None and chosen not in LOSSES:
        raise Unsupported(f"--loss {chosen} is not modelled for --engine {job.engine}; use --loss fused_linear")
    numerics = NUMERICS[plan.precision]
    if peft is not None and autocast:
        numerics = Numerics(2, 2, 2, 2)
    variants = "compiled" if plan.compile else variants
    sizes = _sizes(job, numerics, variants, autocast=autocast or numerics.autocast)
    found = (_tower(job, stack, sizes) for stack in job.model.stacks[:-1])
    towers = tuple(tower for tower in found if tower is not None)
    if towers and any(layer.cross_attention for layer in job.model.main.layers):
        decoder_len = job.workload.decoder_seq_len or sizes.seq_len
        sizes = sizes._replace(source_len=towers[-1].sizes.seq_len, seq_len=decoder_len)
    if autocast and peft is not None:
        sizes = _under_autocast(sizes, job.model)
    return Recipe(
        job.model,
        sizes,
        towers,
        loss=loss or LOSSES[chosen],
        outputs_fp32=outputs_fp32,
        recompute=plan.recompute is Recompute.FULL,
        reentrant=bool(job.engine_options.get("reentrant", False)),
        recompute_layers=plan.recompute_layers,
        learning=_learning(peft),
        virtual_elements=_virtual_elements(job),
        copies_learning=peft is not None and bool(peft.modules_to_save),
    )


def _sizes(job: Job, numerics: Numerics, variants: str, *, autocast: bool) -> Sizes:
    plan, workload, model = job.plan, job.workload, job.model
    peft = plan.peft
    virtual = peft.virtual_tokens if peft is not None and peft.method == "prompt" else 0
    prefix = peft.virtual_tokens if peft is not None and peft.method == "prefix" else 0
    batch = workload.micro_batch * (2 if workload.objective in ("dpo", "reward") else 1)
    seq_len = workload.seq_len + virtual + (workload.completion_len if workload.objective in ("ppo", "grpo") else 0)
    padded = bool(job.engine_options.get("padded", False))
    return Sizes(
        batch=batch,
        seq_len=seq_len,
        hidden=model.hidden,
        numerics=numerics,
        attention=attention_of(job),
        norm=_norm_variant(model, variants),
        activation=variants,
        rope=variants,
        fp32_softmax=model.main.causal,
        masked=padded and attention_of(job) is not AttentionKernel.EAGER,
        grouped=not padded,
        keys=seq_len + prefix if prefix else None,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        frozen=peft is not None,
        trained=NORM_WEIGHTS if peft is not None and peft.method == "ln" else (),
        adapter=_adapter(job, compute=numerics.compute if autocast else None),
        stored=peft.base if peft is not None else "full",
        left_whole=_left_whole(job),
    )


def transformers_version(job: Job) -> Version:
    """The release of transformers whose model code runs; the newest known where the question names none."""
    return (job.engine_version if job.engine == "huggingface" else None) or NEWEST


def _left_whole(job: Job) -> tuple[str, ...]:
    """How the paths of those matrices begin that stay as they are where bitsandbytes packs the base."""
    packed = job.plan.peft is not None and job.plan.peft.base in IN_MEMORY
    return left_whole(job.model.family, transformers_version(job)) if packed else ()


def packing_sentences(job: Job) -> tuple[str, ...]:
    """What stays in 16 bits of a packed base."""
    return tuple(left_sentences(job.model, _left_whole(job), transformers_version(job)))


def _under_autocast(sizes: Sizes, model: Model) -> Sizes:
    """A frozen 16-bit base: LayerNorm runs in fp32, and a packed layer answers in the type that it was asked in.

    Source: pytorch aten/src/ATen/autocast_mode.h, list of fp32 operators; [bnb] in operators/quantised.py
    """
    if model.main.layers[0].norm is Norm.RMS:
        return sizes
    wide = sizes.packs("") and QUANTISED[sizes.stored].follows_input
    numerics = sizes.numerics._replace(residual=FP32) if wide else sizes.numerics
    return sizes._replace(wide_layer_norms=True, numerics=numerics)


def attention_of(job: Job) -> AttentionKernel:
    """The plan's kernel, where the family's code can call it."""
    return job.plan.attention if has_fused_attention(job.model.family) else AttentionKernel.EAGER


def _tower(job: Job, stack: Stack, sizes: Sizes) -> Tower | None:
    """A text encoder reads the workload's positions; an image or audio encoder as many as its patches.

    None where images may have any size and none is given: batches of text only.
    """
    if stack.vision is None:
        return Tower(stack, sizes._replace(hidden=stack.hidden))
    patches, patch = stack.vision.positions or stack.positions, stack.vision.patch
    if job.workload.image_size is not None and patch:
        patches = (job.workload.image_size // patch[-1]) ** 2 + int(stack.vision.class_token)
    if not patches:
        return None
    variant = sizes._replace(
        hidden=stack.hidden, seq_len=patches, batch=sizes.batch * job.workload.images, masked=False, keys=None
    )
    return Tower(stack, variant)


def _norm_variant(model: Model, variants: str) -> str:
    return norm_variant(model) if variants == "eager" else variants


def _adapter(job: Job, *, compute: int | None) -> Adapter | None:
    """What corrects the linear layers; `compute` is autocast's width [bytes]."""
    peft = job.plan.peft
    if peft is None or peft.method in WITHOUT_ADAPTER:
        return None
    if peft.method not in ADAPTERS:
        raise UnknownName.of("PEFT method", peft.method, (*ADAPTERS, *WITHOUT_ADAPTER))
    width = DTYPE_BITS[peft.adapter_dtype] // 8
    options: tuple[tuple[str, float], ...] = ()
    if peft.trainable_parameters is not None:
        owned = named_parameters(job.model)
        layers = sum(found.repeats for found in owned if found.parameter.path in peft.targets)
        options = (("elements", peft.trainable_parameters / max(1, layers)),)
    return Adapter(peft.method, peft.rank, peft.targets, width, compute or width, peft.dropout, options)


def _virtual_elements(job: Job) -> int:
    """A prompt is one embedding per virtual token, a prefix its keys and values in every layer."""
    peft = job.plan.peft
    if peft is None or peft.method not in ("prompt", "prefix"):
        return 0
    if peft.method == "prompt":
        return peft.virtual_tokens * job.model.hidden
    return peft.virtual_tokens * sum(run.count * cache_width(run.layer.mixer) for run in job.model.main.runs)


def _learning(peft: Peft | None) -> tuple[str, ...]:
    if peft is None:
        return ()
    if peft.method == "ln":
        return NORM_WEIGHTS
    unknown = [name for name in peft.modules_to_save if name not in SAVED_MODULES]
    if unknown:
        raise UnknownName.of("module to save", unknown[0], SAVED_MODULES)
    return tuple(SAVED_MODULES[name] for name in peft.modules_to_save)


def stepping_of(job: Job) -> Stepping:
    """Optimizer, accumulation and replicas of a job whose ranks keep everything."""
    plan = job.plan
    rule = optimizer(plan.optimizer)
    lists = job.engine_options.get("foreach_temporaries")
    if isinstance(lists, int):
        rule = rule._replace(foreach_temporaries=lists)
    if plan.precision in (Precision.MIXED_BF16, Precision.MIXED_FP16):
        raise Unsupported(
            f"precision {plan.precision} keeps an fp32 copy in the optimizer, which --engine {job.engine} does not; "
            "use amp-bf16, bf16, or --engine deepspeed"
        )
    if plan.offload_optimizer != "none" or plan.offload_parameters != "none":
        raise Unsupported(f"offload is not modelled for --engine {job.engine}; use --engine deepspeed")
    return Stepping(
        rule,
        kernel=plan.optimizer_kernel or "foreach",
        grad_accum=job.workload.grad_accum,
        replicas=job.data_parallel,
        bucket_views=bool(job.engine_options.get("gradient_as_bucket_view", False)),
        workspaces=blas_workspaces(job),
    )


def text_only(job: Job) -> bool:
    """Whether a vision tower is left out for want of an image size."""
    towers = job.model.stacks[:-1]
    return any(
        stack.vision is not None and not (stack.vision.positions or stack.positions or job.workload.image_size)
        for stack in towers
    )


def refuse_shards(job: Job, plan: Plan) -> None:
    """Raises: Unsupported when the plan shards and the engine does not."""
    if plan.shards is not Shards.NOTHING and job.data_parallel > 1:
        raise Unsupported(
            f"shards={plan.shards} is not modelled for --engine {job.engine}; use --engine deepspeed, or --engine "
            "torchtitan for FSDP2"
        )
