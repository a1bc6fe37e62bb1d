"""What training engines are told by `--engine-option`: names, and what they may be."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from vramcast import engines
from vramcast.domain.job import Job
from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec, Note, UnknownName

Release = Annotated[str, Meta(pattern=r"^(\d{1,4}(\.\d{1,4}){1,3})?$")]
Major = Annotated[int, Meta(ge=0, le=1000)]
Date = Annotated[str, Meta(pattern=r"^(\d{4}-\d{2}(-\d{2})?)?$")]
Elements = Annotated[int, Meta(ge=1, le=1 << 62)]
Size = Annotated[int, Meta(ge=0, le=1 << 62)]
Automatic = Literal["auto"]


class Eager(Noun, frozen=True):
    """Engines that run PyTorch's operators one by one."""

    reentrant: bool = False  # checkpoints of the older kind
    padded: bool = False  # batches with an attention mask
    shifted_loss: bool = False  # model code that shifts its logits
    second_loss: bool = False  # of returned logits, beside one of the model code that nobody uses
    eval_batch: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # samples of an evaluation's forward; 0: as a step's
    gradient_as_bucket_view: bool = False  # DDP's buckets are the gradients
    beta: Annotated[float, Meta(ge=0, le=1000)] = 0.0  # weight of GRPO's KL term; without it there is no reference
    steps_per_generation: Annotated[int, Meta(ge=0, le=1 << 20)] = 1  # GRPO: micro-batches made at once; 0: by a server


class Unsloth(Eager, frozen=True):
    """Unsloth."""

    offload_checkpoints: bool = True  # inputs of recomputed layers wait on the host


class PyTorch(Eager, frozen=True):
    """A plain loop."""

    model_loss: bool = False  # transformers' model code computes the loss
    backward_prefetch: Literal["pre", "none"] = "pre"  # of FSDP1
    defers_sync: bool = True  # FSDP: gradients of micro-batches before the last add up unsharded
    reduce_dtype: Literal["param", "float32"] = "param"  # FSDP2: of gradients while they are reduced or add up
    frozen_towers: Literal["layers", "root"] = "layers"  # FSDP2: units of towers of which nothing learns
    float8_all_gather: bool = False  # FSDP2: torchao's linear layers
    liger: bool | str = False  # Liger's kernels: all, or those named, rope+rms_norm


class Zero(Eager, frozen=True):
    """DeepSpeed's `zero_optimization`, sizes in elements."""

    # of preferences: TRL's and ms-swift's, ORPO's and CPO's, LLaMA-Factory's, DeepSpeed-Chat's
    log_probs: Literal["samples", "rows", "rows+nll", "whole", "outputs"] = "samples"
    reduce_bucket_size: Elements | Automatic = 1
    stage3_prefetch_bucket_size: Size | Automatic = 0
    stage3_param_persistence_threshold: Size | Automatic = 0
    sub_group_size: Size | Automatic = 1
    stage3_max_reuse_distance: Size | Automatic = 0
    overlap_comm: bool = True
    auto: bool = False  # the Trainer's sizes from the width of the model
    grad_accum_dtype: Literal["fp32", "fp16", "bf16"] = "bf16"
    zero: bool = True  # false: stage 0 on one GPU
    torch_autocast: bool = False  # over weights of 16 bits
    torch_adam: bool = False  # PyTorch's own step instead of DeepSpeed's
    rest_learns: bool = False  # all that adapters do not stand beside


class HuggingFace(Zero, frozen=True):
    """The Trainer, with or without DeepSpeed."""

    deepspeed: bool = False
    torch: Release | Major = ""  # 2.8
    accelerate: Release | Major = ""  # 1.10
    liger: bool | str = False  # Liger's kernels: all, or those named, rope+rms_norm
    cut_cross_entropy: bool = False  # Apple's loss over hidden states, beside --loss fused_linear
    autocast: bool = False  # bf16 or fp16 of the Trainer over weights of 16 bits
    backward_prefetch: Literal["pre", "none"] = "pre"  # of FSDP1
    defers_sync: bool = True  # FSDP: gradients of micro-batches before the last add up unsharded
    trl: Release | Major = ""  # 0.24
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"  # that a frozen network is loaded in
    prepare_kbit: Literal["trl", "peft", "norms", "none"] = "trl"  # who prepares a packed base for training
    quant_storage: Literal["float", "uint8"] = "float"  # type that numbers of a packed base are kept as
    loads_on_host: bool = False  # a packed base that FSDP shards, whatever transformers does
    pack_experts: bool = False  # stacked experts of a packed base, too, as axolotl's quantize_moe_experts
    linear_experts: bool = False  # every expert is three linear layers, as axolotl's llama4_linearized_experts
    experts_without_dropout: bool = False  # adapters of stacked ones leave it out, where PEFT stops
    precompute_ref_log_probs: bool = False  # the reference of DPO or KTO is asked before the run
    generation_batch_size: Elements = 1  # instead: answers that all processes write together
    converts_outputs: bool = True  # Accelerate makes what forward returns fp32
    experts: Literal["transformers", "scattermoe", "fms"] = "transformers"  # whose products of routed experts
    value_head: bool = False  # of TRL beside the language head, for rewards
    gptq_kernel: Literal["cuda_old", "tritonv2"] = "cuda_old"  # AutoGPTQ's QuantLinear


class Colossal(Eager, frozen=True):
    """ColossalChat."""

    trainer: str = "sft"


class Torchtitan(Noun, frozen=True):
    """torchtitan."""

    version: Date = ""  # of the checkout, 2025-02-06
    trainer: Literal["eager", "graph"] = "eager"
    reshard: Literal["default", "always", "last", "blocks", "never"] = "default"
    float8: bool = False
    float8_all_gather: bool = False
    pipeline_microbatch_size: Elements = 1
    defers_sync: bool = False  # gradients of micro-batches before the last add up unsharded
    whole_experts: bool = False  # experts that no two ranks share stand outside FSDP
    kernel: Literal["fused", "foreach", "loop"] = "fused"  # of the optimizer
    frozen_towers: Literal["layers", "root"] = "layers"  # who holds towers of which nothing learns, beside experts
    scaled_rank: bool = False  # adapters of experts have the rank divided by the experts that a token meets
    expandable: bool = True  # the allocator's segments, as its own script sets them
    ends_count: bool = True  # embedding and head as a layer each, where layers are divided over stages
    keeps_outputs: bool = False  # the last stage keeps the logits of all micro-batches
    keeps_router: bool = False  # of a layer that is recomputed whole: what its router chose
    cuda_graphs: bool = False  # forward and backward are replayed: gradients stay between steps


class Torchtune(Eager, frozen=True):
    """torchtune."""

    split_root: bool = False  # embedding and head are gathered apart: custom_sharded_layers names both
    optimizer_in_backward: bool = False  # every weight is stepped as soon as its gradient is there


class Litgpt(Noun, frozen=True):
    """litgpt."""

    version: Date = ""  # of the checkout
    adapter_version: Literal[1, 2] = 1
    tie_embeddings: bool = False


OPTIONS: Final[dict[str, type[Noun]]] = {
    "pytorch": PyTorch, "huggingface": HuggingFace, "unsloth": Unsloth, "deepspeed": Zero, "colossalai": Colossal,
    "torchtitan": Torchtitan, "torchtune": Torchtune, "litgpt": Litgpt,
}
"""Engine -> its options, none where it does not stand here; the defaults are not read, the engines have their own."""


def options_of(engine: str) -> type[Noun]:
    """What an engine can be told; Megatron's module is read only where it is asked."""
    return engines.megatron.options.Options if engine == "megatron" else OPTIONS.get(engine, Noun)


def check_options(job: Job) -> None:
    """Raise UnknownName for a name that the job's engine does not have, InvalidSpec for a value it cannot be."""
    if not job.engine_options:
        return
    known = options_of(job.engine)
    for name in job.engine_options:
        if not known.__struct_fields__:
            raise InvalidSpec("{} has no engine options; leave {} out", job.engine, name[:80])
        if name not in known.__struct_fields__:
            raise UnknownName.of(Note("engine option of {}", job.engine), name, known.__struct_fields__)
    try:
        msgspec.convert(job.engine_options, known, strict=False)  # 0.04 is a version to some, a number to others
    except msgspec.ValidationError as error:
        raise InvalidSpec("engine option of {}: {}", job.engine, error) from error
