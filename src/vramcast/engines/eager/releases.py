"""What PyTorch, the Trainer, Accelerate, TRL and Liger do by default, by release, as far as it decides memory.

Read in the wheels of transformers 4.30.2 to 5.23.0 (37 releases), in huggingface/accelerate tags v0.20.3 to v1.14.0 and
in torch 2.13. "none" of a plan is an answer, not a silence; what it can leave open (the loss, kernels, who shards) the
engines settle themselves.

[liger] liger_kernel/transformers/monkey_patch.py `apply_liger_kernel_to_*`
[TRL] huggingface/trl trl/trainer/{sft_trainer,grpo_config,grpo_trainer}.py, trl/models/utils.py `prepare_peft_model`,
tags v0.7.2 to v1.9.0; huggingface/trl trl/trainer/base_config.py `_BaseConfig`,
trl/trainer/{sft,dpo,grpo,reward}_config.py before 0.29
[PEFT] huggingface/peft src/peft/utils/other.py `prepare_model_for_kbit_training`: every 16-bit parameter that is not
packed becomes fp32, but for GPTQ, AQLM, EETQ, HQQ and torchao
[args] transformers training_args.py
[trainer] transformers trainer.py
[utils] transformers modeling_utils.py `gradient_checkpointing_enable`
[layers] transformers modeling_layers.py `GradientCheckpointingLayer`
[gpt_bigcode] transformers models/gpt_bigcode/modeling_gpt_bigcode.py `GPTBigCodeModel.forward`, `presents`
[loss] transformers loss/loss_utils.py `ForCausalLMLoss`; models/*/modeling_*.py before
[accelerate] accelerate accelerator.py `prepare_model`, utils/fsdp_utils.py `fsdp2_prepare_model`
[adam] pytorch torch/optim/adam.py `_multi_tensor_adam`
[unsloth] unsloth/models/{loader,llama,vision}.py `from_pretrained`, `get_peft_model`: use_gradient_checkpointing is
True or "unsloth" in every release since 2023-12
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.domain.job import AttentionKernel, Job, Loss, Plan, Precision, Recompute, Shards
from vramcast.domain.model import Head, Norm
from vramcast.domain.version import Version, last_release, read_version, version_text
from vramcast.engines.eager.recipe import HEAD, IN_MEMORY, Recipe
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
)
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.operators.linear import Numerics

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
        recipe = recipe._replace(loss=LINEAR + "cut_cross_entropy")
    sizes = sizes._replace(
        rope="liger" if "rope" in kernels else sizes.rope, norm="liger" if "rms_norm" in kernels else sizes.norm,
        activation="liger" if "swiglu" in kernels else sizes.activation,
    )
    return recipe._replace(sizes=sizes)


CONTEMPORARY_TRL: Final[tuple[tuple[Version, Version], ...]] = (
    ((5, 14), (1, 9)), ((5, 2), (0, 28)), ((5, 0), (0, 27)), ((4, 57), (0, 24)), ((4, 53), (0, 19)), ((0,), (0, 7, 2)),
)
"""Release of transformers, and the TRL that was the newest when it came: where no TRL is named [release dates]."""

Prepared = Literal["nothing", "norms", "all"]
"""Which weights of a packed network become fp32."""

PREPARES: Final[tuple[tuple[Version, Prepared], ...]] = (((0, 28), "nothing"), ((0, 25), "norms"), ((0, 7, 2), "all"))
"""[TRL] SFTTrainer since that release; before 0.25 [PEFT] does it, and embedding and head are cast back where the run
computes in bf16 and the base has 4 bits (`peft_module_casting_to_bf16`)."""

BETAS: Final[tuple[tuple[Version, float], ...]] = (((0, 19), 0.0), ((0,), 0.04))
"""`GRPOConfig.beta` since that release; without it there is no reference model [TRL]."""

RLOO_BETA: Final = 0.05
"""`RLOOConfig.beta` [TRL]."""

GENERATES_AHEAD_SINCE: Final[Version] = (0, 17)
"""Completions of all micro-batches of a step are generated at once, or of as many as `steps_per_generation` says;
before, each micro-batch's by themselves [TRL grpo_trainer.py `get_train_dataloader`]."""

UNSLOTH_BETA: Final = 0.001
UNSLOTH_BETA_SINCE: Final[Version] = (2025, 6, 5)
"""Unsloth writes its own default into TRL's configuration [unsloth models/rl.py, d7b0653a2 of 2025-06-22]."""

TRAINERS: Final = ("sft", "dpo", "kto", "grpo", "rloo", "reward")
"""Objectives that name one of TRL's trainers. Its PPOTrainer has a loop of its own, which switches nothing on."""

RECOMPUTES_SINCE: Final[Version] = (0, 22)
"""`gradient_checkpointing` is on in the configurations of those [TRL a222aeb46 of 2025-08-08]."""

TRL_NON_REENTRANT_SINCE: Final[Version] = (0, 27)
"""Checkpoints are not reentrant unasked, before transformers 5, too [TRL sft_config.py `__post_init__`]."""

REENTRANT_SINCE: Final[dict[str, Version]] = {
    "sft": (0, 28), **dict.fromkeys(("dpo", "kto", "grpo", "rloo", "reward"), (1, 9)),
}
"""Since that release each trainer forces the older kind of checkpoints on adapters under ZeRO-3 [TRL __init__]."""

CHUNKS_LOSS_SINCE: Final[Version] = (1, 7)
"""`SFTConfig.loss_type` is chunked_nll: head and loss run in checkpoints of 256 tokens; nll before, and beside Liger's
kernels [TRL]. Modelled where a rank has its weights whole."""

NARROWS_ADAPTERS: Final[dict[str, Version]] = {
    **dict.fromkeys(("sft", "grpo", "rloo", "reward"), (0, 26)), "dpo": (0, 29), "kto": (1, 4),
}
"""Since that release each trainer makes every weight of a packed network that learns bf16, whatever the run computes in
[TRL __init__: `param.data = param.data.to(torch.bfloat16)`]."""

KEEPS_ADAPTERS: Final[Version] = (0, 9)
"""Before, `peft_module_casting_to_bf16` cast the adapters of 4-bit bases with the rest [TRL 99f2c94b2]."""

LOADS_FP32_SINCE: Final[Version] = (0, 27)
"""A model given by its id is loaded in float32 where `dtype` does not say otherwise [TRL trainer/utils.py
`create_model_from_path`, model_config.py `dtype`]; before, as its checkpoint has it."""

FP32: Final = 4


def transformers_version(job: Job) -> Version:
    """The release of transformers whose model code runs; the newest known where the question names none."""
    return (job.engine_version if job.engine == "huggingface" else None) or NEWEST


def trl_version(job: Job) -> Version:
    """The TRL of a job: named, or the one of its transformers' days.

    Raises: InvalidSpec for a name that is no version
    """
    named = str(job.engine_options.get("trl", ""))
    found = read_version(named) if named else None
    if named and found is None:
        raise InvalidSpec(f"engine option trl={named[:40]!r} must be a release, as in trl=0.24")
    release = transformers_version(job)
    newest = CONTEMPORARY_TRL[0][1]
    if found is not None:
        return last_release(found, parts=len(newest), newest=newest)
    return next(trl for since, trl in CONTEMPORARY_TRL if release >= since)


def is_trl(job: Job) -> bool:
    """Whether one of TRL's trainers runs a job: its objective says so; without one the Trainer runs it."""
    return job.engine == "huggingface" and job.workload.objective in TRAINERS


def beta_of(job: Job) -> float:
    """The weight of the KL term of GRPO."""
    if "beta" in job.engine_options:
        return float(job.engine_options["beta"])
    if job.workload.objective == "rloo":
        return RLOO_BETA
    if job.engine == "unsloth" and (job.engine_version or UNSLOTH_BETA_SINCE) >= UNSLOTH_BETA_SINCE:
        return UNSLOTH_BETA
    version = trl_version(job)
    return next(beta for since, beta in BETAS if version >= since)


def generated_at_once(job: Job) -> int:
    """Micro-batches whose completions are generated together: unasked, where TRL does it, those of a step."""
    ahead = job.engine in ("huggingface", "unsloth") and trl_version(job) >= GENERATES_AHEAD_SINCE
    usual = job.workload.grad_accum if ahead and job.workload.objective in ("grpo", "rloo") else 1
    return int(job.engine_options.get("steps_per_generation", usual))


def loads_fp32(job: Job) -> bool:
    """Whether a frozen network is loaded in float32, and so is what bitsandbytes leaves of it, under autocast."""
    peft = job.plan.peft
    if job.engine != "huggingface" or peft is None or peft.base not in ("full", *IN_MEMORY):
        return False
    sharded = job.plan.shards is Shards.EVERYTHING and job.data_parallel > 1
    if job.plan.precision not in (Precision.AMP_BF16, Precision.AMP_FP16) or (sharded and peft.base in IN_MEMORY):
        return False
    if "dtype" in job.engine_options:
        return bool(job.engine_options["dtype"] == "float32")
    return is_trl(job) and trl_version(job) >= LOADS_FP32_SINCE


def prepared_weights(job: Job) -> Prepared:
    """What becomes fp32 before training begins: of a base that bitsandbytes packs, whole on every rank."""
    how, base = str(job.engine_options.get("prepare_kbit", "trl")), job.plan.peft.base if job.plan.peft else "full"
    sharded = job.plan.shards is Shards.EVERYTHING and job.data_parallel > 1
    if base not in IN_MEMORY or sharded or how == "none":
        return "nothing"
    if how in ("peft", "norms"):
        return "all" if how == "peft" else "norms"
    version = trl_version(job)
    found: Prepared = next((what for since, what in PREPARES if version >= since), "nothing")
    casts_back = job.plan.precision is Precision.AMP_BF16 and base != "int8"
    return "norms" if found == "all" and casts_back else found


def narrows_adapters(job: Job) -> bool:
    """Whether a trainer of TRL makes the adapters beside a packed base bf16."""
    peft = job.plan.peft
    if not is_trl(job) or peft is None or peft.base not in IN_MEMORY:
        return False
    version = trl_version(job)
    if version < KEEPS_ADAPTERS:
        return peft.base != "int8" and job.plan.precision is Precision.AMP_BF16
    return version >= NARROWS_ADAPTERS[str(job.workload.objective)]


def prepared(recipe: Recipe, job: Job) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a model so prepared, and what there is to say.

    A norm whose weight is fp32 answers in fp32, packed layers in the type of their input: so does the residual stream,
    and with it every checkpoint. Gemma's norms answer in the type of what they read.
    """
    what, sizes = prepared_weights(job), recipe.sizes
    said = (_said(what, job),) if what != "nothing" else ()
    if job.plan.peft is not None and job.plan.peft.base in IN_MEMORY and loads_fp32(job):
        what = "all"
    if what == "nothing":
        return recipe, ()
    compute = sizes.numerics.compute
    if what == "all":
        numerics = Numerics(FP32, compute, FP32, FP32)
    else:
        follows = sizes.norm == "gemma" and recipe.model.main.layers[0].norm is Norm.RMS
        numerics = sizes.numerics if follows else sizes.numerics._replace(residual=FP32)
    sizes = sizes._replace(numerics=numerics, norm_weights=FP32)
    return recipe._replace(sizes=sizes), said


def reference_sentences(job: Job) -> tuple[str, ...]:
    """Whether GRPO has a reference model, and why."""
    if job.workload.objective not in ("grpo", "rloo"):
        return ()
    beta = beta_of(job)
    if job.workload.objective == "rloo":
        return () if not beta else (f"RLOO with beta={beta:g}: a reference model is asked, too",)
    if beta:
        return (f"GRPO with beta={beta:g}: a reference model is asked, too",)
    return ("GRPO with beta=0, TRL's default since 0.19: no reference model; --engine-option beta=0.04 for one",)


def forces_reentrant(job: Job) -> bool:
    """Whether a trainer of TRL makes checkpoints the older kind where DeepSpeed shards: of adapters under ZeRO-3."""
    return (
        is_trl(job) and job.plan.peft is not None and job.plan.shards is Shards.EVERYTHING
        and trl_version(job) >= REENTRANT_SINCE[str(job.workload.objective)]
    )


def chunks_loss(job: Job) -> bool:
    """Whether SFTTrainer makes head and loss in chunks: unasked, where nothing else makes them."""
    plan = job.plan
    if not is_trl(job) or job.workload.objective != "sft" or plan.loss is not None or plan.compile:
        return False
    adapted = plan.peft is not None and HEAD in plan.peft.targets  # TRL refuses to: loss_type=nll
    fits = job.model.head is Head.LM and not adapted and not liger_kernels(job)
    return fits and trl_version(job) >= CHUNKS_LOSS_SINCE


def _said(what: Prepared, job: Job) -> str:
    if job.engine_options.get("prepare_kbit") == "peft":
        return "prepare_model_for_kbit_training: what is not packed is fp32, and so are hidden states"
    if job.engine_options.get("prepare_kbit") == "norms":
        return "norms beside a packed base are fp32, and so are hidden states"
    version = version_text(trl_version(job))
    if what == "all":
        return f"TRL {version} prepares packed models: what is not packed is fp32, and so are hidden states"
    return f"TRL {version} prepares packed models: norms are fp32, and so are hidden states"


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


class Software(NamedTuple):
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
        raise InvalidSpec(f"engine option {name}={text[:40]!r} must be a release, as in {name}=2.8")
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


def reentrant(job: Job) -> bool:
    """Whether checkpoints are of the older kind."""
    default = job.engine == "huggingface" and software(job).transformers < NON_REENTRANT_SINCE
    default = default and not (is_trl(job) and trl_version(job) >= TRL_NON_REENTRANT_SINCE)
    if forces_reentrant(job) and sharder(job) == "deepspeed":
        return True
    return bool(job.engine_options.get("reentrant", default))


class CausalLoss(NamedTuple):
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


def repeats_keys(job: Job) -> bool:
    """Whether keys and values are copied for every query head: before PyTorch's kernels for long, before flash-attn in
    some families' code."""
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
    if plan.shards is Shards.NOTHING or job.data_parallel == 1:
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
    if job.data_parallel == 1:
        return False
    partly = plan.shards in (Shards.OPTIMIZER, Shards.OPTIMIZER_AND_GRADIENTS)
    offloads = plan.offload_optimizer != "none" or plan.offload_parameters != "none"
    return partly or offloads or any(name in job.engine_options for name in ZERO_OPTIONS)


def with_unasked(job: Job, named: Container[str]) -> Job:
    """The job with what its tool does where the question does not say otherwise, and a sentence for each.

    Args:
        named: options that it names
    """
    plan, said = job.plan, list(job.assumed)
    if "recompute" not in named and (tool := recomputing(job)):
        plan = replace(plan, recompute=Recompute.FULL)
        said.append(f"layers are recomputed, as {tool} does unasked; --recompute none switches that off")
    if "adapter-dtype" not in named and plan.peft is not None and narrows_adapters(job):
        plan = replace(plan, peft=replace(plan.peft, adapter_dtype="bf16"))
        said.append("adapters of a packed base are bf16, as TRL makes them unasked; --adapter-dtype fp32 for others")
    return replace(job, plan=plan, assumed=tuple(said))


def recomputing(job: Job) -> str:
    """The tool of a job, where that recomputes layers unasked; else nothing.

    Unsloth's embedding models are of another class, which does not [unsloth sentence_transformer.py].
    """
    if job.engine == "unsloth":
        return "Unsloth" if job.model.head is Head.LM else ""
    return "TRL" if is_trl(job) and trl_version(job) >= RECOMPUTES_SINCE else ""


def uncounted(job: Job) -> Iterator[str]:
    """What TRL's trainers do unasked that the program of a job is without."""
    if chunks_loss(job) and sharder(job) is not None:
        yield (
            "the loss in chunks of 256 tokens that TRL's SFTTrainer makes since 1.7 (loss_type=chunked_nll): counted "
            "is that of all logits, as loss_type=nll and the Trainer itself make it"
        )
