"""NVIDIA's and AMD's libraries: failures that are memory in disguise, and failures that are not about memory at all.

[torch] pytorch/pytorch aten/src/ATen/cuda/Exceptions.h, CUDABlas.cpp, CublasHandlePool.cpp, aten/src/ATen/native/cudnn
[nccl] NVIDIA/nccl src/include/checks.h, src/include/alloc.h, src/debug.cc
[triton] triton-lang/triton python/triton/runtime/errors.py `OutOfResources`
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

CALLING: Final = r" ?,? when calling `?(?P<call__>[\w:]{1,80}(?:\([\w*&, >.-]{0,160}\))?)"


def _status(status: str, name: str, *, weak: bool = False) -> tuple[Wording, ...]:
    """A library's status: as PyTorch words it, as others do, and bare."""
    return (
        Wording(f"{name}-torch", f"CUDA error: {status}", CALLING),
        Wording(f"{name}-torch", f"HIP error: {status}", CALLING),
        Wording(f"{name}-torch", f"cuDNN error: {status}", r"(?: You can try to repro)?"),
        Wording(f"{name}-torch", f"cusolver error: {status}", CALLING),
        Wording(name, status, "", before=r"(?P<call__>cu[a-z]{3,8}[A-Z]\w{2,60}\([^()]{0,60}\))", weak=weak),
    )


CUBLAS: Final = (
    Wording("alloc-failed", "CUBLAS failure 3", r": CUBLAS_STATUS_ALLOC_FAILED(?: ; GPU=<device>)?"),
    *_status("CUBLAS_STATUS_ALLOC_FAILED", "alloc-failed"),
    *_status("HIPBLAS_STATUS_ALLOC_FAILED", "alloc-failed"),
    *_status("ROCBLAS_STATUS_MEMORY_ERROR", "alloc-failed"),
    *_status("CUBLAS_STATUS_NOT_INITIALIZED", "not-initialized"),
    *_status("HIPBLAS_STATUS_NOT_INITIALIZED", "not-initialized"),
    *_status("CUBLAS_STATUS_INTERNAL_ERROR", "internal-error"),
    *_status("CUBLAS_STATUS_EXECUTION_FAILED", "execution-failed"),
    *_status("CUBLAS_STATUS_NOT_SUPPORTED", "not-supported"),
    Wording("mxnet", "Create cublas handle failed", before=r"err == (?P<error_code__>CUBLAS_STATUS_\w{1,20})"),
    Wording("tensorflow", "failed to create cublas handle", r"(?:: (?P<error_code__>[\w ]{1,60}))?"),
    Wording("failure", "CUBLAS failure ", r"(?P<error_code__>[0-9]{1,3})"),
    Wording("cublaslt-heuristic", "cublasLtMatmulAlgoGetHeuristic", r".{0,80}?fail"),
    Wording(
        "resource", "resource allocation failed when calling `cublasCreate(handle)`", before=r"cublas runtime error : $"
    ),
    Wording("resource", "cublas runtime error : resource allocation failed"),
    Wording("resource", "cublas runtime error : the GPU program failed to execute"),
)

CUDNN: Final = (
    Wording("alloc-failed", "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"),
    Wording("not-initialized", "Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED"),
    Wording("internal-error", "Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR"),
    *_status("CUDNN_STATUS_ALLOC_FAILED", "alloc-failed"),
    *_status("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "alloc-failed"),
    *_status("CUDNN_STATUS_NOT_INITIALIZED", "not-initialized"),
    *_status("CUDNN_STATUS_INTERNAL_ERROR", "internal-error"),
    *_status("CUDNN_STATUS_EXECUTION_FAILED", "execution-failed"),
    *_status("CUDNN_STATUS_NOT_SUPPORTED", "not-supported"),
    *_status("miopenStatusAllocFailed", "alloc-failed"),
    *_status("miopenStatusInternalError", "internal-error"),
    Wording("no-algorithm", "Unable to find a valid cuDNN algorithm to run convolution"),
    Wording("no-engine", "GET was unable to find an engine to execute this computation"),
    Wording("no-engine", "FIND was unable to find an engine to execute this computation"),
    Wording("no-algorithm", "Failed to get convolution algorithm. This is probably because cuDNN failed to initialize"),
    Wording("no-algorithm", "No algorithm worked!"),
    Wording("no-algorithm", "cuDNN isn't found ", r"(?:FWD|BWD) algo for convolution"),
    Wording("workspace", "cuDNN requires workspace of ", r"<tried_bytes:b>"),
    Wording(
        "mxnet", "Failed to find any forward convolution algorithm", r".{0,200}?workspace size of <limit_bytes:b> bytes"
    ),
)

SOLVERS: Final = (
    *_status("CUSOLVER_STATUS_ALLOC_FAILED", "cusolver-alloc"),
    *_status("CUSOLVER_STATUS_NOT_INITIALIZED", "cusolver-not-initialized"),
    *_status("CUSOLVER_STATUS_INTERNAL_ERROR", "cusolver-internal"),
    *_status("CUSPARSE_STATUS_ALLOC_FAILED", "cusparse-alloc"),
    *_status("CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", "cusparse-resources"),
    *_status("CUSPARSE_STATUS_NOT_INITIALIZED", "cusparse-not-initialized"),
    *_status("CUFFT_ALLOC_FAILED", "cufft-alloc"),
    *_status("CUFFT_INTERNAL_ERROR", "cufft-internal"),
    *_status("CURAND_STATUS_ALLOCATION_FAILED", "curand-alloc"),
    *_status("CURAND_STATUS_INITIALIZATION_FAILED", "curand-init"),
    *_status("CUTENSOR_STATUS_ALLOC_FAILED", "cutensor-alloc"),
    *_status("CUTENSOR_STATUS_INSUFFICIENT_WORKSPACE", "cutensor-workspace"),
    Wording("nvrtc", "NVRTC_ERROR_OUT_OF_MEMORY"),
    Wording("npp", "NPP_MEMORY_ALLOCATION_ERR"),
    Wording("nvjpeg", "NVJPEG_STATUS_ALLOCATOR_FAILURE"),
    Wording("nvml", "NVML_ERROR_MEMORY"),
    Wording("nvml", "NVMLError_InsufficientMemory"),
    Wording("nvenc", "NV_ENC_ERR_OUT_OF_MEMORY"),
    Wording("nvenc", "OpenEncodeSessionEx failed: out of memory"),
)

NCCL: Final = (
    Wording("out-of-memory", "Cuda failure 'out of memory'"),
    Wording("out-of-memory", "Cuda failure 2 'out of memory'"),
    Wording("out-of-memory", "HIP failure 'out of memory'"),
    Wording("calloc", "Failed to CUDA calloc ", r"(?:async )?<tried_bytes:b> bytes"),
    Wording("calloc", "Failed to CUDA host alloc ", r"<tried_bytes:b> bytes"),
    Wording("malloc", "Failed to malloc ", r"<tried_bytes:b> bytes"),
    Wording("cumem", "Failed to cuMemCreate ", r"<tried_bytes:b>"),
    Wording(
        "unhandled",
        "ncclUnhandledCudaError",
        r": Call to CUDA function failed",
        (r"Cuda failure (?:[0-9]{1,4} )?'(?P<reason__>[^']{1,60})'",),
    ),
    Wording(
        "unhandled",
        "unhandled cuda error",
        "",
        (r"NCCL version (?P<name__>[0-9.+a-z]{1,20})", r"Cuda failure (?:[0-9]{1,4} )?'(?P<reason__>[^']{1,60})'"),
    ),
    Wording(
        "unhandled-system",
        "unhandled system error",
        "",
        (r"Last error: (?P<reason__>[^\n]{1,80})", r"NCCL version (?P<name__>[0-9.+a-z]{1,20})"),
    ),
    Wording(
        "shm",
        "Error while creating shared memory segment",
        r"(?: /?(?P<name__>[\w./-]{1,80}))?(?: \(size <tried_bytes:b>\))?",
    ),
    Wording("shm", "Call to posix_fallocate failed: No space left on device"),
    Wording("shm", "Call to ftruncate failed", r".{0,60}?No space left"),
)

RUNTIME: Final = (
    Wording("allocation", "cudaErrorMemoryAllocation", r"(?:[ :(]{1,3}out of memory\)?)?"),
    Wording("driver", "CUDA_ERROR_OUT_OF_MEMORY", r"(?:: out of memory)?"),
    Wording("malloc", "cudaMalloc failed: out of memory"),
    Wording("malloc", "cudaMalloc", r"(?:Async|Managed|Host)?.{0,120}?(?:failed|returned|error).{0,40}?out of memory"),
    Wording("runtime", "CUDA runtime error", r".{0,80}?out of memory"),
    Wording("runtime", "CUDA failure 2: out of memory", "", (r"GPU=<device>",)),
    Wording("runtime", "CUDA error 2: out of memory"),
    Wording("runtime", "CUDA error 2 ", r".{0,120}?out of memory"),
    Wording("runtime", "Cuda Runtime (out of memory)"),
    Wording("runtime", "error == cudaSuccess (2 vs. 0)", r" ?out of memory"),
    Wording("launch", "cudaErrorLaunchOutOfResources"),
    Wording("launch", "too many resources requested for launch"),
    Wording("launch", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    Wording("numba", "Call to cuMemAlloc results in ", r"(?:UNKNOWN_)?CUDA_ERROR_OUT_OF_MEMORY"),
    Wording("context", "cuCtxCreate", r".{0,80}?out of memory"),
    Wording("context", "cuDevicePrimaryCtxRetain", r".{0,120}?(?:OUT_OF_MEMORY|out of memory)"),
    Wording("vulkan-host", "VK_ERROR_OUT_OF_HOST_MEMORY"),
    Wording("vulkan", "VK_ERROR_OUT_OF_DEVICE_MEMORY"),
    Wording("vulkan-fragmented", "VK_ERROR_FRAGMENTED_POOL"),
    Wording("opencl", "CL_MEM_OBJECT_ALLOCATION_FAILURE"),
    Wording("opencl", "CL_OUT_OF_RESOURCES"),
    Wording("opencl-host", "CL_OUT_OF_HOST_MEMORY"),
    Wording("opencl", "CL_INVALID_BUFFER_SIZE"),
)

NOT_MEMORY: Final = (
    Wording("illegal-access", "an illegal memory access was encountered"),
    Wording("illegal-access", "cudaErrorIllegalAddress"),
    Wording("illegal-access", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    Wording("illegal-access", "hipErrorIllegalAddress"),
    Wording("illegal-access", "Memory access fault by GPU node-", r"<device>"),
    Wording("misaligned", "misaligned address"),
    Wording("assert", "device-side assert triggered"),
    Wording("launch-failure", "unspecified launch failure"),
    Wording("no-kernel-image", "no kernel image is available for execution on the device"),
    Wording("invalid-argument", "CUDA error: invalid argument"),
    Wording("invalid-configuration", "CUDA error: invalid configuration argument"),
    Wording("ecc", "uncorrectable ECC error encountered"),
    Wording("nvlink", "uncorrectable NVLink error"),
    Wording("driver-version", "CUDA driver version is insufficient for CUDA runtime version"),
    Wording("busy", "all CUDA-capable devices are busy or unavailable"),
    Wording("xid", "NVRM: Xid", r" \([^)]{1,60}\): (?P<error_code__>[0-9]{1,3})"),
    Wording("lost", "GPU has fallen off the bus"),
    Wording("initialization", "CUDA error: initialization error"),
    Wording("peer-access", "peer mapping resources exhausted"),
    Wording("nccl-timeout", "Watchdog caught collective operation timeout"),
)

TRITON: Final = (
    Wording(
        "shared-memory",
        "out of resource: ",
        r"(?P<memory_space__>[a-z_ ]{3,40}?),? ?Required:? ?<needed_bytes:b>,? ?"
        r"(?:Hardware limit:?|> limit) ?<limit_bytes:b>",
        (r"Reducing block sizes or `?num_stages`? may help",),
    ),
    Wording("shared-memory", "uses too much shared data", r" \(<needed_bytes:b> bytes, <limit_bytes:b> max\)"),
    Wording(
        "shared-memory",
        "uses too much shared data",
        r" \((?P<needed_bytes__b>INTEGER)(?: bytes)?,? 0x[0-9a-f]{1,8} bytes?.{0,40}\)",
    ),
    Wording("shared-memory", "Failed to set the allowed dynamic shared memory size to ", r"<needed_bytes:b>"),
    Wording(
        "no-config",
        "No valid triton configs. OutOfMemoryError",
        "",
        (
            r"out of resource: (?P<memory_space__>[a-z_ ]{3,40}?)[, ] ?Required: ?<needed_bytes:b>",
            r"Hardware limit: ?<limit_bytes:b>",
        ),
    ),
    Wording("registers", "out of resource: ", r"(?P<memory_space__>[a-z_ ]{3,40})", weak=True),
)

FAMILIES: Final[dict[str, Family]] = {
    "triton": Family(
        "Triton: on-chip memory of one block", TRITON, "other", "triton-lang/triton python/triton/runtime/errors.py"
    ),
    "cublas": Family("cuBLAS, hipBLAS", CUBLAS, source="pytorch/pytorch aten/src/ATen/cuda/CublasHandlePool.cpp"),
    "cudnn": Family("cuDNN, MIOpen", CUDNN, source="pytorch/pytorch aten/src/ATen/native/cudnn/Conv_v8.cpp"),
    "cuda-libraries": Family("cuSOLVER, cuSPARSE, cuFFT, cuRAND and others", SOLVERS, source="their headers"),
    "nccl": Family("NCCL, RCCL", NCCL, source="NVIDIA/nccl src/include/checks.h, src/include/alloc.h"),
    "cuda": Family(
        "CUDA's own errors, Vulkan's and OpenCL's", RUNTIME, source="cuda_runtime_api.h, vulkan_core.h, cl.h"
    ),
    "not-memory": Family("Errors of devices that are not about memory", NOT_MEMORY, "other", "cuda_runtime_api.h"),
}
