"""What a Megatron-Core job may say beyond model, workload and plan.

Defaults are those of `megatron/training/arguments.py`; names follow its arguments.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Shards
from vramcast.domain.model import Noun
from vramcast.engines.megatron.recompute import check_modules
from vramcast.errors import InvalidSpec, Unsupported

Count = Annotated[int, Meta(ge=0, le=1 << 20)]


class Options(Noun, frozen=True):
    """`engine_options` of engine `megatron`."""

    transformer_impl: Literal["transformer_engine", "local"] = "transformer_engine"
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] = "auto"
    deterministic: bool = False
    gradient_accumulation_fusion: bool = True
    bias_gelu_fusion: bool = True
    bias_dropout_fusion: bool = True
    rope_fusion: bool = True
    masked_softmax_fusion: bool = True
    cross_entropy: Literal["unfused", "native", "te"] = "unfused"
    attention_mask: bool = True  # the data loader builds a mask
    vocab_divisor: Annotated[int, Meta(ge=1, le=1 << 20)] = 128
    stage_layers: str = ""  # layers of every (virtual) stage, "3-4-4-3"
    interleave_group: Count = 0  # microbatch-group-size-per-virtual-pipeline-stage; 0: pp
    overlap_p2p_warmup_flush: bool = False
    accumulate_in_fp32: bool | None = None  # None: with bf16
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    optimizer_instances: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    fsdp: bool = False
    fp8_param_gather: bool = False
    fp8_recipe: Literal["", "delayed", "tensorwise", "mxfp8", "blockwise"] = ""
    fp8_transpose_cache: bool = True  # fp8 weights keep their transpose (Hopper), a second byte an element
    tp_comm_overlap: bool = False
    dispatcher: Literal["allgather", "alltoall", "flex"] = "alltoall"
    grouped_gemm: bool = True
    permute_fusion: bool = True
    capacity_factor: Annotated[float, Meta(gt=0, le=1000)] | None = None
    router_fp32: bool = False
    sinkhorn: bool = False
    shared_expert_overlap: bool = False
    recompute_method: Literal["uniform", "block"] = "block"
    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    torch: str = "2.13"  # PyTorch release
    precision_aware: bool = False  # use-precision-aware-optimizer: moments and remainders in fewer bits
    moments: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"  # exp-avg-dtype and exp-avg-sq-dtype
    te: str = ""  # TransformerEngine's release
    clip_grad: bool = True
    count_zeros: bool = False
    cuda_graphs: bool = False
    overlap_moe_comm: bool = False
    binary_head: bool = True  # BERT's sentence-order head
    defer_embedding_wgrad: Count = 0  # micro-batches whose embedding weight gradient is deferred
    cp_a2a: bool = False


def release(text: str, *, name: str = "torch") -> tuple[int, int]:
    """Major and minor number of a release.

    >>> release("2.10.0a0")
    (2, 10)
    """
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal() and len(text) < 40):
        raise InvalidSpec(f"{name}={text[:40]!r} must be a release such as 2.13")
    return int(major), int(minor)


READS_BF16_MOMENTS: Final = (2, 14)
"""First TransformerEngine whose FusedAdam steps bf16 moments as they are [fused_adam.py `fuse_unscale`]."""


def copies_moments(options: Options) -> bool:
    """Whether FusedAdam copies moments to fp32 to step them.

    Where no TransformerEngine is named it does: runs of August 2026 in containers still showed the copies.

    Raises: InvalidSpec for a release of TransformerEngine that is none
    """
    if options.moments != "bf16" or not options.te:
        return options.moments != "fp32"
    return release(options.te, name="te") < READS_BF16_MOMENTS


def options_of(job: Job) -> Options:
    """The options of a job, with what its plan says put in."""
    plan = job.plan
    given = dict(job.engine_options)
    if plan.loss is not None and "cross_entropy" not in given:
        given["cross_entropy"] = _cross_entropy(plan.loss)
    if plan.cp_kind == "ulysses":
        given.setdefault("cp_a2a", True)
    if plan.attention is AttentionKernel.EAGER:
        given.setdefault("attention_backend", "unfused")
    if job.engine_options.get("optimizer") is None:
        given["optimizer"] = _optimizer(plan.optimizer)
    try:
        options = msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise InvalidSpec(f"engine option of megatron: {error}") from error
    _check(job, options)
    return options


def _cross_entropy(loss: Loss) -> str:
    match loss:
        case Loss.EAGER:
            return "unfused"
        case Loss.FUSED | Loss.COMPILED:
            return "te"
        case _:
            raise Unsupported(f"loss={loss} is not modelled for megatron; use eager or fused")


def _optimizer(name: str) -> str:
    known = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "muon": "muon"}
    if name not in known:
        raise Unsupported(f"optimizer={name} is not modelled for megatron; use adamw, sgd or muon")
    return known[name]


def _check(job: Job, options: Options) -> None:
    plan = job.plan
    check_modules(job, options)
    if options.te:
        release(options.te, name="te")
    if options.moments != "fp32" and not options.precision_aware:
        raise InvalidSpec(f"moments={options.moments} needs precision_aware=true")
    if plan.precision not in (Precision.MIXED_BF16, Precision.MIXED_FP16, Precision.FP32, Precision.FP8):
        raise Unsupported(
            f"precision={plan.precision} is not modelled for megatron; use mixed-bf16, mixed-fp16, fp8 or fp32"
        )
    if plan.peft is not None:
        raise Unsupported("PEFT is not modelled for megatron; use engine huggingface or unsloth")
    if plan.offload_parameters != "none":
        raise Unsupported("megatron keeps its weights on the GPU; use engine deepspeed to offload parameters")
    if plan.offload_optimizer != "none" and plan.shards is Shards.NOTHING:
        raise InvalidSpec(  # training/arguments.py asks for the precision-aware optimizer, which is a distributed one
            "megatron offloads a distributed optimizer only; add --shards optimizer"
        )
    if plan.precision is Precision.FP8 and {"layernorm", "mla_up_proj"} <= set(plan.recompute_modules):
        raise Unsupported("recomputing layernorm and mla_up_proj together is not modelled with fp8; leave one out")
    if plan.offload_activations:
        raise Unsupported("activation offload is not modelled for megatron; use --recompute full")
    if options.cuda_graphs:
        raise Unsupported("the private pools of CUDA graphs are not modelled for megatron; leave cuda_graphs out")
    if plan.compile:
        raise Unsupported("megatron is not compiled as a whole; leave compile out")
    if plan.schedule not in ("1f1b", "interleaved"):
        raise Unsupported(f"schedule={plan.schedule} is not part of megatron; use 1f1b or interleaved")
    if plan.shards is Shards.OPTIMIZER_AND_GRADIENTS and not options.fsdp:
        raise Unsupported("megatron shards optimizer states (optimizer) or everything (its FSDP); use one of these")
    if job.workload.objective not in ("pretrain", "sft"):
        raise Unsupported(f"objective={job.workload.objective} is not modelled for megatron; use pretrain or sft")
