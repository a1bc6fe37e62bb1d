"""Unsloth-style single-GPU training: fused Triton kernels, a loss that never makes all logits, checkpointed layers.

[Unsloth] unsloth/kernels (rms_layernorm, swiglu, rope_embedding, cross_entropy_loss): in-place backward as in Liger
[Zoo] unsloth_zoo temporary_patches/moe_utils_bnb4bit.py: stacked experts become one `Params4bit` and are unpacked all
together; temporary_patches/gpt_oss.py `GptOssExpertsBnb4bit`: those of gpt-oss are linear layers again
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job, Loss, Phase, Precision, Recompute
from vramcast.domain.rank import RankProgram
from vramcast.domain.version import Version
from vramcast.engines.eager.models import all_phases
from vramcast.engines.eager.offload import Offloaded
from vramcast.engines.eager.question import recipe_of, refuse_shards, stepping_of
from vramcast.engines.eager.recipe import Recipe
from vramcast.engines.pytorch import one_role
from vramcast.engines.transformers.versions import left_sentences, left_whole
from vramcast.engines.unsloth_loss import WHOLE, short_batches, with_loss
from vramcast.errors import Unsupported
from vramcast.states.steps import Weight, weight_program

NEWEST: Final[Version] = (2026, 10, 9)

TRANSFORMERS: Final[tuple[tuple[Version, Version], ...]] = (
    ((2026, 10), (5, 17)), ((2026, 4), (5, 5)), ((2026, 3), (5, 2)), ((2025, 1, 6), (4, 57)), ((0,), (4, 47)),
)
"""Since which release of Unsloth which transformers is the newest that it allows [unsloth_zoo's requirements], or that
there was."""

SHARES_TABLES_SINCE: Final[Version] = (4, 48)
"""A model has one rotary table; before, every layer had its own [unsloth models/llama.py `IS_ATTENTION_REFACTOR`]."""

TABLE_POSITIONS: Final = 4 * 8192
"""Of a table at first, where the model has that many [unsloth models/llama.py `LlamaRotaryEmbedding`]."""

TABLES: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "cohere"), (TABLE_POSITIONS, 2)),
    **dict.fromkeys(("gemma", "gemma2"), (TABLE_POSITIONS, 4)),
    "phi3": (4096, 2),
}
"""Family -> most positions of a table, bytes of a number [unsloth models/llama.py; gemma.py
`GemmaFixedRotaryEmbedding`; `LongRopeRotaryEmbedding`'s first table is of the original length]."""

PACKS_EXPERTS_SINCE: Final[Version] = (2026, 6, 2)
"""[Zoo] moe_utils_bnb4bit.py is in the wheel of this release, and not in 2026.6.1's."""

SHORTEST_OFFLOADED: Final = 512
"""Below, offloading takes longer than it saves [unsloth models/_utils.py `apply_unsloth_gradient_checkpointing`]."""

DYNAMIC_SINCE: Final[Version] = (2024, 12)
"""Since then names of models lead to dynamic 4-bit checkpoints [unsloth models/mapper.py, 2024-12-04]."""

DOUBLE_BUFFERS_SINCE: Final[Version] = (2026, 5, 1)
"""[unsloth_zoo 510d987f, 2026-05-04]"""

AUTOCAST: Final = (Precision.AMP_BF16, Precision.AMP_FP16)
"""Accelerate converts returned logits to fp32."""

FOUR_BITS: Final = ("nf4", "nf4-dq")

IN_FP32_SINCE: Final[dict[str, Version]] = {
    "gemma3": (2025, 3, 15), "gemma3n": (2025, 6, 12), "gpt_oss": (2025, 8, 1), "gemma3_text": (2026, 2, 1),
    "qwen3_5": (2026, 3, 1), **dict.fromkeys(("gemma4", "gemma4_text", "qwen3_moe", "glm4_moe"), (2026, 7, 1)),
}
"""Family -> since when Unsloth runs it in fp32 around fp16 products where fp16 is asked for [unsloth models/loader.py
`FORCE_FLOAT32`: 49eece4d, e1693c1c, 9eab2cbc, acfe6703, 65f212b9, efcaffb1]."""

ADAPTERS: Final = ("lora", "dora")
"""What `FastLanguageModel.get_peft_model` makes: a LoraConfig [unsloth models/llama.py 00060afe]."""


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """One GPU with everything on it.

    Raises: Unsupported for more than one GPU, and for adapters that Unsloth does not make
    """
    if job.cluster.count > 1:
        raise Unsupported(f"--engine unsloth trains on one GPU, not {job.cluster.count}; use --engine huggingface")
    if job.plan.peft is not None and job.plan.peft.method not in ADAPTERS:
        raise Unsupported(
            f"--engine unsloth adapts by {' or '.join(ADAPTERS)}, not by {job.plan.peft.method}; "
            "use --engine huggingface"
        )
    refuse_shards(job, job.plan)
    plan = replace(job.plan, loss=job.plan.loss or Loss.FUSED_LINEAR)
    if job.plan.recompute is Recompute.SELECTIVE:
        plan = replace(plan, recompute=Recompute.FULL)
    asked, version = replace(job, plan=plan), job.engine_version or NEWEST
    recipe = _packing(asked, recipe_of(asked, variants="liger", autocast=True))
    if job.plan.loss is None:
        recipe = with_loss(asked, recipe, version)
    recipe = recipe._replace(outputs_fp32=recipe.loss == WHOLE and job.plan.precision in AUTOCAST)
    said = left_sentences(job.model, recipe.sizes.left_whole, transformers_of(job))
    around = _offloaded(asked, recipe)
    phases = dict(all_phases(asked, recipe, stepping_of(asked)._replace(around=around)))
    phases[Phase.LOAD] += weight_program(_tables(job))
    notes = ["fused kernels with in-place backward", *said]
    if around is not None:
        notes.append(
            "inputs of recomputed layers wait on the host; --engine-option offload_checkpoints=false keeps them"
        )
    if job.plan.peft is not None and job.plan.peft.base in FOUR_BITS and version >= DYNAMIC_SINCE:
        notes.append("every linear layer is packed; checkpoints named -unsloth-bnb-4bit keep some in 16 bits")
    warnings = short_batches(asked, recipe, version)
    if job.plan.precision is Precision.AMP_FP16 and version >= IN_FP32_SINCE.get(job.model.family, (9999,)):
        warnings += (
            f"Unsloth runs {job.model.family} in fp32 around fp16 products, because fp16 overflows; that is not "
            "modelled, and takes more",
        )
    return (replace(one_role(asked, phases, *notes), warnings=warnings),)


def _tables(job: Job) -> tuple[Weight, ...]:
    """Cosines and sines of every layer, where it has its own."""
    model = job.model
    if transformers_of(job) >= SHARES_TABLES_SINCE or model.family not in TABLES:
        return ()
    most, width = TABLES[model.family]
    widest = max(getattr(layer.mixer, "head_dim", 0) for layer in model.main.layers)
    shape = (max(min(most, model.context or most), job.workload.seq_len), widest)
    return tuple(
        Weight("rotary", name, shape, len(model.main.layers), width, learns=False, source="unsloth models/llama.py")
        for name in ("cos_cached", "sin_cached")
    )


def _offloaded(job: Job, recipe: Recipe) -> Offloaded | None:
    """`use_gradient_checkpointing="unsloth"`, which is the default, and plain checkpoints of short sequences."""
    asked = job.engine_options.get("offload_checkpoints", recipe.sizes.seq_len >= SHORTEST_OFFLOADED)
    if not (recipe.recompute and asked):
        return None
    buffers = 2 if (job.engine_version or NEWEST) >= DOUBLE_BUFFERS_SINCE else 1
    return Offloaded(recipe.model.main.name, recipe.sizes.residual_bytes, buffers)


def transformers_of(job: Job) -> Version:
    """The release of transformers that comes with the job's Unsloth."""
    version = job.engine_version or NEWEST
    return next(release for since, release in TRANSFORMERS if version >= since)


def _packing(job: Job, recipe: Recipe) -> Recipe:
    """The recipe with the experts of a 4-bit base packed where this release of Unsloth packs them [Zoo]."""
    if not recipe.sizes.left_whole:
        return recipe
    left = left_whole(job.model.family, transformers_of(job))
    stacked = "moe.experts." in left and job.model.family != "gpt_oss"
    packs = (job.engine_version or NEWEST) >= PACKS_EXPERTS_SINCE or not stacked
    if job.plan.peft is not None and job.plan.peft.base in FOUR_BITS and packs:
        left = tuple(path for path in left if path != "moe.experts.")
        return recipe._replace(sizes=recipe.sizes._replace(left_whole=left, stacked=stacked))
    return recipe._replace(sizes=recipe.sizes._replace(left_whole=left))
