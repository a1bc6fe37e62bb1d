"""Hugging Face Trainer over Accelerate: autocast, converted outputs, DDP; FSDP or DeepSpeed where the plan shards.

[HF] transformers trainer.py: gradient checkpointing per layer, `zero_grad(set_to_none)`
[Accelerate] accelerator.py `prepare_model`: forward runs under autocast and `convert_outputs_to_fp32`, so the logits
exist once more in fp32 while the loss is computed; utils/dataclasses.py `set_mixed_precision`: FSDP gathers, computes
and reduces in 16 bits
Defaults by release stand in eager/releases.py.

Norms, embeddings and heads of 32 bits beside layers of 16, all of which learn under autocast.

[ax] axolotl-ai-cloud/axolotl 0.18.0 src/axolotl/loaders/model.py `_configure_embedding_dtypes`,
`_convert_embedding_modules_dtype`: modules whose names hold "norm", and those that loaders/utils.py
`get_linear_embedding_layers` names
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR, VALUE
from vramcast.domain.job import Job, Precision, RankProgram, Recompute
from vramcast.domain.model import MoE
from vramcast.domain.version import named
from vramcast.engines import deepspeed
from vramcast.engines.eager.checks import refuse_unsharded
from vramcast.engines.eager.completions import (
    completion_phases,
    distilled_loss,
    distils,
    loaded_wide,
    of_answers,
    own_answers,
    student_of,
    taught,
    teacher_sentences,
    with_answers,
    writes,
    written_loss,
)
from vramcast.engines.eager.phases import all_phases
from vramcast.engines.eager.preference import compared_phases, in_one, rated, rated_loss, refuse_fused
from vramcast.engines.eager.question import loss_of, packing_sentences, recipe_of, stepping_of
from vramcast.engines.eager.recipe import IN_MEMORY, Recipe
from vramcast.engines.eager.releases import (
    CHECKPOINTS_INSIDE_SINCE,
    SPLITS_ROOT_SINCE,
    UPCASTS_LEARNING_SINCE,
    UPCASTS_SINCE,
    causal_loss,
    loads_whole,
    sharder,
    software,
    with_its_kernels,
    with_its_loss,
)
from vramcast.engines.eager.trl import chunks_loss, loads_fp32, prepared, reentrant
from vramcast.engines.pytorch import MIXED, one_role, roles_in_turn, sharded_role, sharding_of
from vramcast.engines.training import Sharder
from vramcast.errors import Note, Unsupported
from vramcast.operators.loss import MASKED
from vramcast.units import FP32, HALF

NAMED_SO: Final = (
    "arcee", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_neox", "granite", "helium",
    "llama", "ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3",
)
"""Families whose modules are named as [ax] looks for them: norms with "norm", `embed_tokens` and `lm_head`, or
`embed_in` and `embed_out`."""

SAID: Final = "embedding, head and norms are fp32 beside layers of 16 bits, and so are hidden states"


def widened(recipe: Recipe, job: Job) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a network whose ends and norms are so, and what is said of it.

    Raises: Unsupported where names of modules may be others, or somebody casts them back
    """
    if not job.engine_options.get("fp32_modules"):
        return recipe, ()
    numerics = recipe.sizes.numerics
    if recipe.model.family not in NAMED_SO or len(recipe.model.stacks) > 1:
        raise Unsupported("which modules of {} are fp32 beside layers of 16 bits is not modelled", job.model.name)
    if numerics.weight != HALF or job.plan.peft is not None or job.plan.compile or sharder(job) is not None:
        raise Unsupported("fp32 modules are modelled where every weight of 16 bits learns, on each rank whole")
    sizes = replace(recipe.sizes, numerics=replace(numerics, residual=FP32), norm_weights=FP32)
    return replace(recipe, sizes=sizes, wide_ends=True), (SAID,)


CHUNKED: Final = (
    "head and loss run in chunks of 256 tokens, as TRL's SFTTrainer does unasked since 1.7 (loss_type=chunked_nll); "
    "--loss eager for all logits at once"
)

BYTES: Final = (
    "packed weights are bytes (bnb_4bit_quant_storage uint8), which Accelerate leaves whole on every card; "
    "--engine-option quant_storage=float where it names a type of 16 bits"
)

AUTOCAST: Final = (Precision.AMP_BF16, Precision.AMP_FP16)


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    `engine_options`: "torch", "accelerate" and "trl" (their releases); "reentrant" checkpoints (bool), "padded" batches
    (bool), "liger" (bool, or kernels: "rope+rms_norm"), "shifted_loss" for model code that shifts its logits (bool),
    "autocast" over weights of 16 bits (bool), "backward_prefetch" of FSDP1 ("pre", "none"), "deepspeed" (bool), "dtype"
    of frozen weights ("float32", "bfloat16"), "prepare_kbit" ("trl", "peft", "norms", "none") for packed bases,
    "gptq_kernel" ("cuda_old", "tritonv2"), "beta" (float), "steps_per_generation" (micro-batches whose completions are
    made at once) and "generation_batch_size" (completions of all ranks) for GRPO and RLOO,
    "teacher_dtype" ("compute", "float32") for GKD, "precompute_ref_log_probs" (bool) for DPO and KTO,
    "log_probs" ("samples", "rows", "rows+nll", "whole") for
    them, "cut_cross_entropy" beside --loss fused_linear (bool), "pack_experts" of a packed base, too, or
    "linear_experts" (bool), "experts_without_dropout" of their adapters (bool), "converts_outputs" by Accelerate
    (bool), "follows_inputs" of frozen towers (bool), "learns_beside" adapters, in its place ("projector"),
    "whole_towers" beside a packed language model (bool), "frozen_halves" of --freeze (bool), "tower_rank" of adapters
    of towers, "float8_all_gather".

    Raises: Unsupported for model parallelism and what the sharder is not asked for
    """
    refuse_fused(job)
    who = sharder(job)
    if who == "deepspeed":
        return deepspeed.ranks(job)
    if who is not None:
        return (_sharded(job, who),)
    refuse_unsharded(job)
    recipe, said = prepared(_recipe(job), job)
    recipe, fp32 = widened(recipe, job)
    said = (*packing_sentences(job), *said, *fp32, *_loaded(job), *((CHUNKED,) if chunks_loss(job) else ()))
    if job.plan.pp > 1:
        return roles_in_turn(job, recipe, *said)
    if writes(job):
        phases, together = completion_phases(job, of_answers(recipe, job), stepping_of(job))
        return (one_role(job, phases, *said, together),)
    if distils(job):
        narrow, wide = recipe.sizes.numerics.compute < FP32, loaded_wide(job)
        teacher = taught(recipe, _recipe(student_of(job), narrow=narrow and not wide), wide=wide)
        phases = with_answers(compared_phases(recipe, stepping_of(job), teacher), (), own_answers(job, recipe))
        return (one_role(job, phases, *said, *teacher_sentences(job)),)
    if (compared := rated(job, recipe)) is not None:
        return (one_role(job, compared_phases(recipe, stepping_of(job), compared), *said, compared.said),)
    return (one_role(job, all_phases(job, recipe, stepping_of(job)), *said),)


def _autocast(job: Job) -> bool:
    """Whether bf16 or fp16 is asked of the Trainer, beside weights of any type."""
    return job.plan.precision in (*AUTOCAST, *MIXED) or bool(job.engine_options.get("autocast", False))


def _recipe(job: Job, *, narrow: bool = False) -> Recipe:
    autocast, causal, job = _autocast(job), causal_loss(job), with_its_loss(job)
    if chunks_loss(job) and sharder(job) is None:
        loss: str | None = LINEAR + ("trl_autocast" if autocast else "trl")
    else:
        loss = written_loss(job) if writes(job) else rated_loss(job) or loss_of(job, autocast=autocast, causal=causal)
    if distils(job):
        loss = distilled_loss(job)
    if job.engine_options.get("value_head"):
        loss = VALUE
    if job.engine_options.get("masked_diffusion"):
        loss = MASKED
    converts = autocast and bool(job.engine_options.get("converts_outputs", True))
    recipe = recipe_of(job, loss=loss, outputs_fp32=converts or in_one(job), autocast=autocast, narrow=narrow)
    return replace(with_its_kernels(recipe, job), returns_fp32=causal.returns_fp32 and loss is not None)


def _loaded(job: Job) -> tuple[str, ...]:
    if job.plan.peft is None or job.plan.precision not in AUTOCAST:
        return ()
    if loads_fp32(job) and "dtype" in job.engine_options:
        return ("the frozen weights are loaded in float32",)
    if loads_fp32(job):
        return (
            "the frozen weights are loaded in float32, as TRL since 0.27 loads a model given by its id alone; "
            "--engine-option dtype=bfloat16 for 16 bits",
        )
    dtype = job.plan.peft.adapter_dtype
    if job.plan.peft.base != "full":
        return (Note("what is not packed as {} is loaded in 16 bits, adapters are {} under autocast",
                     job.plan.peft.base, dtype),)
    return (Note("the frozen weights are loaded in 16 bits, adapters are {} under autocast", dtype),)


def _sharded(job: Job, who: Sharder) -> RankProgram:
    """[Accelerate]: under mixed precision what learns is held in fp32, and everything is gathered in 16 bits."""
    mixed, found, plain = _autocast(job), software(job), sharding_of(job, who)
    sharding, wide = plain, job.plan.precision in (*AUTOCAST, *MIXED)
    if mixed:
        upcasts = found.accelerate >= UPCASTS_SINCE or wide
        packed = job.plan.peft is not None and job.plan.peft.base in IN_MEMORY
        held = who == "fsdp2" and found.accelerate < UPCASTS_LEARNING_SINCE and not packed
        frozen = held or loads_fp32(job)
        sharding = replace(
            plain, master=FP32 if upcasts else None, frozen_master=FP32 if frozen else None, compute=HALF
        )
    older = who == "fsdp1" and found.transformers < CHECKPOINTS_INSIDE_SINCE
    sharding = replace(
        sharding, split_root=found.accelerate >= SPLITS_ROOT_SINCE,
        hooks_hold=older and reentrant(job) and job.plan.recompute is Recompute.FULL,
    )
    recipe, stored = _stored(job, _recipe(job, narrow=mixed), who)
    alone = _experts_alone(job, who)
    sharding = replace(sharding, loads_whole=loads_whole(job), experts_alone=bool(alone))
    said = (*_said_sharder(job, who), *alone, *stored, *packing_sentences(job), *_loaded(job))
    return sharded_role(job, recipe, sharding, *said, compared=rated(job, recipe))


EXPERTS_ALONE: Final = (
    "FullyShardedDataParallel (FSDP1): a flat weight for router and experts of every layer, one for all the rest, "
    "which is gathered for the whole step"
)


def _experts_alone(job: Job, who: Sharder) -> tuple[str, ...]:
    """What is said where the blocks of experts are wrapped instead of layers; the root, which holds the rest, frees
    nothing between forward and backward [pytorch fsdp/_runtime_utils.py `_lazy_init`].

    Raises: Unsupported where there are other parts, and for FSDP2
    """
    if job.engine_options.get("fsdp_units", "layers") != "experts":
        return ()
    layers = job.model.main.layers
    if who != "fsdp1" or not all(isinstance(layer.channel, MoE) for layer in layers) or len(job.model.stacks) > 1:
        raise Unsupported("units of experts alone are modelled for FSDP1 and networks with experts in every layer")
    return (EXPERTS_ALONE,)


def _stored(job: Job, recipe: Recipe, who: Sharder) -> tuple[Recipe, tuple[str, ...]]:
    """Packed weights in bytes, as bitsandbytes has them unasked, which FSDP2 leaves out and FSDP1 cannot flatten.

    Source: accelerate 1.15 utils/fsdp_utils.py `fsdp2_prepare_model`
    """
    if not recipe.sizes.packs("") or job.engine_options.get("quant_storage") != "uint8":
        return recipe, ()
    if who == "fsdp1":
        raise Unsupported("FSDP1 flattens weights of one type, and packed ones are bytes; set bnb_4bit_quant_storage "
                          "to the type of the others, or --engine-option quant_storage=float")
    return replace(recipe, packed_whole=True), (BYTES,)


def _said_sharder(job: Job, who: Sharder) -> tuple[str, ...]:
    """Who shards, where nobody said."""
    if job.plan.sharded_by is not None:
        return ()
    release = named("transformers", software(job).transformers)
    return Note("Accelerate shards, not DeepSpeed: {} is the default of {}; --sharded-by says otherwise", who, release),
