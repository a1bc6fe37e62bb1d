"""The vocabulary of the tables of causes and fixes: conditions over a failure, and the figures of a sentence.

A condition is words that must all hold; `!` denies one, `|` stands between alternatives. A word is a name of
`CONDITIONS`, a kind with names (`family:cudnn,LIBRARIES`, `during:load`), or a quantity in an interval with open or
closed ends (`scattered[0.1,0.25)`, `tried(1,]`), which holds nowhere where the quantity is not known.
[message] pytorch c10/cuda/CUDACachingAllocator.cpp; [specification of the figures] `case.py`
[vllm] vllm/v1/core/kv_cache_utils.py `check_enough_kv_cache_memory`; vllm/worker/worker.py (V0)
[sglang] sglang/srt/model_executor `profile_max_num_token`: the static pool of `--mem-fraction-static` holds weights
and cache; "Not enough memory" is raised when weights leave nothing of it
[tgi] text-generation-inference server/models/flash_causal_lm.py@00359fcdc5 `warmup`: `except Exception` is reworded as
"Not enough memory to handle N prefill tokens", whatever happened
[ggml] llama.cpp ggml-cuda.cu: a failed cudaMalloc always prints its own line, with size and device
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from vramcast.doctor.failures import case as families
from vramcast.doctor.failures.case import HOST, LIBRARIES, LLAMA, NOT_MEMORY, TORCH, Case
from vramcast.doctor.failures.quantities import (
    BEGUN,
    HIGHEST_FRACTION,
    QUANTITIES,
    beyond_context,
    enough_free,
    needed_bytes,
)
from vramcast.domain.verdict import Fit
from vramcast.lazy import lazy_pattern
from vramcast.units import GIB

Holds: TypeAlias = Callable[[Case], bool]

FILLS: Final = 0.5
"""So much of a limit is in live tensors where the job itself fills it."""

HOST_WORDS: Final = (
    r"DataLoader worker|exit(?:ed with)? code:? ?-?(?:137|9)\b|SIGKILL|oom[-_ ]?kill|Cannot allocate memory|"
    r"DefaultCPUAllocator|cudaHostAlloc|CachingHostAllocator|cudaMallocHost|hipHostMalloc|pin(?:ned)?[_ ]memory|"
    r"/dev/shm|shared memory \(shm\)|Bus error|std::bad_alloc|Unable to allocate .{1,60} for an array|\bMemoryError|"
    r"ggml_backend_cpu|ggml_aligned_malloc|\b(?:CPU|CUDA_Host|ROCm_Host|Vulkan_Host)[\w-]* buffer|Killed process"
)
HOST_WORDINGS: Final = frozenset({
    "vllm/swap-space", "sglang/host-kv", "tgi/shard", "ollama/system-memory", "ollama/killed",
    "llama.cpp/aligned-malloc", "llama.cpp/mlock", "llama.cpp/mmap", "llama.cpp/vulkan-host", "tensorflow/host",
    "tensorflow/host-pinned", "paddle/cpu", "paddle/pinned", "jax/host", "mxnet/cpu", "julia/host", "torch-npu/pinned",
    "torch-xpu/pi-host", "nccl/shm", "cuda/opencl-host", "cuda/vulkan-host",
})
"""Families and wordings that speak of main memory, where the family speaks of cards otherwise."""

CACHE_FULL: Final = frozenset({
    "vllm/preempted", "vllm/prompt-too-long", "sglang/decode", "sglang/retract", "sglang/prefill", "sglang/too-small",
    "sglang/no-progress", "tensorrt-llm/kv-blocks", "tensorrt-llm/max-tokens", "lmdeploy/blocks", "llama.cpp/no-slot",
})
"""What engines print when requests at once need more tokens than their cache holds."""

GRAPHS: Final = 0.05
"""Of the card: more than captured graphs and libraries take beside an engine's share."""

CAPTURING: Final = ("vllm", "sglang")
"""Words of servers that fill their share of the card, then capture graphs."""

TF_HANDLE: Final = r"Could not create cudnn handle|failed to create cu\w{3,8} handle|cuDNN failed to initialize"
SERVER_FILLS: Final = r"gpu_memory_utilization|ESTIMATE_CUDAGRAPHS|mem[-_]fraction[-_]static"
SERVER_WORDS: Final = {"vllm": r"vllm|gpu_memory_utilization", "sglang": r"sglang|mem[-_]fraction[-_]static"}

OLD_WORDING: Final = lazy_pattern(r"already allocated")
"""PyTorch up to 2.0, which has no expandable segments."""


def _served_with(case: Case, held: int | None) -> bool:
    """Whether free memory was too little for the request, and with what somebody holds it is enough."""
    tried, free = case.figures.tried, case.figures.free
    return not (tried is None or free is None or held is None or enough_free(case)) and free + held >= tried


def _joined(case: Case) -> bool:
    """Whether free memory and pieces together would have been enough, where free memory was not."""
    return _served_with(case, case.figures.unallocated)


def _spilled(case: Case) -> bool:
    figures = case.figures
    return bool(figures.total) and max(figures.allocated or 0, figures.reserved or 0) > (figures.total or 0)


def _limit_reached(case: Case) -> bool:
    figures = case.figures
    held = figures.reserved if figures.reserved is not None else figures.allocated
    if figures.allowed is None or figures.tried is None or held is None or case.family == "torch-mps":
        return False
    # a message names the fraction only where one is set; with enough free nothing else refuses
    return enough_free(case) or held + figures.tried > figures.allowed


def _refused_though_free(case: Case) -> bool:
    return enough_free(case) and not _limit_reached(case)


def _short(case: Case) -> bool:
    """Neither what is free nor what would be free without gaps or others holds the request."""
    figures = case.figures
    if None in (figures.tried, figures.free, figures.unallocated) or enough_free(case) or _joined(case):
        return False
    beyond = beyond_context(case) > 0 and _served_with(case, figures.outside)
    return not (_spilled(case) or _served_with(case, figures.others) or beyond)


def _live_and_free(case: Case) -> bool:
    """Of what live tensors hold and what is free most is live, where the size of the card is not told."""
    tried, free, allocated = case.figures.tried, case.figures.free, case.figures.allocated
    if case.figures.total is not None or case.figures.unallocated is not None:
        return False
    return not (tried is None or free is None or allocated is None) and tried > free and allocated > 3 * free


def _limit(case: Case) -> float | None:
    """What the text says is the most that is granted, where it speaks of a card's memory."""
    return None if case.family in (*HOST, *NOT_MEMORY) else case.number("limit_bytes")


def _exceeds(needed: float | None, limit: float | None) -> bool:
    return needed is not None and limit is not None and needed > limit


def _pool_full(case: Case) -> bool:
    """Live memory and the request together are more than the allocator may take, and neither is alone."""
    tried, limit, allocated = case.figures.tried, _limit(case), case.figures.allocated
    if tried is None or limit is None or allocated is None or tried > limit:
        return False
    return allocated + tried > limit and allocated > FILLS * limit


def _kv_short(case: Case) -> bool:
    """The cache is smaller than one sequence of the length asked for."""
    return _exceeds(case.number("max_model_len"), case.number("kv_tokens")) or _exceeds(
        case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    )


def _no_cache(case: Case) -> bool:
    return not _kv_short(case) and case.says(r"No available memory for the cache|no memory (?:left )?for (?:the )?KV")


def _metal(case: Case) -> bool:
    """Metal memory of this process outside PyTorch's heaps is more than what is in them."""
    return case.family == "torch-mps" and _exceeds(case.figures.beside, case.figures.allocated)


def _library(case: Case) -> bool:
    return case.family in LIBRARIES and (case.figures.free or 0) <= GIB


def _wording(case: Case) -> str:
    return f"{case.family}/{case.statement.wording}"


def _is_host(case: Case) -> bool:
    """Whether the statement itself speaks of main memory."""
    if case.family in HOST or _wording(case) in HOST_WORDINGS:
        return True
    return case.figures.total is None and case.says(HOST_WORDS)


def _bare_backend_buffer(case: Case) -> bool:
    return case.family in LLAMA and case.says(r"unable to allocate (?:backend|\w+ host) buffer") and not case.says(
        r"cudaMalloc|CUDA\d|ROCm\d|Vulkan\d|Metal|device \d"
    )


def _server_filled(case: Case) -> bool:
    """An engine's share of the card left too little for what comes on top of it."""
    is_serving = not case.facts.words.isdisjoint({"gpu_memory_utilization", *CAPTURING})
    filled = case.says(SERVER_FILLS) or (case.during("capture") and is_serving)
    return filled and case.figures.tried is not None and (case.figures.short or 0) > 0


def _beyond_share(case: Case) -> bool:
    """Live tensors pass the engine's share of the card by far: weights or a forward, which no share bounds."""
    most = HIGHEST_FRACTION if case.facts.fraction is None else case.facts.fraction + GRAPHS
    return bool(case.figures.total) and (case.figures.allocated or 0) > most * (case.figures.total or 0)


def _beside_pool(case: Case) -> bool:
    """An engine that has made its cache fails beside it: it fills its share of the card whatever the job needs.

    That live tensors fill the card then says nothing: they are the pool.
    """
    making = case.during("load", "profile", "cache")
    short = (case.figures.short or 0) > 0 and not _beyond_share(case)
    return case.family in TORCH and serving(case) and not making and short


def _by_cache(case: Case) -> bool:
    """An engine that sizes a cache said that it is too small."""
    if case.family in LLAMA:
        return False  # their cache is as large as the context asks for
    said = case.says(r"KV cache|cache blocks|memory pool") or _wording(case) in CACHE_FULL
    return case.number("max_model_len") is not None or said


def is_torch(case: Case) -> bool:
    """PyTorch's allocator on a card, Metal aside; or the table it prints."""
    return (case.family.startswith("torch-") and case.family != "torch-mps") or case.family == "memory-summary"


def is_server(case: Case, names: tuple[str, ...]) -> bool:
    """One of these servers speaks, or its settings are mentioned."""
    if case.family in names or any(case.says(SERVER_WORDS.get(name, rf"\b{name}\b")) for name in names):
        return True
    return case.family in TORCH and serving(case) and not case.facts.words.isdisjoint(names)


def _has_expandable(case: Case) -> bool:
    """Whether this PyTorch knows expandable segments (2.1); by its version, else by its wording."""
    if case.facts.torch:
        return case.facts.torch >= (2, 1)
    return case.family == "torch-npu" or OLD_WORDING.search(case.statement.text) is None


def may_infer(case: Case) -> bool:
    """Nothing says that it trains."""
    return not (case.facts.trains or case.during("backward", "optimizer", "loss"))


def serving(case: Case) -> bool:
    """An inference server or a local runtime: nothing is trained."""
    around = case.family in TORCH and not case.facts.words.isdisjoint(families.AROUND)
    return case.family in (*families.SERVERS, *LLAMA) or (around and may_infer(case))


def _filled(case: Case) -> bool:
    return (is_server(case, ("vllm",)) or "vllm" in case.facts.words) and case.figures.allowed is None


CONDITIONS: Final[dict[str, Holds]] = {
    "above_limit": lambda case: _exceeds(case.figures.tried, _limit(case)),
    "bare_backend_buffer": _bare_backend_buffer,
    "beside_pool": _beside_pool,
    "by_cache": _by_cache,
    "cache_full": lambda case: _wording(case) in CACHE_FULL,
    "enough_free": enough_free,
    "expandable": _has_expandable,
    "filled": _filled,
    # an engine's share is so large that what comes beside it fails
    "fills_card": lambda case: _filled(case) or (is_server(case, ("sglang",)) and case.family in TORCH),
    "grew": lambda case: bool(case.grew_bytes),
    "host": _is_host,
    "job_fails": lambda case: case.job is not None and case.job.verdict is Fit.NOT,
    "job_fits": lambda case: case.job is not None and case.job.verdict in (Fit.FITS, Fit.CLOSELY),
    "joined": _joined,
    "kv_short": _kv_short,
    "late": lambda case: bool(case.facts.steps) and case.facts.steps[-1] >= 100 and case.figures.tried is not None,
    "library": _library,
    "limit_reached": _limit_reached,
    "live_and_free": _live_and_free,
    "may_infer": may_infer,
    # nothing says that it only runs a model
    "may_train": lambda case: not serving(case) and not case.during("generate") and case.family != "diffusers",
    "metal": _metal,
    "no_cache": _no_cache,
    "over_limit": lambda case: _exceeds(needed_bytes(case), _limit(case)),
    # the pieces alone would have been enough
    "pieces": lambda case: _joined(case) and (case.figures.unallocated or 0) >= (case.figures.tried or 0),
    "pool_full": _pool_full,
    "pools_serve": lambda case: 0 < (case.figures.tried or 0) <= (case.figures.pools or 0),
    "replay_avoids": lambda case: bool(case.replay_avoids),
    # TensorFlow takes nearly the whole card when it starts; its libraries get what is left
    "reserves_all": lambda case: _library(case) and case.says(TF_HANDLE),
    "running": lambda case: _refused_though_free(case) and (case.figures.reserved or 0) >= BEGUN,
    "server_filled": _server_filled,
    "serving": serving,
    "short": _short,
    "spilled": _spilled,
    "starting": lambda case: _refused_though_free(case) and _exceeds(BEGUN, case.figures.reserved),
    # less is free when an engine starts than its share of the card comes to
    "taken_before": lambda case: _exceeds(case.number("desired_bytes"), case.figures.free),
    "torch": is_torch,
    "without_others": lambda case: _served_with(case, case.figures.others),
    "without_outside": lambda case: _served_with(case, case.figures.outside),
}

Kind: TypeAlias = Callable[[Case, tuple[str, ...]], bool]
KINDS: Final[dict[str, Kind]] = {
    "during": lambda case, names: case.during(*names),
    "family": lambda case, names: case.family in names,
    "form": lambda case, names: case.statement.wording in names,
    "known": lambda case, names: None not in (getattr(case.figures, name) for name in names),
    "number": lambda case, names: None not in map(case.number, names),
    "server": is_server,
    "word": lambda case, names: not case.facts.words.isdisjoint(names),
    "wording": lambda case, names: _wording(case) in names,
}


INTERVAL: Final = lazy_pattern(r"(\w+)([\[(])([\d.]*),([\d.]*)([\])])")


def condition(when: str, says: str = "") -> Holds:
    """Whether all words hold, and the statement's own words match the pattern."""
    terms = [_either(term) for term in when.split()]
    if says:
        terms.append(lambda case: case.says(says))
    if len(terms) == 1:
        return terms[0]

    def holds(case: Case) -> bool:
        for term in terms:  # noqa: SIM110 -- a generator takes twice as long, and every failure asks every row
            if not term(case):
                return False
        return True

    return holds


@cache
def _either(term: str) -> Holds:
    words = [_word(word) for word in term.split("|")]
    return words[0] if len(words) == 1 else lambda case: any(word(case) for word in words)


@cache
def _word(word: str) -> Holds:
    if word.startswith("!"):
        denied = _word(word[1:])
        return lambda case: not denied(case)
    interval = INTERVAL.fullmatch(word)
    if interval is not None:
        return _within(*interval.groups())
    if word in CONDITIONS:
        return CONDITIONS[word]
    kind, _, text = word.partition(":")
    holds = KINDS[kind]
    names = tuple(name for part in text.split(",") for name in (getattr(families, part) if part.isupper() else [part]))
    return lambda case: holds(case, names)


def _within(name: str, first: str, low: str, high: str, last: str) -> Holds:
    quantity, least, most = QUANTITIES[name], float(low or "-inf"), float(high or "inf")
    opens, closes = first == "(", last == "]"

    def holds(case: Case) -> bool:
        value = quantity(case)
        if value is None or value < least or value > most:
            return False
        return (value > least or not opens) and (value < most or closes)

    return holds


def table(name: str) -> list[list[str]]:
    """The rows of a table beside this module; cells at the end of a row that are empty may be left out."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    return [row + [""] * (len(head) - len(row)) for row in rows]
