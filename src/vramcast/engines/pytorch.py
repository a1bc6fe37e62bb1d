"""A plain PyTorch training loop, alone, under DistributedDataParallel, or under FSDP.

Under DDP every rank keeps weights, gradients and optimizer states whole. torch.autocast where the precision says amp.
The loss takes logits in their own type, as `F.cross_entropy(logits, targets)` does; autocast makes it fp32.
[FSDP] MixedPrecision(param_dtype=...) of FSDP1, MixedPrecisionPolicy of FSDP2 where the precision says mixed: fp32
weights, gathered and computed in 16 bits, gradients reduced in 16 bits
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.domain.job import ANSWERS, Job, Phase, Precision, RankProgram, Shards
from vramcast.domain.model import Head
from vramcast.domain.program import Program
from vramcast.engines.eager.checks import FMS, attention_sentences, refuse_shards, refuse_unsharded, text_sentences
from vramcast.engines.eager.fsdp import sharded_phases
from vramcast.engines.eager.in_turn import staged
from vramcast.engines.eager.phases import all_phases
from vramcast.engines.eager.preference import Rated, compares
from vramcast.engines.eager.question import loss_of, packing_sentences, recipe_of, sharded_stepping_of, stepping_of
from vramcast.engines.eager.recipe import Recipe, Sharding
from vramcast.engines.eager.releases import CausalLoss, causal_loss, sharder, with_its_kernels
from vramcast.engines.eager.trl import reference_sentences
from vramcast.engines.training import Sharder
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.quantised import QUANTISED

MIXED: Final = (Precision.MIXED_BF16, Precision.MIXED_FP16)
FULL: Final = (Precision.FP64, Precision.FP32, Precision.TF32)
FP32: Final = 4
HALF: Final = 2
OWN_TYPE: Final = (
    "the loss takes logits in their own 16 bits; where transformers' model code computes it, it makes them fp32: "
    "--engine-option model_loss=true"
)


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    `engine_options`: "reentrant" checkpoints, "padded" batches, "shifted_loss" for model code that shifts its logits,
    "model_loss" computed by transformers' model code (bool), "gradient_as_bucket_view" (bool), "backward_prefetch"
    ("pre", "none"), "defers_sync" (bool), "reduce_dtype" of FSDP2 ("float32"), "frozen_towers" of FSDP2 ("root"),
    "float8_all_gather" (bool), "second_loss" (bool), "liger" (bool, or kernels).

    Raises: Unsupported for model parallelism, partial sharding and offload, with the engine that would work
    """
    mixed, who = job.plan.precision in MIXED, sharder(job)
    autocast = job.plan.precision in (Precision.AMP_BF16, Precision.AMP_FP16)
    models = job.engine_options.get("model_loss", False) or job.engine_options.get("shifted_loss", False)
    causal = causal_loss(job) if models else CausalLoss(returns_fp32=False, upcasts=False, copies=False)
    loss = loss_of(job, autocast=autocast, causal=causal)
    said = (*packing_sentences(job), *((OWN_TYPE,) if loss == "torch" and job.plan.precision not in FULL else ()))
    recipe = recipe_of(job, loss=loss, narrow=mixed)
    recipe = with_its_kernels(recipe, job)._replace(returns_fp32=causal.returns_fp32 and loss is not None)
    if models:
        recipe = with_its_output(recipe)
    if who in ("fsdp1", "fsdp2"):
        sharding = sharding_of(job, who)._replace(master=FP32, compute=HALF) if mixed else sharding_of(job, who)
        return (sharded_role(job, recipe, sharding, *said),)
    refuse_unsharded(job)
    refuse_shards(job, job.plan)
    if job.plan.pp > 1:
        return roles_in_turn(job, recipe, *said)
    return (one_role(job, all_phases(job, recipe, stepping_of(job)), *said),)


def roles_in_turn(job: Job, recipe: Recipe, *assumptions: str) -> tuple[RankProgram, ...]:
    """Cards of one process that have some layers each."""
    found = ((program, one_role(job, program.phases, said, *assumptions))
             for program, said in staged(job, recipe, stepping_of(job)))
    return tuple(replace(role, role=program.role, count=program.count) for program, role in found)


def with_its_output(recipe: Recipe) -> Recipe:
    """The fp32 logits that older model code returns beside its loss are a variable of the loop: they outlive backward.

    Narrow ones of newer code do too, but runs of PEFT's comparison, which hold them, are 3 % below the answer without.

    Source: AnswerDotAI/fsdp_qlora 4cd6923 train.py, which drops `output` after the step; huggingface/peft
    method_comparison/MetaMathQA/run.py
    """
    made = not recipe.loss.startswith(LINEAR) and recipe.model.head in (Head.LM, Head.MLM)
    return recipe._replace(kept_logits=FP32 if made and recipe.returns_fp32 else 0)


def sharding_of(job: Job, by: Sharder) -> Sharding:
    """How FSDP shards a job whose weights are stored as they compute.

    Raises: InvalidSpec or Unsupported for what FSDP cannot shard so
    """
    plan = job.plan
    if plan.shards is Shards.OPTIMIZER:
        raise InvalidSpec("{} cannot shard optimizer states alone; use --shards everything, or --engine deepspeed", by)
    if plan.offload_parameters == "nvme" or plan.offload_optimizer == "nvme":
        raise Unsupported("FSDP offloads to the host only; use --offload-parameters cpu, or --engine deepspeed")
    if plan.offload_optimizer != "none" and plan.offload_parameters == "none":
        raise Unsupported("FSDP offloads weights and optimizer together; add --offload-parameters cpu")
    if plan.peft is not None and plan.peft.base == "int8":
        raise Unsupported("FSDP cannot shard bitsandbytes' 8-bit weights; use --base-weights nf4, or --shards nothing")
    if job.workload.objective in ANSWERS and not compares(job):
        raise Unsupported(
            "{} is not modelled with FSDP for --engine {} and this loss; leave --shards out, or use --engine "
            "huggingface --objective dpo and no --loss", job.workload.objective, job.engine
        )
    return Sharding(
        "fsdp1" if by == "fsdp1" else "fsdp2",
        min(plan.shard_group or job.replicas, job.replicas),
        expert_ranks=1 if job.engine_options.get("experts") == FMS else None,
        reshard=plan.reshard_after_forward and plan.shards is Shards.EVERYTHING,
        prefetch=job.engine_options.get("backward_prefetch", "pre") == "pre",
        offload=plan.offload_parameters == "cpu",
        defers=job.engine_options.get("defers_sync", True) is True,
        reduced=FP32 if by == "fsdp2" and job.engine_options.get("reduce_dtype") == "float32" else None,
        frozen_in_root=by == "fsdp2" and job.engine_options.get("frozen_towers") == "root",
        float8=_gathers_in_8_bits(job, by),
    )


def _gathers_in_8_bits(job: Job, by: Sharder) -> bool:
    """torchao's linear layers, whose weights are cast before they are gathered; inductor casts what they read.

    Source: pytorch/ao torchao/float8/fsdp_utils.py `WeightWithDynamicFloat8CastTensor`

    Raises: Unsupported without FSDP2 and torch.compile
    """
    asked = job.engine_options.get("float8_all_gather", False) is True
    if asked and (by != "fsdp2" or not job.plan.compile):
        raise Unsupported("float8_all_gather is modelled for FSDP2 with --compile; add both")
    return asked


def sharded_role(
    job: Job, recipe: Recipe, sharding: Sharding, *assumptions: str, compared: Rated | None = None
) -> RankProgram:
    """All ranks do the same, each with its share."""
    said = [*assumptions, UNITS[sharding.by]]
    if sharding.by == "fsdp1" and sharding.ranks == 1:
        said.append("FSDP1 over one GPU shards nothing, whatever was asked: PyTorch makes it NO_SHARD")
    if recipe.sizes.adapter is not None and sharding.by == "fsdp1":
        said.append("every adapter is a unit of its own, as PEFT's fsdp_auto_wrap_policy wraps them")
    constants = recipe.sizes.packs("") and not QUANTISED[recipe.sizes.stored].shards_constants
    if job.plan.peft is not None and constants and not recipe.packed_whole:
        said.append("packed weights are stored as 16-bit numbers, so that they can be sharded; block constants are not")
    if sharding.loads_whole:
        said.append("every rank loads all of the packed base before it is sharded, as transformers does since 5.0")
    if job.workload.grad_accum > 1 and sharding.defers:
        said.append("gradients of the micro-batches before the last add up unsharded (no_sync)")
    if sharding.by == "fsdp1" and sharding.expert_ranks is not None:
        said.append(Note("experts stand outside of FSDP, of {} ranks each has its own with their gradients and "
                         "states, as fms-acceleration keeps them", job.plan.ep) if job.plan.ep > 1 else
                    "experts stand outside of FSDP, whole on every rank, as fms-acceleration keeps them")
    if job.plan.tp > 1:
        said.append("tensor parallelism by PyTorch's plans: norms and hidden states are whole on every rank, and so "
                    "are the logits that the loss reads")
    if compared is not None:
        said.append(compared.said)
    if compared is not None and sharding.by == "fsdp2" and compared.own and compared.reference and compared.one_unit:
        said.append("TRL hands the reference to fully_shard as one unit: all of it is gathered while it answers")
    phases = sharded_phases(recipe, sharded_stepping_of(job), sharding, compared)
    found = one_role(job, phases, *said)
    kept = tuple(text for text in found.assumptions if not text.startswith("gradients of later micro-batches"))
    return RankProgram(role=found.role, count=found.count, phases=phases, assumptions=kept)


UNITS: Final = {
    "fsdp1": "FullyShardedDataParallel (FSDP1): a flat weight for every layer, one for all the rest",
    "fsdp2": "fully_shard (FSDP2): a unit for every layer",
}


def one_role(job: Job, phases: Mapping[Phase, Program], *assumptions: str) -> RankProgram:
    """All ranks do the same."""
    found = [*assumptions, *reference_sentences(job)]
    if job.plan.compile:
        found.append("torch.compile fuses norms, activations, rotary embedding and the loss; the rest as in eager mode")
    if job.workload.grad_accum > 1:
        found.append("gradients of later micro-batches are added to those of the first and freed")
    if job.plan.offload_activations:
        found.append("what layers save for backward waits on the host, and is taken back one layer at a time; towers "
                     "and head keep theirs on the card")
    found += attention_sentences(job)
    found += text_sentences(job)
    return RankProgram(role="all", count=job.cluster.count, phases=phases, assumptions=tuple(found))
