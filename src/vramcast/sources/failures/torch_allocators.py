"""PyTorch's caching allocators: CUDA's, and those made after it for HIP, XPU, NPU, MUSA, MLU and others.

They share their sentences and differ in the name of the device, so one table serves all. "cached" up to torch 1.3 is
what later versions call "reserved but unallocated": the source prints cached less allocated.

[cuda] pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, c10/cuda/CUDAMallocAsyncAllocator.cpp
[xpu] pytorch/pytorch c10/xpu/XPUCachingAllocator.cpp
[npu] Ascend/pytorch torch_npu/csrc/core/npu/NPUCachingAllocator.cpp, NPUWorkspaceAllocator.cpp
[musa] MooreThreads/torch_musa torch_musa/csrc/core/MUSACachingAllocator.cpp
[mlu] Cambricon/torch_mlu, its caching allocator
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

TRIED: Final = r"[.!:]{0,2} ?Tried to allocate ?<tried_bytes>"

PARTS: Final = (
    r"\b(?:[A-Z]{2,8}|Device) <device>(?:;| has a total)",
    r"total capaci?ty of ?<total_bytes>",
    r"<total_bytes> total capacity",
    r"of which ?<free_bytes> ?is free",
    r"of which (?P<free_bytes__>NUMBER (?:bytes|[KMGT]iB))is free",
    r"; <free_bytes> free",
    r"this process has ?<process_bytes> memory in use",
    r"<allowed_bytes> allowed;",
    r"<allocated_bytes> ?is allocated by PyTorch",
    r"<allocated_bytes> already allocated",
    r"<active_bytes> current active",
    r"with <private_pools_bytes> allocated in private pools",
    r"<unallocated_bytes> ?is reserved by PyTorch but unallocated",
    r"<reserved_bytes> reserved in total by PyTorch",
    r"; <unallocated_bytes> cached",
    r"Requested size: ?<tried_bytes>",
    r"(?:ALLOC_CONF(?:=[\w:,.]{1,60} to avoid fragmentation)?|to avoid fragmentation\.?)",
    r"unoccupied cached memory",
    r"CUDAGRAPHS=0",
)
"""Each figure on its own, since logs cut and shorten messages."""

MARKS: Final = (
    ("fraction", r"<allowed_bytes> allowed;"),
    ("pools", r"allocated in private pools"),
    ("other-process", r"Process [0-9]{1,10} has ?SIZE memory in use"),
)
OTHERS: Final = r"Process [0-9]{1,10} has ?<other_processes_bytes> memory in use"

LAYOUTS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("capacity-2.13-vllm", ("total capacity of", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"), "2.10 - 2.13"),
    ("capacity-2.10", ("total capacity of", "PYTORCH_ALLOC_CONF"), "2.10 - 2.13"),
    ("capacty-2.1", ("total capacty of",), "2.1"),
    ("capacity-2.2", ("total capacity of",), "2.2 - 2.9"),
    ("reserved+active", ("current active", "reserved in total"), "all"),
    ("reserved-advice-1.10", ("reserved in total", "reserved memory is >>"), "1.10 - 2.0"),
    ("reserved-1.4", ("already allocated", "reserved in total"), "1.4 - 1.9"),
    ("cached-1.0", ("already allocated", " cached"), "0.4.1 - 1.3"),
)
"""Name, words that must stand behind "Tried to allocate", versions of torch; the first that fits."""

REACH: Final = 1_600


def _worded(words: str, rest: str, name: str, versions: str, *, holds: tuple[str, ...] = ()) -> Wording:
    return Wording(name, words, rest, PARTS, holds, REACH, sums=OTHERS, marks=MARKS, versions=versions)


def allocator_wordings(device: str) -> tuple[Wording, ...]:
    """Everything that the caching allocator of a device says."""
    words = f"{device} out of memory"
    return (
        Wording("1eb", words, r"\. ?Tried to allocate more than 1EB", versions="1.9 - 2.13"),
        Wording(
            "preempted-2.13",
            words,
            r"\.? ?Allocation (?:was )?preemptively rejected",
            PARTS,
            reach=REACH,
            versions="2.12 - 2.13",
        ),
        *(_worded(words, TRIED, name, versions, holds=holds) for name, holds, versions in LAYOUTS),
        _worded(words, TRIED, "tried-only", "all"),
        Wording("title-only", words, weak=True, versions="all"),
    )


def _errors(device: str, prefix: str) -> tuple[Wording, ...]:
    """What the check of a runtime call says."""
    at = r"(?: \([a-z]{2,8}ErrorMemoryAllocation\))?"
    told = (r"Search for [`']?[a-z]{2,8}ErrorMemoryAllocation", r"kernel errors might be asynchronously reported")
    return (
        Wording("driver", f"{device} error: out of memory", at, told, versions="1.5 - 2.13"),
        Wording("driver", f"{device} error:out of memory"),  # as people type it
        Wording("driver", f"{device} error: memory allocation", "", versions="2.0 - 2.13"),
        Wording("driver-api", f"{device} driver error: out of memory", versions="2.1 - 2.13"),
        Wording("runtime-0.4", f"{prefix} runtime error (2) : out of memory", versions="0.1 - 1.4"),
        Wording("runtime-0.4", f"{prefix} runtime error (2): out of memory", versions="0.1 - 1.4"),
        Wording("runtime-0.4", f"{prefix} runtime err(2): out of memory", versions="0.1 - 1.4"),
    )


ASYNC: Final = Wording(
    "cudamallocasync-2.0",
    "allocation on device ",
    r"(?:<device> ?)?would exceed allowed memory",
    (
        r"Currently allocated ?: ?<allocated_bytes>",
        r"Requested ?: ?<tried_bytes>",
        r"Device limit ?: ?<total_bytes>",
        r"Free \(according to (?:CUDA|HIP)\) ?: ?<free_bytes>",
        r"PyTorch limit \(set by user-supplied memory fraction\) ?: ?<allowed_bytes>",
    ),
    versions="2.0 - 2.13",
)


def _headless(layouts: tuple[tuple[str, tuple[str, ...], str], ...]) -> tuple[Wording, ...]:
    """Where a log lost the first words, the layout still tells PyTorch's."""
    return tuple(
        _worded("tried to allocate", r" ?<tried_bytes>", name, versions, holds=holds)
        for name, holds, versions in layouts
    )


HIP_LAYOUTS: Final = (("capacity-2.2", ("total capacity of", "PYTORCH_HIP_ALLOC_CONF"), "2.2 - 2.8"),)

NPU: Final = (
    Wording(
        "workspace",
        "NPU out of memory",
        r"\. NPUWorkspaceAllocator tried to allocate <tried_bytes>",
        (r"\(NPU <device>;", r"<total_bytes> total capacity", r"<free_bytes> free"),
    ),
    Wording("device-id", "NPU out of memory", r"\. device id: <device>"),
    Wording(
        "pinned",
        "malloc pin memory failed, host out of memory",
        r", [RT]ried to allocate size: <tried_bytes:b>",
        (r"total_allocated_memory: <allocated_bytes:b>", r"total_reserved_memory: <reserved_bytes:b>"),
    ),
    *(Wording(f"acl-{code}", f"error code is {code}") for code in ("200000", "207001", "207005", "207018")),
    Wording("physical", "malloc physical memory failed", r"(?:, runtime result = (?P<error_code__>[0-9]{1,8}))?"),
    Wording("acl-allocation", "ACL_ERROR_RT_MEMORY_ALLOCATION"),
    Wording("acl-partition", "ACL_ERROR_GE_EXEC_LOAD_MODEL_PARTITION_FAILED"),
    Wording("acl-storage", "ACL_ERROR_STORAGE_OVER_LIMIT"),
    Wording("acl-bad-alloc", "ACL_ERROR_BAD_ALLOC"),
    Wording(
        "el0004", "EL0004", r"[:\]]?", (r"Failed to allocate memory", r"Possible Cause: ?(?P<reason__>[^.]{1,120})")
    ),
    Wording("halMalloc", "halMemAlloc failed", "", (r"size[=:] ?<tried_bytes:b>", r"device_?id[=:] ?<device>")),
    Wording("rtMalloc", "rtMalloc failed", "", (r"size[=:] ?<tried_bytes:b>",)),
    Wording("memory-error", "ERR00006", r" (?:PTA )?memory error"),
    Wording(
        "pta-err00100",
        "ERR00100",
        r" PTA call acl api failed",
        ("error code is (?P<error_code__>[0-9]{6})",),
        ("memory",),
        800,
    ),
)

FAMILIES: Final[dict[str, Family]] = {
    "torch-hip": Family(
        "PyTorch, ROCm",
        (
            *allocator_wordings("HIP"),
            *_errors("HIP", "hip"),
            Wording("hip-error", "hipErrorOutOfMemory"),
            Wording("malloc", "hipMalloc failed: out of memory"),
            *_headless(HIP_LAYOUTS),
        ),
        source="pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, translated by hipify",
    ),
    "torch-cuda": Family(
        "PyTorch, CUDA",
        (
            *allocator_wordings("CUDA"),
            *_errors("CUDA", "cuda"),
            ASYNC,
            *_headless(LAYOUTS),
            Wording("exception-only", "torch.cuda.OutOfMemoryError", ":", weak=True, versions="1.13 - 2.4"),
            Wording("exception-only", "torch.OutOfMemoryError", ":", weak=True, versions="2.5 -"),
        ),
        source="pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, CUDAMallocAsyncAllocator.cpp, CUDAException.cpp",
    ),
    "torch-xpu": Family(
        "PyTorch, Intel XPU",
        (
            *allocator_wordings("XPU"),
            Wording(
                "block-limit",
                "Current platform can NOT allocate memory block with size larger than ",
                r"<limit_bytes>! ?Tried to allocate ?<tried_bytes>",
                PARTS,
                reach=REACH,
            ),
            Wording("ur-device", "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
            Wording("ur-resources", "UR_RESULT_ERROR_OUT_OF_RESOURCES"),
            Wording("pi-resources", "PI_ERROR_OUT_OF_RESOURCES"),
            Wording("pi-host", "PI_ERROR_OUT_OF_HOST_MEMORY"),
            Wording("level-zero", "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
        ),
        source="pytorch/pytorch c10/xpu/XPUCachingAllocator.cpp",
    ),
    "torch-npu": Family(
        "PyTorch, Ascend NPU",
        (*NPU, *allocator_wordings("NPU")),
        source="Ascend/pytorch torch_npu/csrc/core/npu/NPUCachingAllocator.cpp, NPUWorkspaceAllocator.cpp",
    ),
    "torch-musa": Family(
        "PyTorch, Moore Threads MUSA",
        (*allocator_wordings("MUSA"), *_errors("MUSA", "musa")),
        source="MooreThreads/torch_musa torch_musa/csrc/core/MUSACachingAllocator.cpp",
    ),
    "torch-mlu": Family(
        "PyTorch, Cambricon MLU",
        (*allocator_wordings("MLU"), Wording("cnrt", "CNRT error: ", r"(?:out of memory|no memory)")),
        source="Cambricon/torch_mlu, its caching allocator",
    ),
    "torch-gcu": Family("PyTorch, Enflame GCU", allocator_wordings("GCU"), source="after pytorch/pytorch"),
    "torch-hpu": Family(
        "PyTorch, Gaudi HPU",
        (
            Wording(
                "devmem",
                "allocation failed for size::",
                r" ?<tried_bytes:b>",
                (r"\(NUMBER\) ?MB",),
                before=r"MODULE:(?P<reason__>[A-Z_]{3,20})",
            ),
            *allocator_wordings("HPU"),
            Wording("workspace", "HPU memory allocation failed"),
            Wording("graph", "Graph compile failed", r".{0,200}?(?:memory|workspace)"),
            Wording("hbm", "syn_device_malloc", r".{0,80}?fail"),
        ),
        source="HabanaAI/gaudi-pytorch-bridge device_memory.cpp",
    ),
    "torch-device": Family(
        "PyTorch, another device",
        (
            *(
                _worded("out of memory. tried to allocate", r" ?<tried_bytes>", name, versions, holds=holds)
                for name, holds, versions in LAYOUTS
            ),
            Wording("tried-only", "tried to allocate", r" ?<tried_bytes>", weak=True),
        ),
        source="allocators made after pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp",
    ),
}
"""Of two that word the same, the first speaks."""
