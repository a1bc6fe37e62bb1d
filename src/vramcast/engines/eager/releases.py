"""What PyTorch, the Trainer, Accelerate and Liger do by default, by release, as far as it decides memory.

Read in the wheels of transformers 4.30.2 to 5.23.0 (37 releases), in huggingface/accelerate tags v0.20.3 to v1.14.0 and
in torch 2.13. "none" of a plan is an answer, not a silence; what it can leave open (the loss, kernels, who shards) the
engines settle themselves.

[liger] liger_kernel/transformers/monkey_patch.py `apply_liger_kernel_to_*`
[args] transformers training_args.py
[trainer] transformers trainer.py
[utils] transformers modeling_utils.py `gradient_checkpointing_enable`
[layers] transformers modeling_layers.py `GradientCheckpointingLayer`
[gpt_bigcode] transformers models/gpt_bigcode/modeling_gpt_bigcode.py `GPTBigCodeModel.forward`, `presents`
[loss] transformers loss/loss_utils.py `ForCausalLMLoss`; models/*/modeling_*.py before
[accelerate] accelerate accelerator.py `prepare_model`, utils/fsdp_utils.py `fsdp2_prepare_model`
[adam] pytorch torch/optim/adam.py `_multi_tensor_adam`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.domain.job import AttentionKernel, Job, Loss, Plan, Precision, Shards
from vramcast.domain.version import Version, last_release, read_version
from vramcast.engines.eager.recipe import IN_MEMORY, Recipe
from vramcast.engines.training import TRAINING, Sharder, engine_of
from vramcast.engines.transformers.versions import (
    ALWAYS,
    CONTEMPORARY,
    GROUPED_SDPA_SINCE,
    NEVER,
    NEWEST,
    REMOTE,
    behaviour,
    family_of,
    stacks_experts,
)
from vramcast.errors import InvalidSpec, UnknownName

LIGER: Final = ("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy")
"""Kernels that are on by default [liger]."""


def liger_kernels(job: Job) -> tuple[str, ...]:
    """Kernels of Liger that take the place of the model's: `use_liger_kernel`, or those of `liger_kernel_config`.

    Raises: UnknownName for one that Liger does not have
    """
    said = job.engine_options.get("liger", False)
    if isinstance(said, bool):
        return LIGER if said else ()
    names = tuple(filter(None, str(said).split("+")))
    for name in names:
        if name not in LIGER:
            raise UnknownName.of("Liger kernel", name, LIGER)
    return names


def with_its_loss(job: Job) -> Job:
    """The job with Liger's loss, where its kernels are asked for and the plan names none."""
    if "fused_linear_cross_entropy" not in liger_kernels(job) or job.plan.loss is not None:
        return job
    return replace(job, plan=replace(job.plan, loss=Loss.FUSED_LINEAR))


def with_its_kernels(recipe: Recipe, job: Job) -> Recipe:
    """The recipe with Liger's norms, activations and rotary embeddings, and the loss that cuts where that is asked."""
    kernels, sizes = liger_kernels(job), recipe.sizes
    if job.engine_options.get("cut_cross_entropy"):
        recipe = replace(recipe, loss=LINEAR + "cut_cross_entropy")
    sizes = replace(
        sizes,
        rope="liger" if "rope" in kernels else sizes.rope, norm="liger" if "rms_norm" in kernels else sizes.norm,
        activation="liger" if "swiglu" in kernels else sizes.activation,
    )
    return replace(recipe, sizes=sizes)


def transformers_version(job: Job) -> Version:
    """The release of transformers whose model code runs; the newest known where the question names none."""
    return (job.engine_version if job.engine == "huggingface" else None) or NEWEST


UNSLOTHS_TRANSFORMERS: Final[tuple[tuple[Version, Version], ...]] = (
    ((2026, 10), (5, 17)), ((2026, 4), (5, 5)), ((2026, 3), (5, 2)), ((2025, 1, 6), (4, 57)), ((0,), (4, 47)),
)
"""Since which release of Unsloth which transformers is the newest that it allows [unsloth_zoo's requirements], or that
there was."""


def unsloths_transformers(version: Version | None) -> Version:
    """The release of transformers that comes with a release of Unsloth; None: the newest."""
    return next(release for since, release in UNSLOTHS_TRANSFORMERS if version is None or version >= since)


def linear_experts(family: str, engine: str, version: Version | None) -> bool:
    """Whether a job's experts are linear layers of their own, as most families' were before transformers 5."""
    if engine not in ("huggingface", "unsloth"):
        return False
    release = unsloths_transformers(version) if engine == "unsloth" else version or NEWEST
    return not stacks_experts(family, release)


NEWEST_TORCH: Final[Version] = (2, 13)

FUSED_ADAMW_SINCE: Final[tuple[Version, Version]] = ((4, 54), (2, 8))
"""`optim` is adamw_torch_fused since that transformers on that torch; adamw_torch, which is foreach, before [args]."""
OWN_ADAMW_UNTIL: Final[Version] = (4, 32)
"""`optim` is adamw_hf before: transformers' own, one weight after the other [args]."""
NON_REENTRANT_SINCE: Final[Version] = (5, 0)
"""Checkpoints are not reentrant where nothing is said [utils]."""
CHECKPOINTS_INSIDE_SINCE: Final[Version] = (4, 52)
"""A layer checkpoints itself, inside what wraps it; before, the loop over layers checkpointed the wrapper [layers]."""
PADS_LABELS_SINCE: Final[Version] = (4, 49)
"""The labels are padded; before, all logits but the last were copied [loss]."""
FSDP2_SINCE: Final[Version] = (5, 10)
"""`fsdp_config["version"]` is 2 by default [args]."""

SHIFTS_UNTIL: Final[Version] = (4, 45)
"""Every family's code shifts its logits itself until then."""

CENTRAL_LOSS_SINCE: Final[dict[str, Version]] = {
    "mistral": (4, 48), "starcoder2": (4, 47), "granite": (4, 48), "bert": (4, 47),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "mamba2"), (4, 52)), **dict.fromkeys(("mamba", "falcon_mamba"), NEVER),
    **dict.fromkeys(
        ("bloom", "codegen", "dbrx", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granitemoe",
         "mpt", "opt", "persimmon", "stablelm"), (4, 49),
    ),
}
"""First release whose model code calls [loss], which upcasts the logits; 4.46 for every other family."""

REPEATS_KEYS_UNTIL: Final[dict[str, Version]] = {
    **dict.fromkeys(("mistral", "mixtral", "phi3", "qwen2", "starcoder2"), (4, 48)),
    **dict.fromkeys(("jamba", "phimoe", "qwen2_moe"), (4, 53)),
}
"""First release that hands grouped keys and values to flash-attn as they are; every other family always did."""

CACHES_UNTIL: Final[dict[str, Version]] = {"gpt_bigcode": (4, 53)}
"""First release that does not fill a cache of keys and values under checkpoints, with views of what one projection
made: those of all layers live until the loss is there [gpt_bigcode]. Every other family's code switches it off."""

TWO_LISTS_UNTIL: Final[Version] = (2, 1)
"""foreach Adam made the denominators beside the square roots before [adam]."""

UPCASTS_SINCE: Final[Version] = (0, 30)
"""FSDP1 under mixed precision holds what learns in fp32 [accelerate]."""
UPCASTS_LEARNING_SINCE: Final[Version] = (1, 13)
"""FSDP2 under mixed precision: only what learns becomes fp32; before, everything did [accelerate]."""
SPLITS_ROOT_SINCE: Final[Version] = (1, 14)
"""FSDP2: the embedding is a unit, final norm and head are another [accelerate]."""


FULLY_SHARD_SINCE: Final[Version] = (2, 6)
"""torch.distributed.fsdp exports fully_shard, and its documentation names it before FullyShardedDataParallel."""

ZERO_OPTIONS: Final = (
    "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "sub_group_size",
    "stage3_max_reuse_distance", "overlap_comm", "auto", "grad_accum_dtype",
)


class Software(Struct, frozen=True):
    """What a job runs on."""

    torch: Version
    transformers: Version
    accelerate: Version


def software(job: Job) -> Software:
    """Releases of a job: named, else those of the days of what is named, else the newest.

    Raises: InvalidSpec for a name that is no release
    """
    release = transformers_version(job)
    torch, accelerate = next((torch, of) for since, torch, of in CONTEMPORARY if release >= since)
    if job.engine == "pytorch":
        torch = job.engine_version or NEWEST_TORCH
    _, newest_torch, newest_accelerate = CONTEMPORARY[0]
    return Software(
        _named(job, "torch", newest_torch) or torch, release,
        _named(job, "accelerate", newest_accelerate) or accelerate,
    )


def _named(job: Job, name: str, newest: Version) -> Version | None:
    text = str(job.engine_options.get(name, ""))
    found = read_version(text) if text else None
    if text and found is None:
        raise InvalidSpec("engine option {}={!r} must be a release, as in {}=2.8", name, text[:40], name)
    return None if found is None else last_release(found, parts=len(newest), newest=newest)


def optimizer_kernel(job: Job) -> Literal["foreach", "fused", "loop"]:
    """How the optimizer steps: as the plan says, else by default."""
    if job.engine == "torchtune":
        return job.plan.optimizer_kernel or "fused"  # in every recipe that names torch's AdamW [torchtune.py]
    if job.plan.optimizer_kernel is not None or job.engine != "huggingface" or job.plan.optimizer != "adamw":
        return job.plan.optimizer_kernel or "foreach"
    found = software(job)
    if found.transformers < OWN_ADAMW_UNTIL:
        return "loop"
    since, torch = FUSED_ADAMW_SINCE
    return "fused" if found.transformers >= since and found.torch >= torch else "foreach"


class CausalLoss(Struct, frozen=True):
    """How model code comes from logits to their loss."""

    returns_fp32: bool  # forward makes the logits fp32 and forgets the narrow ones
    upcasts: bool
    copies: bool  # all positions but the last become a tensor of their own


def causal_loss(job: Job) -> CausalLoss:
    """What the model code of a job's release does; what a checkpoint brings itself has shifted logits ever since.

    "shifted_loss" asks for the model code of an older release.
    """
    family, release = family_of(job.model.family), software(job).transformers
    if job.engine_options.get("shifted_loss"):
        release = min(release, SHIFTS_UNTIL)
    returned = behaviour(job.model.family, release, flash=False).upcasts
    if family not in REMOTE and release >= CENTRAL_LOSS_SINCE.get(family, (4, 46)):
        return CausalLoss(returned, True, release < PADS_LABELS_SINCE)
    return CausalLoss(returned, returned, True)


BY_XFORMERS: Final = ("cohere", "gemma", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""Families whose attention Unsloth writes itself: with xformers where flash-attn does not run, in whose layout it
copies keys and values for every query head wherever something learns [unsloth models/llama.py 3d5cf373
`LlamaAttention_fast_forward`, utils/attention_dispatch.py 015bdef0 `run_attention`]."""

FLASH_ATTN_SINCE: Final = 80
"""Compute capability that flash-attn needs."""


def repeats_keys(job: Job) -> bool:
    """Whether keys and values are copied for every query head: before PyTorch's kernels for long, before flash-attn in
    some families' code, before xformers in Unsloth's."""
    if job.engine == "unsloth" and family_of(job.model.family) in BY_XFORMERS:
        return (job.cluster.gpu.sm or FLASH_ATTN_SINCE) < FLASH_ATTN_SINCE
    release = software(job).transformers
    if job.plan.attention is AttentionKernel.FLASH:
        return release < REPEATS_KEYS_UNTIL.get(family_of(job.model.family), ALWAYS)
    return release < GROUPED_SDPA_SINCE


def caches_products(job: Job) -> bool:
    """Whether a cache holds what the projections of every layer made until forward has ended."""
    family = family_of(job.model.family)
    return engine_of(job).leaves_sharding and software(job).transformers < CACHES_UNTIL.get(family, ALWAYS)


def sharder(job: Job) -> Sharder | None:
    """Who shards a job of the Trainer or of a plain loop: as the plan says, else by default; None: nobody.

    ZeRO 1 and 2, offload, and settings of DeepSpeed need DeepSpeed. Of other engines: what the plan says.
    """
    plan = job.plan
    if plan.sharded_by is not None or not engine_of(job).leaves_sharding:
        return plan.sharded_by
    if job.engine == "huggingface" and (job.engine_options.get("deepspeed") or _needs_deepspeed(job)):
        return "deepspeed"
    if plan.shards is Shards.NOTHING or job.replicas == 1:
        return None
    if job.engine == "pytorch":
        return "fsdp2" if software(job).torch >= FULLY_SHARD_SINCE else "fsdp1"
    return "fsdp2" if software(job).transformers >= FSDP2_SINCE else "fsdp1"


def runs_deepspeed(job: Job) -> bool:
    """Whether DeepSpeed runs a job: its own engine always, the Trainer where that shards."""
    return job.engine == "deepspeed" or (job.engine == "huggingface" and sharder(job) == "deepspeed")


def of_recipe(job: Job) -> str:
    """The engine whose names a job's recipes have: DeepSpeed where the Trainer runs that."""
    return "deepspeed" if runs_deepspeed(job) else job.engine


def recipe_names(job: Job) -> Mapping[str, Precision]:
    """What a job's engine means by names of recipes."""
    return TRAINING[of_recipe(job)].calls


def precision_word(job: Job) -> str:
    """The word that asks a job's engine for its recipe."""
    precision = job.plan.precision
    return f"pure-{precision}" if precision in recipe_names(job) else str(precision)


def _needs_deepspeed(job: Job) -> bool:
    plan: Plan = job.plan
    if job.replicas == 1:
        return False
    partly = plan.shards in (Shards.OPTIMIZER, Shards.OPTIMIZER_AND_GRADIENTS)
    offloads = plan.offload_optimizer != "none" or plan.offload_parameters != "none"
    return partly or offloads or any(name in job.engine_options for name in ZERO_OPTIONS)


LOADS_PACKED_WHOLE_SINCE: Final[Version] = (5,)
"""Before, each weight that was packed went to main memory again under FSDP and ZeRO-3, whose `zero.Init` packed bases
are loaded without [transformers modeling_utils.py `get_init_context`; 4.57 `_load_state_dict_into_meta_model`]."""


def loads_whole(job: Job) -> bool:
    packed = job.plan.peft is not None and job.plan.peft.base in IN_MEMORY
    packed = packed and not job.engine_options.get("loads_on_host")
    return packed and software(job).transformers >= LOADS_PACKED_WHOLE_SINCE
