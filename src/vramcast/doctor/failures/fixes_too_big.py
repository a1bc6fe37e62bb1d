"""Rows of the table of fixes, and those of jobs that need more than there is, by what fills the card."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from vramcast.doctor.failures.case import LLAMA, TORCH, Case, may_infer, serving
from vramcast.doctor.failures.text_rules import CACHE_FULL
from vramcast.domain.failure import Cause
from vramcast.units import MIB, ceil_div

Text: TypeAlias = Callable[[Case], str]
Size: TypeAlias = Callable[[Case], int | None]
Enough: TypeAlias = Callable[[Case], bool | None]
Applies: TypeAlias = Callable[[Case], bool]

BLOCK_TOKENS: Final = 16
"""Tokens of a cache block of vLLM; lengths are cut to whole blocks."""

CONF_NAME: Final = re.compile(r"PYTORCH_(?:[A-Z]{2,5}_)?ALLOC_CONF")

CONF_NAMES: Final[dict[str, str]] = {
    "torch-hip": "PYTORCH_HIP_ALLOC_CONF", "torch-npu": "PYTORCH_NPU_ALLOC_CONF",
    "torch-musa": "PYTORCH_MUSA_ALLOC_CONF", "torch-xpu": "PYTORCH_ALLOC_CONF",
}
"""Family -> the variable its allocator reads; others read PYTORCH_CUDA_ALLOC_CONF."""

OLD_WORDING: Final = re.compile(r"already allocated")
"""PyTorch up to 2.0, which has no expandable segments."""


class Remedy(NamedTuple):
    """Something to change, for which causes, and what it brings."""

    key: str  # of the sentence
    causes: tuple[Cause, ...]
    setting: Text | str = ""
    applies: Applies = lambda case: True
    saves: Size = lambda case: None
    enough: Enough = lambda case: None
    details: tuple[str, ...] = ()  # only for these kinds of the cause

    def setting_for(self, case: Case) -> str:
        """Ready to paste."""
        return self.setting if isinstance(self.setting, str) else self.setting(case)


def is_torch(case: Case) -> bool:
    """PyTorch's allocator on a card, Metal aside; or the table it prints."""
    return (case.family.startswith("torch-") and case.family != "torch-mps") or case.family == "memory-summary"


def is_server(*names: str) -> Applies:
    """One of these servers speaks, or its settings are mentioned."""
    words = {"vllm": r"vllm|gpu_memory_utilization", "sglang": r"sglang|mem[-_]fraction[-_]static"}

    def speaks(case: Case) -> bool:
        if case.family in names or any(case.says(words.get(name, rf"\b{name}\b")) for name in names):
            return True
        return case.family in TORCH and serving(case) and not case.facts.words.isdisjoint(names)

    return speaks


def may_train(case: Case) -> bool:
    """Nothing says that it only runs a model."""
    return not serving(case) and not case.during("generate") and case.family not in ("diffusers",)


def conf_name(case: Case) -> str:
    """The variable with the allocator's options: as the message calls it, else as its version reads it."""
    named = CONF_NAME.search(case.statement.text)
    if named is not None:
        return named[0]
    if case.family in CONF_NAMES:
        return CONF_NAMES[case.family]
    return "PYTORCH_ALLOC_CONF" if case.facts.torch >= (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"


def has_expandable(case: Case) -> bool:
    """Whether this PyTorch knows expandable segments (2.1); by its version, else by its wording."""
    if case.facts.torch:
        return case.facts.torch >= (2, 1)
    return case.family == "torch-npu" or OLD_WORDING.search(case.statement.text) is None


def expandable(case: Case) -> str:
    """Expandable segments on."""
    return f"{conf_name(case)}=expandable_segments:True"


def max_split(case: Case) -> str:
    """Blocks of a quarter of the request and more stay whole, so that it finds one: in MiB, a power of two."""
    quarter = (case.figures.tried or 512 * MIB) // (4 * MIB)
    megabytes = min(512, max(32, 1 << max(0, quarter.bit_length() - 1)))
    return f"{conf_name(case)}=max_split_size_mb:{megabytes}"


def joined_enough(case: Case) -> bool | None:
    """False where even all pieces and free memory joined would not do; that they would join wholly, nobody knows."""
    figures = case.figures
    if figures.tried is None or figures.free is None or figures.unallocated is None:
        return None
    return None if figures.unallocated + figures.free >= figures.tried else False


def freed_enough(name: str) -> Enough:
    """Whether the request would have been served had what this figure holds been free."""

    def enough(case: Case) -> bool | None:
        figures, held = case.figures, getattr(case.figures, name)
        if held is None or figures.tried is None or figures.free is None:
            return None
        return bool(held + figures.free >= figures.tried)

    return enough


def figure(name: str) -> Size:
    """A figure of the message as the saving."""
    return lambda case: getattr(case.figures, name)


def fitting_length(case: Case) -> int | None:
    """The longest sequence that the cache holds, by the message's own arithmetic [tokens]."""
    length, tokens = case.number("max_model_len"), case.number("kv_tokens")
    estimated = case.number("estimated_max_len")
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    if estimated:
        return int(estimated)
    if tokens:
        return int(tokens) // BLOCK_TOKENS * BLOCK_TOKENS or None
    if length and needed and available is not None and available < needed:
        return int(length * available / needed) // BLOCK_TOKENS * BLOCK_TOKENS or None
    return None


def kv_missing(case: Case) -> int | None:
    """What the cache lacks for one sequence [bytes]."""
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    return int(needed - available) if needed is not None and available is not None and needed > available else None


def kv_half(case: Case) -> int | None:
    """What a cache of 8 bits saves [bytes]."""
    needed = case.number("kv_needed_bytes")
    return None if needed is None else int(needed) // 2


def kv_half_enough(case: Case) -> bool | None:
    """Whether half a cache per token is enough."""
    length, tokens = case.number("max_model_len"), case.number("kv_tokens")
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    if needed is not None and available is not None:
        return needed / 2 <= available
    return length <= 2 * tokens if length is not None and tokens is not None else None


BIG: Final = (Cause.TOO_BIG,)
SHARES: Final[dict[str, str]] = {
    "sglang": "--mem-fraction-static 0.9", "tensorrt-llm": "kv_cache_config.free_gpu_memory_fraction: 0.95",
    "lmdeploy": "--cache-max-entry-count 0.9",
}
"""Server -> the option that gives its cache more of the card; others: vLLM's."""

KV_8BIT: Final[dict[str, str]] = {
    "sglang": "--kv-cache-dtype fp8_e4m3", "tensorrt-llm": "kv_cache_config.dtype: fp8", "lmdeploy": "--quant-policy 8",
}

SEQUENCES: Final[dict[str, str]] = {
    "vllm": "--max-num-seqs 64", "sglang": "--max-running-requests 32", "tensorrt-llm": "max_batch_size: 32",
    "lmdeploy": "--max-batch-size 32", "llama.cpp": "--parallel 1",
}

TPU_WORDINGS: Final = ("hbm", "program", "reserve", "allocate", "scoped-vmem")
"""Of XLA on TPUs, which has no share of the memory to set."""

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


def _higher(case: Case) -> str:
    """More of the card for an engine, in the engine's own words."""
    return next((setting for name, setting in SHARES.items() if is_server(name)(case)), _higher_fraction(case))


def _kv_8bit(case: Case) -> str:
    return KV_8BIT.get(case.family, "--kv-cache-dtype fp8")


def _cache_full(case: Case) -> bool:
    return (case.family, case.statement.wording) in CACHE_FULL and case.family in SEQUENCES


def _fewer_sequences(case: Case) -> str:
    return SEQUENCES[case.family]


def _frameworks_own(case: Case) -> bool:
    """Something trains that is not PyTorch: its settings have other names."""
    return may_train(case) and not is_torch(case) and case.family != "bitsandbytes"


def _by_cache(case: Case) -> bool:
    """An engine that sizes a cache said that it is too small."""
    if case.family in LLAMA:
        return False  # their cache is as large as the context asks for
    said = case.says(r"KV cache|cache blocks|memory pool") or (case.family, case.statement.wording) in CACHE_FULL
    return case.number("max_model_len") is not None or said


def _not_llama(case: Case) -> bool:
    return case.family not in LLAMA


def _is_llama(case: Case) -> bool:
    return case.family in LLAMA


def _by_runner(llama: str, ollama: str) -> Text:
    """A flag of llama.cpp, or how Ollama asks its runner for the same."""
    return lambda case: ollama if case.family == "ollama" else llama


TOO_BIG: Final[tuple[Remedy, ...]] = (
    # a cache of keys and values
    Remedy("fix.fewer_sequences", BIG, _fewer_sequences, _cache_full),
    Remedy(
        "fix.shorter_context", BIG, _length, lambda case: _by_cache(case) and is_server("vllm", "vllm-tpu")(case),
        kv_missing, lambda case: True if fitting_length(case) else None, ("kv_cache",),
    ),
    Remedy(
        "fix.higher_fraction", BIG, _higher,
        lambda case: _by_cache(case) and (case.number("memory_fraction") is None or _fraction(case) is not None),
        lambda case: None, lambda case: True if _fraction(case) else None, ("kv_cache",),
    ),
    Remedy(
        "fix.kv_8bit", BIG, _kv_8bit, lambda case: _by_cache(case) and _not_llama(case), kv_half,
        kv_half_enough, ("kv_cache",),
    ),
    Remedy(
        "fix.kv_8bit", BIG,
        _by_runner("-ctk q8_0 -ctv q8_0 -fa on", "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0"), _is_llama,
        details=("kv_cache",),
    ),
    Remedy("fix.eager", BIG, "--enforce-eager", is_server("vllm"), details=("kv_cache",)),
    Remedy("fix.more_cards", BIG, "--tensor-parallel-size 2", is_server("vllm", "vllm-tpu"), details=("kv_cache",)),
    Remedy("fix.quantised", BIG, "--quantization fp8", is_server("vllm"), details=("kv_cache",)),
    # llama.cpp, and Ollama (envconfig/config.go and api/types.go at fb3076099)
    Remedy(
        "fix.fewer_layers", BIG, _by_runner("-ngl N", "PARAMETER num_gpu N"), _is_llama, details=("layers", "")
    ),
    Remedy(
        "fix.micro_batch_llama", BIG, _by_runner("-ub 128", "PARAMETER num_batch 128"), _is_llama,
        details=("compute_buffer",),
    ),
    Remedy(
        "fix.one_copy", BIG, "cmake -DGGML_SCHED_MAX_COPIES=1", lambda case: case.family == "llama.cpp",
        details=("compute_buffer",),
    ),
    Remedy(
        "fix.flash_llama", BIG, _by_runner("-fa on", "OLLAMA_FLASH_ATTENTION=1"), _is_llama,
        details=("compute_buffer",),
    ),
    Remedy("fix.split", BIG, _by_runner("--tensor-split 3,1", "OLLAMA_SCHED_SPREAD=1"), _is_llama),
    Remedy("fix.shorter_llama", BIG, _by_runner("-c 8192", "OLLAMA_CONTEXT_LENGTH=8192"), _is_llama),
    Remedy("fix.smaller_quant", (*BIG, Cause.HOST_MEMORY), "", _is_llama),
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
    Remedy(
        "fix.quantised_load", BIG, "BitsAndBytesConfig(load_in_4bit=True)", lambda case: case.family == "bitsandbytes",
    ),
    Remedy(
        "fix.layers_off", BIG, 'BitsAndBytesConfig(llm_int8_enable_fp32_cpu_offload=True), device_map="auto"',
        lambda case: case.statement.wording == "modules-on-cpu",
    ),
    # training
    Remedy(
        "fix.smaller_batch", BIG, "per_device_train_batch_size=1, gradient_accumulation_steps=N",
        lambda case: is_torch(case) and may_train(case),
    ),
    Remedy("fix.smaller_input", BIG, "", _frameworks_own),
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
    Remedy(
        "fix.trt_fraction", BIG, "kv_cache_config.free_gpu_memory_fraction: 0.8",
        lambda case: case.family == "tensorrt-llm" and not _cache_full(case),
    ),
    Remedy(
        "fix.trt_fraction", BIG, "--cache-max-entry-count 0.5",
        lambda case: case.family == "lmdeploy" and not _cache_full(case),
    ),
    Remedy("fix.prefill_tokens", BIG, "--max-batch-prefill-tokens 2048", lambda case: case.family == "tgi"),
    Remedy("fix.chunked_prefill", BIG, "--chunked-prefill-size 2048", is_server("sglang")),
    Remedy(
        "fix.jax_fraction", BIG, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95",
        lambda case: case.family == "jax" and case.statement.wording not in TPU_WORDINGS,
    ),
    Remedy("fix.remat", BIG, "jax.checkpoint(f)", lambda case: case.family.startswith("jax")),
    Remedy("fix.tf_growth", BIG, "TF_FORCE_GPU_ALLOW_GROWTH=true", lambda case: case.family == "tensorflow"),
    Remedy(
        "fix.metal_ratio", BIG, "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        lambda case: case.family == "torch-mps" and case.statement.wording != "mps-buffer-size",
    ),
    Remedy("fix.larger_card", BIG),
)
"""In the order in which they should be tried."""
