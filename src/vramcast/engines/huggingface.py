"""Hugging Face Trainer over Accelerate: autocast, converted outputs, DDP; DeepSpeed where the plan shards.

[HF] transformers trainer.py: gradient checkpointing per layer, `zero_grad(set_to_none)`, foreach AdamW
[Accelerate] accelerator.py `prepare_model`: forward runs under autocast and `convert_outputs_to_fp32`, so the logits
exist once more in fp32 while the loss is computed.
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import Job, Loss, Precision, Shards
from vramcast.domain.rank import RankProgram
from vramcast.engines import deepspeed
from vramcast.engines.eager.models import all_phases
from vramcast.engines.eager.question import packing_sentences, recipe_of, stepping_of
from vramcast.engines.eager.trl import prepared
from vramcast.engines.pytorch import one_role
from vramcast.errors import Unsupported

AUTOCAST: Final = (Precision.AMP_BF16, Precision.AMP_FP16)


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    `engine_options`: "reentrant" checkpoints (bool, the default before transformers 5), "padded" batches (bool),
    "shifted_loss" for model code that shifts its logits (bool), "deepspeed" (bool), "trl" (its release), "prepare_kbit"
    ("trl", "peft", "none") for packed bases, "beta" (float) for GRPO.

    Raises: Unsupported for model parallelism and what DeepSpeed is not asked for
    """
    if job.engine_options.get("deepspeed") or (job.plan.shards is not Shards.NOTHING and job.data_parallel > 1):
        if job.plan.sharded_by in ("fsdp1", "fsdp2"):
            raise Unsupported(f"sharded-by={job.plan.sharded_by} is not modelled for engine huggingface; leave it out")
        return deepspeed.ranks(job)
    autocast = job.plan.precision in AUTOCAST
    loss = None
    if job.engine_options.get("shifted_loss") and job.plan.loss in (None, Loss.EAGER):
        loss = "shifted_autocast" if autocast else "shifted"
    recipe = recipe_of(job, loss=loss, outputs_fp32=autocast, autocast=autocast)
    recipe, said = prepared(recipe, job)
    assumptions = [*packing_sentences(job), *said]
    if job.plan.peft is not None and autocast:
        assumptions.append("the frozen weights are loaded in 16 bits, adapters are fp32 under autocast")
    return (one_role(job, all_phases(job, recipe, stepping_of(job)), *assumptions),)
