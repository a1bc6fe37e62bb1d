"""llama.cpp and ggml on every backend, and what is built on them: ollama, whisper.cpp, stable-diffusion.cpp, koboldcpp.

[ggml] ggml-org/llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu, ggml-alloc.c, ggml-vulkan.cpp, ggml-metal.m, ggml-sycl.cpp
[llama] ggml-org/llama.cpp src/llama-kv-cache*.cpp, llama-context.cpp, llama-mmap.cpp, common/fit.cpp
[ollama] ollama/ollama llm/, ml/device.go, server/sched.go; format.HumanBytes2 divides by 1024
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

BUFFER: Final = r"failed to allocate (?P<buffer__>[\w.-]{1,40}) buffer of size <buffer_bytes:b>"
ECHOES: Final = (
    BUFFER,
    r"unable to allocate [\w.-]{1,40} buffer",
    r"failed to allocate compute(?: pp)? buffers",
    r"failed to allocate buffer for kv cache",
    r"llama_init_from_model: failed to initialize the context[^.\n]{0,60}",
    r"retrying without pipeline parallelism",
    r"unable to load model",
)
"""What the callers print of the same failure, layer by layer."""

BUFFERS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("ggml-galloc-2026", ("ggml_gallocr_reserve_n_impl",), "2025-11 -"),
    ("ggml-galloc", ("ggml_gallocr_reserve",), "2024-01 -"),
    ("ggml-alloc", ("alloc_tensor_range",), "2024-12 -"),
    ("ggml-kv", ("for kv cache",), "2023-12 -"),
    ("ggml-buffer", (), "2023-12 -"),
)
CUDA_AT: Final = (
    r"current device: <device>",
    r"in function (?P<name__>\w{1,80})",
    r"(?P<call__>(?:cu|hip|mu)[A-Z]\w{3,40})\(",
)

LLAMA: Final = (
    *(
        Wording(
            name,
            "allocating ",
            r"<tried_bytes:m> ?MiB on device <device>: (?:cuda|hip|mu|sycl)\w{0,20} failed",
            ECHOES,
            holds,
            700,
            versions=versions,
        )
        for name, holds, versions in BUFFERS
    ),
    *(
        Wording(
            name,
            words,
            r"(?P<tried_bytes__b>[0-9]{1,20})(?: bytes)? ?failed",
            (r"ErrorOutOf(?P<memory_space__>Device|Host)Memory", *ECHOES),
            (),
            700,
        )
        for name, words in (
            ("vulkan", "Device memory allocation of size "),
            ("vulkan-host", "Host memory allocation of size "),
        )
    ),
    Wording(
        "vulkan-limit",
        "Requested buffer size",
        r"(?: \([0-9]{1,20}\))? exceeds (?:device|max) (?:memory allocation|buffer size) limit",
    ),
    Wording("vulkan", "ErrorOutOfDeviceMemory"),
    Wording("vulkan-host", "ErrorOutOfHostMemory"),
    Wording("ggml-galloc-2026", "ggml_gallocr_reserve_n_impl: ", BUFFER, ECHOES[2:]),
    Wording("ggml-galloc", "ggml_gallocr_reserve_n: ", BUFFER, ECHOES[2:]),
    Wording("ggml-galloc", "ggml_gallocr_reserve: ", BUFFER, ECHOES[2:]),
    Wording("ggml-alloc", "alloc_tensor_range: ", BUFFER, ECHOES[1:]),
    Wording("ggml-alloc", "ggml_backend_alloc_ctx_tensors_from_buft: ", BUFFER, ECHOES[1:]),
    Wording(
        "ggml-buffer", "failed to allocate ", r"(?P<buffer__>[\w.-]{1,40}) buffer of size <buffer_bytes:b>", ECHOES[1:]
    ),
    Wording("cpu-buffer", "failed to allocate buffer of size ", r"<tried_bytes:b>", ECHOES[1:]),
    Wording("kv", "failed to allocate buffer for kv cache", "", ECHOES[4:]),
    Wording("compute", "failed to allocate compute pp buffers", "", ECHOES[4:]),
    Wording("compute", "failed to allocate compute buffers", "", ECHOES[4:]),
    Wording("compute", "compute buffer allocation failed", "", ECHOES[5:]),
    Wording("load", "unable to allocate backend buffer"),
    Wording("load", "error loading model: failed to allocate "),
    Wording("load", "error loading model: unable to allocate ", r"(?P<buffer__>[\w.-]{1,40}) buffer"),
    Wording("load", "unable to allocate ", r"(?P<buffer__>[A-Z][\w.-]{1,40}) buffer"),
    Wording(
        "load",
        "llama_model_load: error loading model: ",
        r"(?:std::bad_alloc|vector::_M_default_append|bad allocation)",
    ),
    Wording("cuda", "CUDA error: out of memory", "", CUDA_AT, ("in function",), 300),
    Wording("cuda", "ROCm error: out of memory", "", CUDA_AT, (), 300),
    Wording("cuda", "MUSA error: out of memory", "", CUDA_AT, ("in function",), 300),
    Wording("cuda-2023", "CUDA error 2 at ", r"(?P<name__>[\w./\\:-]{1,200}): out of memory"),
    Wording("pinned", "failed to allocate ", r"<tried_bytes:m> ?Mi?B of pinned memory", (r"out of memory",)),
    Wording("metal", "failed to allocate buffer, size = ", r"<tried_bytes>", ECHOES[1:]),
    Wording("metal", "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
    Wording(
        "metal",
        "command buffer ",
        r"[0-9]{1,4} failed with status 5",
        (r"kIOGPUCommandBufferCallbackErrorOutOfMemory\)",),
        reach=300,
    ),
    Wording(
        "metal-buffer",
        "ggml_metal_add_buffer: buffer '",
        r"[\w.-]{1,40}' size <tried_bytes:b> is larger than buffer maximum of <limit_bytes:b>",
    ),
    Wording("metal-buffer", "newBufferWith*:length ", r"0x[0-9a-f]{1,16} must not exceed <limit_bytes>"),
    Wording("metal-working-set", "current allocated size is greater than the recommended max working set size"),
    Wording("sycl", "can't allocate ", r"<tried_bytes:b> Bytes of memory on device"),
    Wording("sycl", "can't malloc ", r"<tried_bytes:b> Bytes of memory on device"),
    Wording("cann", "allocating ", r"<tried_bytes:m> ?MiB on device <device>: aclrtMalloc failed", ECHOES),
    Wording("opencl", "failed to allocate OpenCL buffer"),
    Wording("aligned-malloc", "insufficient memory (attempted to allocate ", r"<tried_bytes> ?\)"),
    Wording(
        "context-pool",
        "not enough space in the context's memory pool",
        r" \(needed <needed_bytes:b>, available <free_bytes:b>",
    ),
    Wording(
        "scratch",
        "not enough space in the scratch memory pool",
        r" \(needed <needed_bytes:b>, available <free_bytes:b>",
    ),
    Wording(
        "allocr",
        "not enough space in the buffer",
        r"(?: to allocate (?P<name__>[\w.-]{1,60}))? \(needed <needed_bytes:b>, "
        r"(?:largest block )?available <free_bytes:b>",
    ),
    Wording("mmap", "mmap failed: ", r"(?P<reason__>Cannot allocate memory|Not enough memory[^.\n]{0,60})"),
    Wording(
        "mlock",
        "failed to mlock ",
        r"<tried_bytes:b>-byte buffer",
        (r"after previously locking <allocated_bytes:b> bytes", r"RLIMIT_MEMLOCK"),
    ),
    Wording("mlock", "failed to VirtualLock ", r"<tried_bytes:b>-byte buffer"),
    Wording("no-slot", "failed to find a memory slot for batch of size ", r"<tried_tokens>"),
    Wording("no-slot", "could not find a KV slot for the batch"),
    Wording("no-slot", "the KV cache is full"),
    Wording("no-slot", "failed to find free space in the KV cache"),
    Wording("context-size", "the request exceeds the available context size"),
    Wording("fit", "failed to fit params to free device memory", r"(?:: (?P<reason__>[^\n.]{1,120}))?"),
    Wording(
        "fit",
        "projected to use ",
        r"<needed_bytes:m> MiB of device memory vs\. <free_bytes:m> MiB of free device memory",
        (r"cannot (?:fulfill|meet|fit)[^\n.]{0,80}",),
        ("cannot",),
        400,
    ),
    Wording("whisper", "whisper_model_load: failed to allocate memory for the model"),
    Wording("whisper", "whisper_kv_cache_init: failed to allocate memory for the kv cache"),
    Wording("sd", "alloc params backend buffer failed"),
    Wording("sd", "alloc compute buffer failed"),
    Wording("sd", "failed to allocate the compute buffer"),
    Wording("sd", "runtime backend buffer alloc failed"),
    Wording("context", "failed to create context with model", weak=True),
)

RAN_OUT: Final = (
    r"(?:out of memory|cudaMalloc failed|(?:unable|failed) to allocate|signal: killed|exit status (?:2|0xc0000409))"
)

OLLAMA: Final = (
    Wording(
        "system-memory", "model requires more system memory", r" \(<needed_bytes>\) than is available \(<free_bytes>\)"
    ),
    Wording("system-memory", "model requires more system memory than is currently available"),
    Wording(
        "too-large",
        "model request too large for system",
        "",
        (r"requested=\"?<needed_bytes>", r"available=\"?<free_bytes>", r"total=\"?<total_bytes>"),
    ),
    *(
        Wording(
            "runner",
            words,
            rf"(?: with error)?: ?(?P<reason__>[^\"]{{0,160}}?{RAN_OUT})(?: [A-Za-z][A-Za-z0-9_]{{0,40}} buffer)?",
        )
        for words in ("llama runner process has terminated", "llama-server process has terminated")
    ),
    Wording("runner", "llama runner process has terminated", r"(?:: (?P<reason__>[^\n\"]{1,80}))?", weak=True),
    Wording("runner", "llama runner exited, you may not have enough available memory to run this model"),
    Wording(
        "runner",
        "llama runner process no longer running",
        rf"(?:: <exit_code>)?(?: (?P<reason__>[^\"]{{0,160}}?{RAN_OUT}))?",
    ),
    Wording("insufficient", "insufficient memory - required allocations"),
    Wording("insufficient-vram", "insufficient VRAM to load any model layers"),
    Wording("fallback", "not enough vram available, ", r"(?P<reason__>falling back to CPU only|setting num_gpu=0)"),
    Wording("unable-load", "unable to load full model on GPU"),
    Wording("layout", "memory layout cannot be allocated"),
)

FAMILIES: Final[dict[str, Family]] = {
    "ollama": Family("ollama", OLLAMA, source="ollama/ollama llm/llama_server.go, ml/device.go, server/sched.go"),
    "llama.cpp": Family("llama.cpp, ggml and programs on them", LLAMA, source="ggml-org/llama.cpp ggml/src, src"),
}
