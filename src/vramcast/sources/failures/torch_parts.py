"""Other parts of PyTorch: Metal, main memory, pinned memory, shared memory of data loaders, torch_xla, DirectML.

[mps] pytorch/pytorch aten/src/ATen/mps/MPSAllocator.mm; its "GB" are 2^30 bytes, as in its `format_size`
[cpu] pytorch/pytorch c10/core/impl/alloc_cpu.cpp
[loader] pytorch/pytorch torch/csrc/DataLoader.cpp, torch/utils/data/dataloader.py, aten/src/ATen/MapAllocator.cpp
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

MPS_PARTS: Final = (
    r"MPS allocated: <allocated_bytes>",
    r"other allocations: <other_allocations_bytes>",
    r"max allowed: <allowed_bytes>",
    r"Tried to allocate <tried_bytes>(?: on (?:private|shared|scalar|small) pool)?",
    r"PYTORCH_MPS_HIGH_WATERMARK_RATIO=0\.0[^.]{0,120}",
)

METAL: Final = (
    Wording("mps-private-pool", "MPS backend out of memory", "", MPS_PARTS, ("on private pool",), versions="2.0 -"),
    Wording("mps-shared-pool", "MPS backend out of memory", "", MPS_PARTS, ("on shared pool",), versions="2.0 -"),
    Wording("mps-1.13", "MPS backend out of memory", r" \(MPS allocated", MPS_PARTS, versions="1.13 - 2.0"),
    Wording("title-only", "MPS backend out of memory", weak=True),
    Wording("mps-buffer-size", "Invalid buffer size: ", r"<tried_bytes>", versions="1.12 -"),
    Wording("command-buffer", "kIOGPUCommandBufferCallbackErrorOutOfMemory", weak=True),
)

CPU: Final = (
    Wording(
        "cpu-posix",
        "DefaultCPUAllocator: can't allocate memory",
        r": you tried to allocate <tried_bytes:b> bytes",
        (r"Error code (?P<error_code__>[0-9]{1,5})",),
        versions="1.1 -",
    ),
    Wording("cpu-windows", "DefaultCPUAllocator: not enough memory", r": you tried to allocate <tried_bytes:b> bytes"),
    Wording(
        "cpu-buy-ram",
        "not enough memory: you tried to allocate ",
        r"(?:<tried_bytes> ?\.|<tried_bytes:b>)",
        versions="- 1.0",
    ),
    Wording("cpu-posix", "posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0", versions="1.0 - 1.1"),
    Wording("cpu-negative", "alloc_cpu() seems to have been called with negative number", r": ?<tried_bytes:b>"),
    Wording("pinned", "CUDA error: out of memory", preceded="pin_memory"),
    Wording("pinned-host-alloc", "cudaHostAlloc", r".{0,120}?(?:failed|out of memory)"),
    Wording("pinned-register", "cudaHostRegister", r".{0,120}?(?:failed|out of memory)"),
    Wording("mmap", "unable to mmap ", r"<tried_bytes:b> bytes from file"),
)

LOADER: Final = (
    Wording(
        "bus-error",
        "DataLoader worker (pid ",
        r"<pid>\) is killed by signal: Bus error",
        (r"out of shared memory[^.]{0,80}\.",),
    ),
    Wording(
        "killed",
        "DataLoader worker (pid ",
        r"<pid>\) is killed by signal: (?P<reason__>Killed|Aborted|Segmentation fault)",
    ),
    Wording("exited", "DataLoader worker (pid(s) ", r"<pid>(?:, [0-9]{1,10}){0,64}\) exited unexpectedly"),
    Wording("bus-error", "Unexpected bus error encountered in worker", "", (r"insufficient shared memory[^.]{0,40}",)),
    Wording(
        "shm-open",
        "unable to open shared memory object",
        r" <(?P<name__>[^>]{1,120})>",
        (r"\((?P<error_code__>[0-9]{1,4})\)",),
    ),
    Wording("shm-write", "unable to write to file", r" </torch_[^>]{1,80}>", (r"No space left on device",)),
    Wording("shm-resize", "unable to resize file", r" </torch_[^>]{1,80}> to the right size"),
    Wording("shm-resize", "unable to allocate shared memory(shm)", r"(?: for file <[^>]{1,80}>)?"),
    Wording("too-many-files", "received 0 items of ancdata"),
)

FAMILIES: Final[dict[str, Family]] = {
    "torch-mps": Family("PyTorch, Apple Metal", METAL, source="pytorch/pytorch aten/src/ATen/mps/MPSAllocator.mm"),
    "torch-cpu": Family("PyTorch, main memory", CPU, "host", "pytorch/pytorch c10/core/impl/alloc_cpu.cpp"),
    "torch-dataloader": Family(
        "PyTorch, data loader workers", LOADER, "host", "pytorch/pytorch torch/csrc/DataLoader.cpp"
    ),
    "torch-directml": Family(
        "PyTorch, DirectML",
        (
            Wording(
                "video-memory",
                "Could not allocate tensor with ",
                r"<tried_bytes:b> bytes",
                (r"not enough GPU video memory available",),
            ),
            Wording("video-memory", "There is not enough GPU video memory available"),
            Wording("dml-allocator", "DML allocator out of memory"),
            Wording("e-outofmemory", "E_OUTOFMEMORY"),
            Wording("e-outofmemory", "8007000E", r"\b"),
        ),
        source="microsoft/DirectML, its PyTorch plugin",
    ),
}
