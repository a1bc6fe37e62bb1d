"""What training tools do unasked that a plan cannot leave open: "none" of a plan is an answer, not a silence.

What a plan can leave open (the loss, kernels, who shards) the engines settle themselves.

[TRL] huggingface/trl trl/trainer/base_config.py `_BaseConfig`, trl/trainer/{sft,dpo,grpo,reward}_config.py before 0.29
[unsloth] unsloth/models/{loader,llama,vision}.py `from_pretrained`, `get_peft_model`: use_gradient_checkpointing is
True or "unsloth" in every release since 2023-12
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from msgspec.structs import replace

from vramcast.domain.job import Job, Recompute
from vramcast.domain.model import Head
from vramcast.engines.eager.releases import sharder
from vramcast.engines.eager.trl import (
    RECOMPUTES_SINCE,
    chunks_loss,
    is_trl,
    narrows_adapters,
    trl_version,
)


def with_unasked(job: Job, named: Container[str]) -> Job:
    """The job with what its tool does where the question does not say otherwise, and a sentence for each.

    Args:
        job: the question
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
