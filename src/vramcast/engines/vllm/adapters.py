"""Slots for adapters that only vLLM takes: of embeddings, heads and routed experts, and rows for added tokens.

[embedding] vllm-project/vllm vllm/lora/layers/vocal_parallel_embedding.py, logits_processor.py `create_lora_weights`,
for the networks whose class lists them as `embedding_modules`
[experts] vllm/lora/layers/fused_moe.py `FusedMoEWithLoRA`
[extra] vllm/config/lora.py `lora_extra_vocab_size`, to 0.11: rows of embedding and head for tokens an adapter adds
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.model import MoE
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.settings import Settings
from vramcast.units import ceil_div

EMBEDDINGS_ADAPTED: Final = frozenset(
    ("llama", "mistral", "mixtral", "granite", "cohere", "cohere2", "minicpm", "jamba", "nemotron_h", "phimoe")
)
"""Families whose classes list embedding and head [embedding]."""

EMBEDDINGS_ADAPTED_LATER: Final = frozenset(("qwen3", "qwen3_moe"))
EMBEDDINGS_ADAPTED_LATER_SINCE: Final[Version] = (0, 19)

EXPERTS_SINCE: Final[Version] = (0, 12)
EXTRA_TOKENS: Final = 256
EXTRA_TOKENS_UNTIL: Final[Version] = (0, 12)

WIDTH: Final = 2
"""Bytes of an adapter's element."""


def more_slots(job: ServeJob, settings: Settings, stage: Stage) -> Iterator[tuple[Tensor, int]]:
    """Adapter memory beside the slots of dense projections, with how many equal tensors there are."""
    if not job.plan.lora_slots:
        return
    rank, h, vocab = job.plan.lora_rank, job.model.hidden, job.model.vocab
    extra = EXTRA_TOKENS if settings.version < EXTRA_TOKENS_UNTIL else 0
    if _adapts_embeddings(job.model.family, settings.version):
        per_table = rank * (vocab + extra + h) + extra * h
        if stage.first:
            yield _slot(job, "embedding", per_table, f"rank {rank} x ({vocab + extra:,} + {h:,})"), 1
        if stage.last:
            yield _slot(job, "head", per_table, f"rank {rank} x ({vocab + extra:,} + {h:,})"), 1
    if settings.version >= EXPERTS_SINCE:
        yield from _experts(job, stage)


def _adapts_embeddings(family: str, version: Version) -> bool:
    later = family in EMBEDDINGS_ADAPTED_LATER and version >= EMBEDDINGS_ADAPTED_LATER_SINCE
    return family in EMBEDDINGS_ADAPTED or later


def _experts(job: ServeJob, stage: Stage) -> Iterator[tuple[Tensor, int]]:
    plan, rank = job.plan, job.plan.lora_rank
    for run in stage.runs(job.model):
        moe = run.layer.channel
        if not isinstance(moe, MoE):
            continue
        local = ceil_div(moe.num_experts, plan.tp * plan.dp if plan.expert_parallel else 1)
        inner = ceil_div(moe.expert.width, 1 if plan.expert_parallel else plan.tp)
        h, matrices = moe.latent_width or job.model.hidden, 3 if moe.expert.gated else 2
        formula = f"{local} experts x rank {rank} x {matrices} x ({h:,} + {inner:,})"
        yield _slot(job, "moe.experts", local * rank * matrices * (h + inner), formula), run.count


def _slot(job: ServeJob, name: str, elements: int, formula: str) -> Tensor:
    slots = job.plan.lora_slots
    return Tensor(
        name=name, num_bytes=slots * elements * WIDTH, category=Category.ADAPTERS, owner="slots",
        formula=f"{slots} slots x {formula} x {WIDTH} B", source="vllm-project/vllm vllm/lora/layers/",
    )
