"""What eager engines refuse of a job, and which attention and towers it has."""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import AttentionKernel, Job, Loss, Plan, Precision, Recompute, Shards, share
from vramcast.domain.model import MLP, Attention, Head, MultiLatentAttention
from vramcast.engines.eager.releases import sharder, transformers_version
from vramcast.engines.training import engine_of
from vramcast.engines.transformers.versions import FLASH_NEEDS, attention_kernels, family_of
from vramcast.errors import Note, Unsupported, joined

SAVES_ON_HOST: Final = {"pytorch": 0, "huggingface": 5, "deepspeed": 5, "torchtune": 5}
"""Engines beside which saved tensors wait on the host -> how many copies are under way: `save_on_cpu` of
torch.autograd.graph waits for each, torchtune's and TRL's for the fifth [torchtune training/_activation_offloading.py
`max_fwd_stash_size`, trl models/activation_offloading.py]."""

OWN_ATTENTION: Final = ("unsloth",)
"""Those with kernels of their own where transformers runs attention in full unasked [unsloth_zoo flex_attention]."""

FMS: Final = "fms"
"""`experts`: ScatterMoE's kernels as fms-acceleration runs them, which keeps every rank's experts out of FSDP
[fms-acceleration plugins/accelerated-moe framework_plugin_scattermoe.py]."""
SCATTERED: Final = ("granitemoe", "granitemoeshared", "granitemoehybrid", "mixtral")
"""`restricted_model_archs`."""


def attention_of(job: Job) -> AttentionKernel:
    """The kernel that a job's attention runs: asked for, or its engine's own.

    Raises: Unsupported for a kernel that the family's code in transformers cannot call
    """
    asked, family = job.plan.attention, job.model.family
    if not engine_of(job).runs_transformers:
        return asked or AttentionKernel.FLASH
    kernels = attention_kernels(family, transformers_version(job))
    if asked is None:
        flex = job.engine in OWN_ATTENTION and AttentionKernel.FLASH in kernels
        return AttentionKernel.FLASH if flex else kernels[0]
    if asked not in kernels:
        names = joined(" or ", sorted(kernels))
        raise Unsupported("attention={} is none that transformers has for {}; use {}", asked, family, names)
    needed, sm = FLASH_NEEDS.get(family_of(family), 0), job.cluster.gpu.sm or 0
    if asked is AttentionKernel.FLASH and sm < needed:
        raise Unsupported(
            "attention=flash of {} needs compute capability {}, which {} has not; use eager",
            family, needed / 10, job.cluster.gpu.name
        )
    return asked


def attention_sentences(job: Job) -> tuple[str, ...]:
    """What somebody should know who expects fused attention, and gets what transformers runs unasked."""
    family = job.model.family
    if job.plan.attention is not None or attention_of(job) is not AttentionKernel.EAGER:
        return ()
    if AttentionKernel.FLASH in attention_kernels(family, transformers_version(job)):
        return (Note(
            "attention runs in full, as transformers runs {} unasked; --attention flash for fused kernels", family
        ),)
    return (Note("attention runs in full: transformers has no fused kernel for {}", family),)


def text_only(job: Job) -> bool:
    """Whether a vision tower is left out: samples have no image, or one of no known size."""
    towers = job.model.stacks[:-1]
    return not job.workload.images or any(
        stack.vision is not None and not (stack.vision.positions or stack.positions or job.workload.image_size)
        for stack in towers
    )


def text_sentences(job: Job) -> tuple[str, ...]:
    """What is said where a vision tower is left out."""
    if not text_only(job):
        return ()
    return ("batches of text only: the vision tower needs --image-size" if job.workload.images
            else "batches of text only: the vision tower reads none, as --images 0 says",)


def refuse_splits(job: Job) -> None:
    """Eager engines split over data-parallel ranks only.

    Raises: Unsupported with the engine that would work
    """
    plan = job.plan
    if plan.cp > 1 and job.engine in ("pytorch", "huggingface"):
        _refuse_context(job)
    if plan.tp > 1 and job.engine == "pytorch":
        _refuse_tensor(job)
    able = {"pytorch": ("tp", "pp", "cp"), "huggingface": ("pp", "cp")}.get(job.engine, ())
    if job.engine_options.get("experts") == FMS:
        _refuse_experts_apart(job)
        able += ("ep",)
    for name in ("tp", "pp", "cp", "ep"):
        if getattr(plan, name) > 1 and name not in able:
            other = "torchtitan" if plan.schedule == "gpipe" else "megatron"
            raise Unsupported(
                "{}={} is not modelled for --engine {}; use --engine {}, or {}=1",
                name, getattr(plan, name), job.engine, other, name
            )
    groups = plan.shard_group is not None and plan.shards is not Shards.EVERYTHING
    if plan.virtual_stages > 1 or groups:
        raise Unsupported(
            "virtual stages and shard groups are not modelled for --engine {}; use --engine megatron for the former, "
            "--engine torchtitan for the latter", job.engine
        )
    if plan.precision is Precision.FP8:
        raise Unsupported("fp8 is not modelled for --engine {}; use --engine megatron or --precision bf16", job.engine)
    if plan.recompute is Recompute.SELECTIVE:
        raise Unsupported(
            "selective recomputation is not modelled for --engine {}; use --recompute full, or --engine torchtitan or "
            "megatron", job.engine
        )
    if plan.offload_activations and job.engine not in SAVES_ON_HOST:
        raise Unsupported("activation offload is not modelled for --engine {}; use --recompute full", job.engine)
    if not job.model.stacks or not job.model.main.runs:
        raise Unsupported("{} has no transformer layers to build; trace it instead", job.model.name)


def _refuse_experts_apart(job: Job) -> None:
    """What fms-acceleration does not do, and what it does that is not modelled.

    Raises: Unsupported
    """
    if job.model.family not in SCATTERED:
        raise Unsupported(
            "fms-acceleration's ScatterMoE knows {}, not {}; leave experts=fms out", ", ".join(SCATTERED),
            job.model.family
        )
    beside = {"--peft": job.plan.peft is not None, "--offload-parameters": job.plan.offload_parameters != "none",
              f"--objective {job.workload.objective}": job.workload.objective not in ("pretrain", "sft")}
    for name, given in beside.items():
        if given:
            raise Unsupported(
                "{} beside fms-acceleration's ScatterMoE is not modelled; leave it or experts=fms out", name
            )
    if job.cluster.count > 1 and sharder(job) != "fsdp1":
        raise Unsupported("fms-acceleration's ScatterMoE over several cards is modelled beside FSDP1; add --shards "
                          "everything --sharded-by fsdp1")


def _refuse_context(job: Job) -> None:
    """Context parallelism divides the positions of text between fused kernels: PyTorch's beside FSDP2, of trainers
    whoever shards the weights, where towers run whole on all ranks."""
    if attention_of(job) is AttentionKernel.EAGER:
        raise Unsupported("--cp divides attention of fused kernels; use --attention flash, or --cp 1")
    if job.engine == "pytorch" and len(job.model.stacks) > 1 and not text_only(job):
        raise Unsupported("--cp is modelled for text alone; use --images 0, or --cp 1")
    if job.engine == "pytorch" and job.plan.shards is not Shards.EVERYTHING:
        raise Unsupported("--cp is modelled with FSDP2, which divides weights over its ranks; add --shards everything")
    if any(not isinstance(layer.mixer, (Attention, MultiLatentAttention)) for layer in job.model.main.layers):
        raise Unsupported("--cp is modelled for attention alone, not for recurrent layers; use --cp 1")


def _refuse_tensor(job: Job) -> None:
    """Tensor parallelism of PyTorch's plans divides heads, widths and words of a decoder, beside FSDP2.

    Source: NVIDIA-NeMo/Automodel at 36044ad3 nemo_automodel/components/distributed/optimized_tp_plans.py
    `_parallelize_llama`, `_parallelize_qwen`: columns of queries, keys, values, gate and up, rows of what follows,
    rows of the table, columns of the head; norms and the stream whole on every rank
    """
    plan, model = job.plan, job.model
    if len(model.stacks) > 1 or model.head is not Head.LM or any(
            not isinstance(layer.mixer, Attention) or not isinstance(layer.channel, MLP) or layer.cross_attention
            for layer in model.main.layers):
        raise Unsupported("--tp of --engine pytorch is modelled for dense decoders; use --engine torchtitan, or --tp 1")
    if plan.shards is not Shards.EVERYTHING or plan.cp > 1:
        raise Unsupported("--tp of --engine pytorch is modelled with FSDP2 and without --cp; add --shards everything, "
                          "or use --engine megatron")
    if plan.loss not in (None, Loss.EAGER) or plan.compile or model.logits_softcap:
        raise Unsupported("--tp of --engine pytorch is modelled with a plain loss of all logits; use --loss eager")
    if plan.peft is not None and (plan.peft.method != "lora" or plan.peft.base != "full"):
        raise Unsupported("--tp of --engine pytorch is modelled beside LoRA over whole weights; use --peft lora")
    for layer in model.main.layers:
        assert isinstance(layer.mixer, Attention)
        share("tp", layer.mixer.num_kv_heads, plan.tp, what="num_kv_heads")


def refuse_unsharded(job: Job) -> None:
    """Raises: Unsupported for a choice that only a run with sharded weights has."""
    if not job.plan.reshard_after_forward:
        raise Unsupported("reshard-after-forward=False is not modelled for engine {}; leave it out", job.engine)


def refuse_shards(job: Job, plan: Plan) -> None:
    """Raises: Unsupported when the plan shards and the engine does not."""
    if plan.shards is not Shards.NOTHING and job.data_parallel > 1:
        raise Unsupported(
            "shards={} is not modelled for --engine {}; use --engine deepspeed, or --engine torchtitan for FSDP2",
            plan.shards, job.engine
        )
