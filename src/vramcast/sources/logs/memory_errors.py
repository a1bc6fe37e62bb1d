"""Out-of-memory messages, as PyTorch words them before and since 2.1, and as ggml and the CUDA runtime do.

[torch] pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, `OutOfMemoryError` messages
[ggml] ggml-org/llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu `ggml_backend_cuda_buffer_type_alloc_buffer`
"""

from __future__ import annotations

import re
from typing import Final

from vramcast.sources.logs.found import OutOfMemoryMessage
from vramcast.sources.logs.wording import SIZE, Startup, Wording, size_of, wording

NEEDLES: Final = ("ut of memory", "cudaMalloc failed", "cudaErrorMemoryAllocation")

MESSAGES: Final[tuple[Wording, ...]] = (
    wording("ut of memory. Tried", r"(?P<oom__t>(?:CUDA|HIP|NPU|XPU|MPS|MUSA) out of memory\..{0,3000})"),
    wording("cudaMalloc failed", r"allocating (?P<oom_tried__mib>NUMBER) MiB on device \d{1,3}: cudaMalloc failed"),
    wording("buffer of size", r"failed to allocate \w{1,40} buffer of size (?P<oom_tried__b>NUMBER)"),
    wording("ut of memory", r"(?P<oom_plain__t>(?:CUDA|HIP) (?:runtime )?error.{0,200}out of memory)"),
)
"""Statements of every reader; `oom` holds the whole message."""

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "tried": (rf"Tried to allocate ({SIZE})",),
    "total": (rf"total capacity of ({SIZE})", rf"({SIZE}) total capacity"),
    "free": (rf"of which ({SIZE}) is free", rf"; ({SIZE}) free"),
    "process": (rf"this process has ({SIZE}) memory in use",),
    "allocated": (rf"({SIZE}) is allocated by PyTorch", rf"({SIZE}) already allocated"),
    "unallocated": (rf"({SIZE}) is reserved by PyTorch but unallocated",),
    "reserved": (rf"({SIZE}) reserved in total by PyTorch",),
    "pools": (rf"with ({SIZE}) allocated in private pools",),
}
"""Figure of a PyTorch message -> patterns; the first that fits."""

OTHERS: Final = re.compile(rf"Process \d{{1,10}} has ({SIZE}) memory in use")


def out_of_memory(startup: Startup, *, stage: str) -> OutOfMemoryMessage | None:
    """The first message of a start-up: what follows it are echoes of the same failure."""
    message = next(iter(startup.values("oom")), None)
    if message is not None:
        return _torch(message, stage)
    tried = next(iter(startup.values("oom_tried")), None)
    if tried is not None or startup.values("oom_plain"):
        return OutOfMemoryMessage(tried=tried, stage=stage)
    return None


def _torch(message: str, stage: str) -> OutOfMemoryMessage:
    sizes = {part: _first(message, patterns) for part, patterns in PARTS.items()}
    reserved, allocated = sizes.pop("reserved"), sizes["allocated"]
    if sizes["unallocated"] is None and reserved is not None and allocated is not None:
        sizes["unallocated"] = max(0, reserved - allocated)
    others = [size for size in map(size_of, OTHERS.findall(message)) if size is not None]
    return OutOfMemoryMessage(**sizes, others=sum(others) if others else None, stage=stage)


def _first(message: str, patterns: tuple[str, ...]) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, message)
        if match is not None:
            return size_of(match[1])
    return None
