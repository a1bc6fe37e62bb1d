"""Other frameworks: TensorFlow, JAX and XLA, MXNet, PaddlePaddle, CuPy, RAPIDS, MindSpore, OneFlow, Julia, MLX.

[tf] tensorflow/tensorflow third_party/xla/xla/tsl/framework/bfc_allocator.cc; sizes are powers of 1024
[xla] openxla/xla docs/errors; xla/service/hlo_rematerialization.cc; xla/pjrt
[paddle] PaddlePaddle/Paddle paddle/phi/core/memory/allocation/cuda_allocator.cc; "GB" are 2^30 bytes
[cupy] cupy/cupy cupy/cuda/memory.pyx `OutOfMemoryError`
[rmm] rapidsai/rmm include/rmm/mr/cuda_memory_resource.hpp, pool_memory_resource.hpp
[mindspore] mindspore-ai/mindspore mindspore/ccsrc/runtime
[julia] JuliaGPU/CUDA.jl src/pool.jl `OutOfGPUMemoryError`
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

BFC_TABLE: Final = (
    r"Limit: {1,8}<limit_bytes:b>",
    r"InUse: {1,8}<allocated_bytes:b>",
    r"MaxInUse: {1,8}<allocated_peak_bytes:b>",
    r"NumAllocs: {1,8}<blocks>",
    r"MaxAllocSize: {1,8}INTEGER",
    r"LargestFreeBlock: {1,8}<largest_free_bytes:b>",
)

TENSORFLOW: Final = (
    Wording(
        "bfc",
        "OOM when allocating tensor with shape",
        r" ?(?P<shape__>\[[0-9,]{0,200}\])",
        (
            r"and type (?P<dtype__>[\w<>]{1,24})",
            r"device:GPU:<device>",
            r"by allocator (?P<allocator__>[\w]{1,40})",
            r"\[Op:(?P<name__>\w{1,60})\]",
        ),
        reach=400,
    ),
    Wording(
        "bfc",
        "OOM when allocating tensor of shape",
        r" ?(?P<shape__>\[[0-9,]{0,200}\])",
        (r"and type (?P<dtype__>[\w<>]{1,24})",),
    ),
    Wording("bfc", "OOM when allocating", weak=True),
    Wording(
        "bfc-ran-out",
        "ran out of memory trying to allocate ",
        r"<tried_bytes>(?: \(rounded to <buffer_bytes:b>\))?",
        (r"requested by op (?P<name__>[\w/.:-]{1,160})", r"with freed_by_count=INTEGER"),
        before=r"Allocator \((?P<allocator__>\w{1,40})\)",
    ),
    Wording("bfc-dump", "Stats:", r" ?Limit:", BFC_TABLE, reach=700),
    Wording(
        "device",
        "failed to allocate ",
        r"SIZE \(<tried_bytes:b> bytes\) from device",
        (r"CUDA_ERROR_OUT_OF_MEMORY(?:: out of memory)?", r"hipErrorOutOfMemory"),
    ),
    Wording("host-pinned", "could not allocate pinned host memory of size", r":? ?<tried_bytes:b>"),
    Wording("host-pinned", "failed to alloc ", r"<tried_bytes:b> bytes on host"),
    Wording("host", "Allocation of ", r"<tried_bytes:b> exceeds 10% of free system memory"),
    Wording("dst-tensor", "Dst tensor is not initialized"),
    Wording("src-tensor", "Failed copying input tensor from", r".{0,200}?Dst tensor is not initialized"),
    Wording("resource-exhausted", "ResourceExhaustedError", weak=True),
    Wording("blas-launch", "Blas GEMM launch failed", r"(?: ?: ?(?P<reason__>[\w=., ]{1,160}))?"),
    Wording("blas-launch", "Blas xGEMM", r".{0,20}?launch failed"),
)

XLA: Final = (
    Wording(
        "hbm",
        "Ran out of memory in memory space ",
        r"(?P<memory_space__>\w{2,20})",
        (
            r"Used <used_bytes> of <limit_bytes>",
            r"Exceeded \w{2,20} capacity by <exceeded_bytes>",
            r"Total \w{2,20} usage >= <needed_bytes>",
            r"reserved <reserved_bytes>",
            r"program <program_bytes>",
            r"arguments <arguments_bytes>",
            r"output <output_bytes>",
        ),
        reach=900,
    ),
    Wording(
        "program",
        "Program ",
        r"(?:\w{2,20} )?(?:memory )?requirement:? <needed_bytes>",
        (r"of <limit_bytes> \w{2,20}",),
    ),
    Wording(
        "reserve",
        "Attempting to reserve ",
        r"<tried_bytes> at the bottom of memory",
        (r"There are <free_bytes> free", r"and <largest_free_bytes> reservable"),
    ),
    Wording(
        "allocate",
        "Attempting to allocate ",
        r"<tried_bytes>\. That was not possible",
        (
            r"There are <free_bytes> free",
            r"largest contiguous region of free memory is <largest_free_bytes>",
            r"0x0x[0-9]_(?P<memory_space__>\w{2,12})",
        ),
    ),
    Wording(
        "request",
        "Failed to allocate request for ",
        r"SIZE \(<tried_bytes:b>B\)",
        (r"on device ordinal <device>",),
    ),
    Wording(
        "trying",
        "Out of memory while trying to allocate ",
        r"<tried_bytes>",
        (
            r"BufferAssignment OOM Debugging",
            r"parameter allocation: ?<arguments_bytes>",
            r"temp(?:orary)? allocation: ?<program_bytes>",
            r"output allocation: ?<output_bytes>",
            r"total allocation: ?<needed_bytes>",
        ),
        reach=900,
    ),
    Wording("allocating", "Out of memory allocating ", r"<tried_bytes:b> bytes(?! \(allocated so far)"),
    Wording(
        "rematerialization",
        "Can't reduce memory use below ",
        r"<limit_bytes>(?: \([0-9]{1,20} bytes\))? by rematerialization",
        (r"only reduced to SIZE \(<needed_bytes:b> bytes\)", r"only reduced to <needed_bytes>"),
    ),
    Wording("constant", "Failed to allocate ", r"<tried_bytes:b> bytes for new constant"),
    Wording("scoped-vmem", "exceeds the scoped vmem limit", "", before=r"size <needed_bytes>"),
    Wording("scoped-vmem", "Insufficient scoped vmem: ", r"<needed_bytes> > <limit_bytes>"),
    Wording("pjrt", "RESOURCE_EXHAUSTED: Error allocating device buffer", weak=True),
    Wording("host", "Failed to allocate pinned host memory", r"(?: of size <tried_bytes:b>)?"),
    Wording("resource-exhausted", "RESOURCE_EXHAUSTED", weak=True),
)

MXNET: Final = (
    Wording("cudamalloc", "cudaMalloc retry failed: out of memory"),
    Wording("cudamalloc", "cudaMalloc failed: out of memory", preceded="storage_manager"),
    Wording("gpu-pooled", "Memory allocation failed", r".{0,40}?out of memory", preceded="storage"),
    Wording("cpu", "Failed to allocate CPU Memory"),
    Wording("naive", "Check failed: e == cudaSuccess || e == cudaErrorCudartUnloading", r".{0,20}?out of memory"),
    Wording("naive", "Check failed: error == cudaSuccess (2 vs. 0) : out of memory"),
)

PADDLE: Final = (
    Wording(
        "gpu",
        "Out of memory error on GPU ",
        r"<device>",
        (
            r"Cannot allocate <tried_bytes>(?: memory)? on",
            r"on (?:GPU|XPU|NPU) [0-9]{1,4}, <allocated_bytes>(?: memory)? has been allocated",
            r"available memory is only <free_bytes>",
            r"limited by FLAGS_gpu_memory_limit_mb.{0,40}?(?P<allowed_bytes__m>INTEGER)",
        ),
        reach=900,
    ),
    Wording(
        "device",
        "Out of memory error on ",
        r"(?P<name__>[A-Za-z:]{2,20}) ?<device>?",
        (r"Cannot allocate <tried_bytes>", r"available memory is only <free_bytes>"),
    ),
    Wording("pinned", "Fail to alloc memory of ", r"<tried_bytes:b> size"),
    Wording("cpu", "Fail to alloc memory of ", r"<tried_bytes>"),
    Wording("ascend", "Alloc device memory failed", "", (r"size[:=] ?<tried_bytes:b>",)),
)

CUPY: Final = (
    Wording(
        "out-of-memory",
        "Out of memory allocating ",
        r"<tried_bytes:b> bytes \(allocated so far: <allocated_bytes:b> bytes",
        (r"limit set to: <allowed_bytes:b> bytes",),
    ),
    Wording(
        "out-of-memory", "out of memory to allocate ", r"<tried_bytes:b> bytes \(total <allocated_bytes:b> bytes\)"
    ),
    Wording("out-of-memory", "cupy.cuda.memory.OutOfMemoryError", weak=True),
    Wording("runtime", "cudaErrorMemoryAllocation: out of memory", "", before=r"CUDARuntimeError"),
)

RMM: Final = (
    Wording(
        "pool",
        "Maximum pool size exceeded",
        r"(?: \(failed to allocate <tried_bytes>\))?",
        (r"pool_memory_resource\.hpp",),
        before=r"RMM failure at",
    ),
    Wording(
        "bad-alloc",
        "std::bad_alloc: out_of_memory",
        r": CUDA error",
        (r"failed to allocate <tried_bytes:b> bytes", r"cudaErrorMemoryAllocation out of memory"),
    ),
    Wording("bad-alloc", "out_of_memory: CUDA error at", "", (r"cudaErrorMemoryAllocation out of memory",)),
    Wording("failure", "RMM failure at", r".{0,200}?(?:RMM_ERROR_OUT_OF_MEMORY|out of memory|Out of memory)"),
    Wording("old", "RMM_ERROR_OUT_OF_MEMORY"),
    Wording("cudf-limit", "exceeds the column size limit"),
    Wording("spark", "GpuRetryOOM"),
    Wording("spark", "GpuSplitAndRetryOOM"),
    Wording("spark", "GPU OutOfMemory: "),
)

MINDSPORE: Final = (
    Wording(
        "alloc",
        "memory isn't enough and alloc failed",
        "",
        (r"alloc size: <tried_bytes:b> ?B?", r"(?:kernel|actor) name: (?P<name__>[\w/.:-]{1,160})"),
        before=r"Device\(id:<device>\)",
    ),
    Wording(
        "pool",
        "Memory not enough: current free memory size[",
        r"<free_bytes:b>\] is smaller than required size\[<tried_bytes:b>\]",
    ),
    Wording(
        "pool",
        "Out of Memory!!! Request memory size: ",
        r"<tried_bytes:b>",
        (r"Memory Statistic", r"Actual memory usage:? ?<allocated_bytes>"),
    ),
    Wording("max-device", "Malloc for kernel's memory failed"),
)

ONEFLOW: Final = (
    Wording("bin", "CUDA out of memory when allocate ", r"<tried_bytes:b> bytes memory"),
    Wording("out-of-memory", "oneflow._oneflow_internal.exception.OutOfMemoryException"),
)

JULIA: Final = (
    Wording(
        "gpu",
        "Out of GPU memory",
        r"(?: trying to allocate <tried_bytes>)?",
        (
            r"Effective GPU memory usage: NUMBER% \(<used_bytes>/<total_bytes>\)",
            r"Memory pool usage: <allocated_bytes> \(<reserved_bytes> reserved\)",
            r"Memory pool usage: <reserved_bytes> \(<allocated_bytes> allocated",
            r"allocated, <unallocated_bytes> cached\)",
        ),
    ),
    Wording("host", "ERROR: OutOfMemoryError()"),
)

MLX: Final = (
    Wording(
        "malloc",
        "[metal::malloc] ",
        r"Attempting to allocate <tried_bytes>",
        (r"maximum allowed buffer size(?: of <limit_bytes:b> bytes)?",),
    ),
    Wording("malloc", "[malloc_or_wait] Unable to allocate ", r"<tried_bytes:b> bytes"),
    Wording("malloc", "[malloc] Unable to allocate ", r"<tried_bytes:b> bytes"),
    Wording("resource-limit", "[metal::malloc] Resource limit", r" \(<limit_bytes:b>\) exceeded"),
    Wording("command-buffer", "[METAL] Command buffer execution failed: Insufficient Memory"),
)

FAMILIES: Final[dict[str, Family]] = {
    "tensorflow": Family("TensorFlow", TENSORFLOW, source="tensorflow/tensorflow xla/tsl/framework/bfc_allocator.cc"),
    "paddle": Family(
        "PaddlePaddle", PADDLE, source="PaddlePaddle/Paddle paddle/phi/core/memory/allocation/cuda_allocator.cc"
    ),
    "jax": Family("JAX, XLA and TPUs", XLA, source="openxla/xla docs/errors, xla/service/hlo_rematerialization.cc"),
    "mxnet": Family("MXNet", MXNET, source="apache/mxnet src/storage"),
    "cupy": Family("CuPy", CUPY, source="cupy/cupy cupy/cuda/memory.pyx"),
    "rmm": Family("RAPIDS: RMM, cuDF, Spark", RMM, source="rapidsai/rmm include/rmm/mr"),
    "mindspore": Family("MindSpore", MINDSPORE, source="mindspore-ai/mindspore mindspore/ccsrc/runtime"),
    "oneflow": Family("OneFlow", ONEFLOW, source="Oneflow-Inc/oneflow oneflow/core/vm"),
    "julia": Family("Julia, CUDA.jl", JULIA, source="JuliaGPU/CUDA.jl src/pool.jl"),
    "mlx": Family("MLX, Apple", MLX, source="ml-explore/mlx mlx/backend/metal/allocator.cpp"),
}
