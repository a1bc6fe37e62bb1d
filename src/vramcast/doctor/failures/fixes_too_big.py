"""Fixes of jobs that need more than there is, by what fills the card."""

from __future__ import annotations

from typing import Final

from vramcast.doctor.failures.case import LLAMA, Case
from vramcast.doctor.failures.remedy import (
    Remedy,
    figure,
    fitting_length,
    is_server,
    is_torch,
    kv_half,
    kv_half_enough,
    kv_missing,
    may_infer,
    may_train,
    serving,
)
from vramcast.domain.failure import Cause
from vramcast.units import ceil_div

BIG: Final = (Cause.TOO_BIG,)
HIGHEST_FRACTION: Final = 0.97
"""A larger share of the card leaves nothing for graphs and libraries."""


def _length(case: Case) -> str:
    length = fitting_length(case)
    return f"--max-model-len {length}" if length else "--max-model-len N"


def _fraction(case: Case) -> float | None:
    """The share of the card at which one sequence would fit, to the hundredth above."""
    missing, total, now = kv_missing(case), case.figures.total, case.number("memory_fraction")
    if missing is None or not total or now is None:
        return None
    higher = ceil_div(round(1e6 * (now + missing / total)), 10_000) / 100
    return higher if higher <= HIGHEST_FRACTION else None


def _higher_fraction(case: Case) -> str:
    fraction = _fraction(case)
    return f"--gpu-memory-utilization {fraction:.2f}" if fraction else "--gpu-memory-utilization 0.95"


def _by_cache(case: Case) -> bool:
    """An engine that sizes a cache said that it is too small."""
    return case.number("max_model_len") is not None or case.says(r"KV cache|cache blocks|memory pool")


def _not_llama(case: Case) -> bool:
    return case.family not in LLAMA


TOO_BIG: Final[tuple[Remedy, ...]] = (
    # a cache of keys and values
    Remedy(
        "fix.shorter_context", BIG, _length, lambda case: _by_cache(case) and is_server("vllm", "vllm-tpu")(case),
        kv_missing, lambda case: True if fitting_length(case) else None, ("kv_cache",),
    ),
    Remedy(
        "fix.higher_fraction", BIG, _higher_fraction,
        lambda case: _by_cache(case) and (case.number("memory_fraction") is None or _fraction(case) is not None),
        lambda case: None, lambda case: True if _fraction(case) else None, ("kv_cache",),
    ),
    Remedy(
        "fix.kv_8bit", BIG, "--kv-cache-dtype fp8", lambda case: _by_cache(case) and _not_llama(case), kv_half,
        kv_half_enough, ("kv_cache",),
    ),
    Remedy("fix.kv_8bit", BIG, "-ctk q8_0 -ctv q8_0 -fa on", lambda case: case.family in LLAMA, details=("kv_cache",)),
    Remedy("fix.eager", BIG, "--enforce-eager", is_server("vllm"), details=("kv_cache",)),
    Remedy("fix.more_cards", BIG, "--tensor-parallel-size 2", is_server("vllm", "vllm-tpu"), details=("kv_cache",)),
    Remedy("fix.quantised", BIG, "--quantization fp8", is_server("vllm"), details=("kv_cache",)),
    # llama.cpp
    Remedy("fix.fewer_layers", BIG, "-ngl N", lambda case: case.family in LLAMA, details=("layers", "")),
    Remedy("fix.micro_batch_llama", BIG, "-ub 128", lambda case: case.family in LLAMA, details=("compute_buffer",)),
    Remedy(
        "fix.one_copy", BIG, "cmake -DGGML_SCHED_MAX_COPIES=1", lambda case: case.family in LLAMA,
        details=("compute_buffer",),
    ),
    Remedy("fix.flash_llama", BIG, "-fa on", lambda case: case.family in LLAMA, details=("compute_buffer",)),
    Remedy("fix.split", BIG, "--tensor-split 3,1", lambda case: case.family in LLAMA),
    Remedy("fix.shorter_llama", BIG, "-c 8192", lambda case: case.family in LLAMA),
    Remedy("fix.smaller_quant", BIG, "", lambda case: case.family in LLAMA),
    # one tensor
    Remedy(
        "fix.flash", BIG, 'attn_implementation="sdpa"', is_torch, figure("tried"),
        details=("attention_scores", "one_tensor"),
    ),
    Remedy("fix.chunks", BIG, "tensor.split(n)", is_torch, details=("one_tensor", "attention_scores")),
    Remedy(
        "fix.fused_loss", BIG, "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss", is_torch,
        figure("tried"), details=("logits",),
    ),
    # Windows
    Remedy("fix.no_spill", BIG, "", details=("shared_memory_spill",)),
    # running a model
    Remedy(
        "fix.inference_mode", BIG, "with torch.inference_mode():",
        lambda case: is_torch(case) and may_infer(case) and not serving(case),
    ),
    Remedy(
        "fix.quantised_load", BIG, "BitsAndBytesConfig(load_in_4bit=True)",
        lambda case: is_torch(case) and may_infer(case) and not serving(case),
    ),
    # training
    Remedy("fix.smaller_batch", BIG, "per_device_train_batch_size=1, gradient_accumulation_steps=N", may_train),
    Remedy(
        "fix.checkpointing", BIG, "model.gradient_checkpointing_enable()",
        lambda case: is_torch(case) and may_train(case),
    ),
    Remedy("fix.8bit_optimizer", BIG, 'optim="adamw_8bit"', lambda case: is_torch(case) and may_train(case)),
    Remedy("fix.set_to_none", BIG, "optimizer.zero_grad(set_to_none=True)", lambda case: case.during("backward")),
    Remedy(
        "fix.shard", BIG, "torch.distributed.fsdp.fully_shard(model)",
        lambda case: is_torch(case) and may_train(case),
    ),
    # other servers and frameworks
    Remedy("fix.prefill_tokens", BIG, "--max-batch-prefill-tokens 2048", lambda case: case.family == "tgi"),
    Remedy("fix.chunked_prefill", BIG, "--chunked-prefill-size 2048", is_server("sglang")),
    Remedy(
        "fix.jax_fraction", BIG, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95", lambda case: case.family.startswith("jax"),
    ),
    Remedy("fix.remat", BIG, "jax.checkpoint(f)", lambda case: case.family.startswith("jax")),
    Remedy("fix.tf_growth", BIG, "TF_FORCE_GPU_ALLOW_GROWTH=true", lambda case: case.family == "tensorflow"),
    Remedy(
        "fix.metal_ratio", BIG, "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", lambda case: case.family == "torch-mps",
    ),
    Remedy("fix.larger_card", BIG),
)
"""In the order in which they should be tried."""
