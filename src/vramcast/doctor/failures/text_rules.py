"""Evidence in words: what engines, libraries and the text around a failure say about its cause.

[vllm] vllm/v1/core/kv_cache_utils.py `check_enough_kv_cache_memory`; vllm/worker/worker.py (V0)
[sglang] sglang/srt/model_executor `profile_max_num_token`: the static pool of `--mem-fraction-static` holds weights
and cache; "Not enough memory" is raised when weights leave nothing of it
[tgi] text-generation-inference server/models/flash_causal_lm.py@00359fcdc5 `warmup`: `except Exception` is reworded as
"Not enough memory to handle N prefill tokens", whatever happened
[ggml] llama.cpp ggml-cuda.cu: a failed cudaMalloc always prints its own line, with size and device
"""

from __future__ import annotations

from typing import Final

from vramcast.doctor.failures.card_rules import BESIDE
from vramcast.doctor.failures.case import (
    HOST,
    LIBRARIES,
    LLAMA,
    NOT_MEMORY,
    TABLES,
    TORCH,
    Case,
    Holds,
    Rule,
    Values,
    known,
    percent,
    serving,
    size,
)
from vramcast.domain.answer import Fit
from vramcast.domain.failure import Cause
from vramcast.units import GIB

FEW_TOKENS: Final = 1024
"""A prefill of so few tokens takes megabytes in any model [tokens]."""

FILLS: Final = 0.5
"""So much of a limit is in live tensors where the job itself fills it."""

LOW_FRACTION: Final = 0.85
"""Below what engines choose by themselves: somebody limited it."""

HOST_WORDS: Final = (
    r"DataLoader worker|exit(?:ed with)? code:? ?-?(?:137|9)\b|SIGKILL|oom[-_ ]?kill|Cannot allocate memory|"
    r"DefaultCPUAllocator|cudaHostAlloc|CachingHostAllocator|cudaMallocHost|hipHostMalloc|pin(?:ned)?[_ ]memory|"
    r"/dev/shm|shared memory \(shm\)|Bus error|std::bad_alloc|Unable to allocate .{1,60} for an array|\bMemoryError|"
    r"ggml_backend_cpu|ggml_aligned_malloc|\b(?:CPU|CUDA_Host|ROCm_Host|Vulkan_Host)[\w-]* buffer|Killed process"
)
HOST_WORDINGS: Final = frozenset({
    ("vllm", "swap-space"), ("sglang", "host-kv"), ("tgi", "shard"), ("ollama", "system-memory"),
    ("llama.cpp", "aligned-malloc"), ("llama.cpp", "mlock"), ("llama.cpp", "mmap"), ("llama.cpp", "vulkan-host"),
    ("tensorflow", "host"), ("tensorflow", "host-pinned"), ("paddle", "cpu"), ("paddle", "pinned"), ("jax", "host"),
    ("mxnet", "cpu"), ("julia", "host"), ("torch-npu", "pinned"), ("torch-xpu", "pi-host"), ("nccl", "shm"),
    ("cuda", "opencl-host"), ("cuda", "vulkan-host"),
})
"""Families and wordings that speak of main memory, where the family speaks of cards otherwise."""

CACHE_FULL: Final = frozenset({
    ("vllm", "preempted"), ("vllm", "prompt-too-long"), ("sglang", "decode"), ("sglang", "retract"),
    ("sglang", "prefill"), ("sglang", "too-small"), ("sglang", "no-progress"), ("tensorrt-llm", "kv-blocks"),
    ("tensorrt-llm", "max-tokens"), ("lmdeploy", "blocks"), ("llama.cpp", "no-slot"),
})
"""What engines print when requests at once need more tokens than their cache holds."""

CAPTURING: Final = ("vllm", "sglang")
"""Words of servers that fill their share of the card, then capture graphs."""

TF_HANDLE: Final = r"Could not create cudnn handle|failed to create cu\w{3,8} handle|cuDNN failed to initialize"
CONVOLUTION: Final = (
    r"cuDNN algorithm to run convolution|unable to find an engine|FWD algo for convolution|find\w{0,20}\(\w{0,4}algo|"
    r"No algorithm worked|requires workspace"
)
SERVER_FILLS: Final = r"gpu_memory_utilization|ESTIMATE_CUDAGRAPHS|mem[-_]fraction[-_]static"


def _says(pattern: str, *families: str) -> Holds:
    return lambda case: (not families or case.family in families) and case.says(pattern)


def _worded(wordings: frozenset[tuple[str, str]]) -> Holds:
    return lambda case: (case.family, case.statement.wording) in wordings


def _needed(case: Case) -> float | None:
    """What a program or model needs in all, as the text counts it [bytes]."""
    needed = case.number("needed_bytes")
    return case.number("used_bytes") if needed is None else needed


def _over_limit(case: Case) -> bool:
    needed, limit = _needed(case), _limit(case)
    return needed is not None and limit is not None and needed > limit


def _limit(case: Case) -> float | None:
    """What the text says is the most that is granted, where it speaks of a card's memory."""
    return None if case.family in (*HOST, *NOT_MEMORY) else case.number("limit_bytes")


def _above_limit(case: Case) -> bool:
    """One request is larger than anything that is granted."""
    tried, limit = case.figures.tried, _limit(case)
    return tried is not None and limit is not None and tried > limit


def _full(case: Case) -> bool:
    """Live memory and the request together are more than the allocator may take."""
    tried, limit, allocated = case.figures.tried, _limit(case), case.figures.allocated
    if tried is None or limit is None or allocated is None or tried > limit:
        return False
    return allocated + tried > limit and allocated > FILLS * limit


def _limits(case: Case) -> dict[str, str]:
    limit, needed = case.number("limit_bytes"), _needed(case)
    over = None if limit is None or needed is None else needed - limit
    return {
        "limit": size(limit), "needed": size(needed), "over": size(over), "tried": size(case.figures.tried),
        "allocated": size(case.figures.allocated),
    }


def _kv_short(case: Case) -> bool:
    """The cache is smaller than one sequence of the length asked for."""
    length, tokens = case.number("max_model_len"), case.number("kv_tokens")
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    by_tokens = length is not None and tokens is not None and length > tokens
    return by_tokens or (needed is not None and available is not None and needed > available)


def _no_cache(case: Case) -> bool:
    return not _kv_short(case) and case.says(r"No available memory for the cache|no memory (?:left )?for (?:the )?KV")


def _limited(case: Case) -> bool:
    fraction = case.number("memory_fraction")
    return (_kv_short(case) or _no_cache(case)) and fraction is not None and 0 < fraction < LOW_FRACTION


def _tgi(low: int, high: int) -> Holds:
    def holds(case: Case) -> bool:
        tokens = case.number("tried_tokens")
        told = case.family == "tgi" and not case.says(r"total tokens with")
        return told and low <= (FEW_TOKENS if tokens is None else tokens) < high

    return holds


def _metal(case: Case) -> bool:
    """Metal memory of this process outside PyTorch's heaps is more than what is in them."""
    figures = case.figures
    return case.family == "torch-mps" and known(figures.beside, figures.allocated) and (
        figures.beside > figures.allocated  # type: ignore[operator]
    )


def _library(case: Case) -> bool:
    return case.family in LIBRARIES and (case.figures.free or 0) <= GIB


def is_host(case: Case) -> bool:
    """Whether the statement itself speaks of main memory."""
    if case.family in HOST or _worded(HOST_WORDINGS)(case):
        return True
    return case.figures.total is None and case.says(HOST_WORDS)


def reserves_all(case: Case) -> bool:
    """TensorFlow takes nearly the whole card when it starts; its libraries get what is left."""
    return _library(case) and case.says(TF_HANDLE)


def _convolution(case: Case) -> bool:
    """cuDNN tried all algorithms of one convolution: their workspaces did not fit beside the job's own memory."""
    return case.family == "cudnn" and case.says(CONVOLUTION) and _library(case)


def _creates_context(case: Case) -> bool:
    """A process that makes its context holds nothing of the card yet."""
    return case.figures.tried is None and (case.during("context") or "context" in case.facts.words)


def _bare_backend_buffer(case: Case) -> bool:
    return case.family in LLAMA and case.says(r"unable to allocate (?:backend|\w+ host) buffer") and not case.says(
        r"cudaMalloc|CUDA\d|ROCm\d|Vulkan\d|Metal|device \d"
    )


def _device_buffer(case: Case) -> bool:
    return case.family in LLAMA and not is_host(case) and case.figures.tried is not None


def _server_filled(case: Case) -> bool:
    """An engine's share of the card left too little for what comes on top of it."""
    serving = not case.facts.words.isdisjoint({"gpu_memory_utilization", *CAPTURING})
    filled = case.says(SERVER_FILLS) or (case.during("capture") and serving)
    return filled and case.figures.tried is not None and (case.figures.short or 0) > 0


def _beside_pool(case: Case) -> bool:
    """An engine that has made its cache fails beside it: it fills its share of the card whatever the job needs."""
    making = case.during("load", "profile", "cache")
    return case.family in TORCH and serving(case) and not making and (case.figures.short or 0) > 0


def _server_filled_bare(case: Case) -> bool:
    """The same, where the driver refused without figures: a graph that is instantiated lies outside the allocator."""
    return case.figures.tried is None and case.during("capture") and not case.facts.words.isdisjoint(CAPTURING)


def _high_fraction(case: Case) -> bool:
    fraction = case.number("memory_fraction")
    return fraction is not None and fraction >= 0.95 and (case.figures.short or 0) > 0


def _taken_before(case: Case) -> bool:
    """Less is free when an engine starts than its share of the card comes to."""
    wanted, free = case.number("desired_bytes"), case.figures.free
    return wanted is not None and free is not None and free < wanted


def _held_before(case: Case) -> int:
    return max(0, (case.figures.total or 0) - (case.figures.free or 0))


def _late(case: Case) -> bool:
    return bool(case.facts.steps) and case.facts.steps[-1] >= 100 and case.figures.tried is not None


def _tokens(case: Case) -> dict[str, str]:
    return {
        "length": f"{int(case.number('max_model_len') or 0):,}", "tokens": f"{int(case.number('kv_tokens') or 0):,}",
    }


def _kv_bytes(case: Case) -> dict[str, str]:
    return {"needed": size(case.number("kv_needed_bytes")), "available": size(case.number("kv_available_bytes"))}


def _step(case: Case) -> dict[str, str]:
    return {"step": f"{case.facts.steps[-1]:,}" if case.facts.steps else ""}


def _of(**figures: str) -> Values:
    """Figures by the names that a sentence gives them."""
    return lambda case: {name: size(getattr(case.figures, figure)) for name, figure in figures.items()}


def _by_tokens(case: Case) -> bool:
    return _kv_short(case) and case.number("kv_tokens") is not None


def _by_bytes(case: Case) -> bool:
    return _kv_short(case) and case.number("kv_tokens") is None


TEXT_RULES: Final[tuple[Rule, ...]] = (
    # engines that size a cache
    Rule("why.kv_tokens", Cause.TOO_BIG, 4, _by_tokens, _tokens),
    Rule("why.kv_bytes", Cause.TOO_BIG, 4, _by_bytes, _kv_bytes),
    Rule("why.no_cache", Cause.TOO_BIG, 2, _no_cache),
    Rule(
        "why.low_fraction", Cause.MEMORY_FRACTION, 7, _limited,
        lambda case: {"fraction": percent(case.number("memory_fraction"))},
    ),
    Rule(
        "why.taken_before", Cause.OTHER_PROCESS, 6, lambda case: _taken_before(case) and _held_before(case) > BESIDE,
        lambda case: _of(free="free")(case) | {"held": size(_held_before(case))},
    ),
    Rule(
        "why.share_too_large", Cause.MEMORY_FRACTION, 6,
        lambda case: _taken_before(case) and _held_before(case) <= BESIDE,
        lambda case: _of(free="free")(case) | {"wanted": size(case.number("desired_bytes"))},
    ),
    Rule("why.static_fraction", Cause.MEMORY_FRACTION, 5, _says(r"increase --?-?mem-fraction-static")),
    Rule("why.server_filled", Cause.MEMORY_FRACTION, 5, _server_filled, _of(tried="tried", free="free")),
    Rule("", Cause.TOO_BIG, -2, _beside_pool),  # that live tensors fill the card says nothing: they are the pool
    Rule(
        "why.server_filled", Cause.MEMORY_FRACTION, 5,
        lambda case: _beside_pool(case) and not _server_filled(case), _of(tried="tried", free="free"),
    ),
    Rule("why.server_graphs", Cause.MEMORY_FRACTION, 4, _server_filled_bare),
    Rule(
        "why.high_fraction", Cause.MEMORY_FRACTION, 4, _high_fraction,
        lambda case: {"fraction": percent(case.number("memory_fraction"))},
    ),
    Rule("why.tgi_few", Cause.BUG, 6, _tgi(0, FEW_TOKENS)),
    Rule("why.tgi", Cause.BUG, 4, _tgi(FEW_TOKENS, 1 << 62)),
    # what engines and programs say outright
    Rule("why.freed_meanwhile", Cause.OTHER_PROCESS, 5, _worded(frozenset({("vllm", "profiling-freed")}))),
    Rule("why.warmup", Cause.MEMORY_FRACTION, 4.5, _worded(frozenset({("vllm", "sampler-warmup")}))),
    Rule("why.cache_full", Cause.TOO_BIG, 3, _worded(CACHE_FULL)),
    Rule("why.batch_of_one", Cause.TOO_BIG, 2, _worded(frozenset({("accelerate", "batch-size")}))),
    Rule("why.modules_left", Cause.TOO_BIG, 2, _worded(frozenset({("bitsandbytes", "modules-on-cpu")}))),
    Rule("why.over_limit", Cause.TOO_BIG, 4, _over_limit, _limits),
    Rule("why.above_limit", Cause.TOO_BIG, 4, _above_limit, _limits),
    Rule("why.pool_full", Cause.TOO_BIG, 3, _full, _limits),
    # ggml
    Rule("why.buffer", Cause.TOO_BIG, 2, _device_buffer, _of(tried="tried")),
    Rule("why.bare_buffer", Cause.HOST_MEMORY, 4, _bare_backend_buffer),
    # libraries, Metal
    Rule("why.library", Cause.CONTEXT_AND_LIBRARIES, 5, _library),
    Rule("why.library_last", Cause.TOO_BIG, 1.5, _library),
    Rule("why.reserves_all", Cause.MEMORY_FRACTION, 6, reserves_all),
    Rule("why.convolution", Cause.TOO_BIG, 2.5, _convolution),
    Rule("why.context", Cause.OTHER_PROCESS, 4, _creates_context),
    Rule(
        "why.busy", Cause.OTHER_PROCESS, 3.25, lambda case: case.figures.tried is None and bool(case.facts.busy),
        lambda case: {"busy": percent(case.facts.busy)},
    ),
    Rule("why.only_table", Cause.UNKNOWN, 3, lambda case: case.family in TABLES and not case.number("num_ooms")),
    Rule("why.metal", Cause.CONTEXT_AND_LIBRARIES, 5, _metal, _of(beside="beside", allocated="allocated")),
    Rule(
        "why.metal_own", Cause.TOO_BIG, 1.5,
        lambda case: case.family == "torch-mps" and not _metal(case) and known(case.figures.allocated),
        _of(allocated="allocated", allowed="allowed"),
    ),
    Rule(
        "why.metal_buffer", Cause.TOO_BIG, 3, _worded(frozenset({("torch-mps", "mps-buffer-size")})), _of(tried="tried")
    ),
    # main memory
    Rule(
        "why.ended", Cause.HOST_MEMORY, 7.5, lambda case: is_host(case) and case.number("resident_bytes") is not None,
        lambda case: {"resident": size(case.number("resident_bytes"))},
    ),
    Rule("why.host", Cause.HOST_MEMORY, 7, lambda case: is_host(case) and case.number("resident_bytes") is None),
    Rule("why.loader", Cause.HOST_MEMORY, 1, lambda case: case.during("loader")),
    # captured graphs, growth, impossible sizes
    Rule("why.capture", Cause.PRIVATE_POOLS, 2, lambda case: case.during("capture")),
    Rule(
        "why.grew", Cause.LEAK, 6, lambda case: bool(case.grew_bytes),
        lambda case: {"grew": size(case.grew_bytes)},
    ),
    Rule("why.leak_words", Cause.LEAK, 3, lambda case: "leak" in case.facts.words),
    Rule("why.late", Cause.LEAK, 1.5, _late, _step),
    Rule("why.late", Cause.FRAGMENTED, 0.5, _late, _step),
    Rule("why.not_memory", Cause.BUG, 6, lambda case: case.family in NOT_MEMORY),
    Rule("why.exabyte", Cause.BUG, 9, _says(r"more than 1EB")),
    # what a replay of the process shows
    Rule(
        "why.replay_avoids", Cause.FRAGMENTED, 4, lambda case: bool(case.replay_avoids),
        lambda case: {"setting": case.replay_avoids},
    ),
    # what train or serve says of the job; `job.beside` has the words
    Rule("", Cause.TOO_BIG, 3, lambda case: case.job is not None and case.job.verdict is Fit.NOT),
    Rule("", Cause.TOO_BIG, -1.5, lambda case: case.job is not None and case.job.verdict in (Fit.FITS, Fit.CLOSELY)),
    # what was going on
    Rule("why.during_load", Cause.TOO_BIG, 1, lambda case: case.during("load")),
    Rule("why.during_optimizer", Cause.TOO_BIG, 0.75, lambda case: case.during("optimizer")),
    Rule("why.during_backward", Cause.TOO_BIG, 0.5, lambda case: case.during("backward")),
    Rule("why.during_attention", Cause.TOO_BIG, 0.5, lambda case: case.during("attention")),
    Rule("why.during_loss", Cause.TOO_BIG, 0.5, lambda case: case.during("loss")),
    Rule("why.during_generate", Cause.TOO_BIG, 0.5, lambda case: case.during("generate")),
)
"""In order of subject."""
