"""Programs that run models: LMDeploy, MLC, ExLlama, ONNX Runtime, OpenVINO, ComfyUI, and libraries around them.

[mlc] mlc-ai/mlc-llm cpp/serve/config.cc; its MB are 2^20 bytes
[ort] microsoft/onnxruntime onnxruntime/core/framework/bfc_arena.cc
[openvino] openvinotoolkit/openvino src/plugins/intel_gpu/src/runtime
[lmdeploy] InternLM/lmdeploy src/turbomind/core/allocator.cc
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

FAMILIES: Final[dict[str, Family]] = {
    "lmdeploy": Family(
        "LMDeploy",
        (
            Wording(
                "turbomind", "[TM][ERROR]", r".{0,40}?CUDA runtime error: out of memory(?: [\w/.-]{1,120}:[0-9]{1,5})?"
            ),
            Wording("turbomind", "[TM][FATAL]", r".{0,160}?out of memory"),
            Wording("runtime", "No enough gpu memory for runtime"),
            Wording("cache", "No enough GPU memory for kv cache"),
            Wording("blocks", "No enough blocks"),
        ),
        source="InternLM/lmdeploy src/turbomind/core/allocator.cc, lmdeploy/pytorch/engine",
    ),
    "mlc": Family(
        "MLC LLM, WebLLM",
        (
            Wording(
                "estimate",
                "Insufficient GPU memory error: The available single GPU memory is ",
                r"<limit_bytes>",
                (r"model weight size \(<weights_bytes>\)", r"temporary buffer size \(<program_bytes>\)"),
            ),
            Wording("estimate", "Insufficient GPU memory error", weak=True),
            Wording("tvm", "InternalError: Check failed: (e == cudaSuccess", r".{0,120}?out of memory"),
        ),
        source="mlc-ai/mlc-llm cpp/serve/config.cc",
    ),
    "exllama": Family(
        "ExLlama",
        (
            Wording("load", "Insufficient VRAM for model and cache"),
            Wording("load", "Insufficient VRAM in split for model and cache"),
            Wording("load", "Insufficient space in device allocation"),
            Wording("cache", "Total sequence length exceeds cache size"),
        ),
        source="turboderp-org/exllamav2 exllamav2/model.py",
    ),
    "onnxruntime": Family(
        "ONNX Runtime",
        (
            Wording(
                "arena-limit",
                "Available memory of ",
                r"<free_bytes:b> is smaller than requested bytes of <tried_bytes:b>",
            ),
            Wording("arena", "Failed to allocate memory for requested buffer", r"(?: of size <tried_bytes:b>)?"),
            Wording(
                "cuda",
                "CUDA failure 2: out of memory",
                "",
                (r"GPU=<device>", r"expr=(?P<call__>\w{4,60})"),
                preceded="onnx",
            ),
        ),
        source="microsoft/onnxruntime onnxruntime/core/framework/bfc_arena.cc",
    ),
    "openvino": Family(
        "OpenVINO",
        (
            Wording(
                "max-alloc",
                "Exceeded max size of memory object allocation",
                r":? ?requested <tried_bytes:b> bytes",
                (r"max alloc size(?: supported by device)? is <limit_bytes:b>",),
            ),
            Wording(
                "max-alloc",
                "Exceeded max size of memory allocation",
                "",
                (
                    r"Required <tried_bytes:b> bytes",
                    r"already occupied : <allocated_bytes:b> bytes",
                    r"available memory size is <total_bytes:b> bytes",
                ),
            ),
            Wording("max-alloc", "Exceeded max size of memory object allocation"),
            Wording("usm", "[GPU] out of GPU resources"),
        ),
        source="openvinotoolkit/openvino src/plugins/intel_gpu/src/runtime/engine.cpp",
    ),
    "comfyui": Family(
        "ComfyUI and other image programs",
        (
            Wording("advice", "Got an OOM, unloading all loaded models"),
            Wording(
                "vae", "Ran out of memory when regular VAE ", r"(?P<name__>decoding|encoding), retrying with tiled"
            ),
            Wording(
                "webui",
                "Not enough memory, use lower resolution",
                r" \(max approx\. (?P<shape__>[0-9x]{3,16})\)\. Need: <needed_bytes> free, Have:<free_bytes> free",
            ),
        ),
        source="comfyanonymous/ComfyUI execution.py, comfy/sd.py",
    ),
    "bitsandbytes": Family(
        "bitsandbytes",
        (
            Wording("ops", "Error out of memory at line ", r"[0-9]{1,6} in file [\w./-]{1,160}"),
            Wording("modules-on-cpu", "Some modules are dispatched on the CPU or the disk"),
        ),
        source="bitsandbytes-foundation/bitsandbytes csrc/ops.cu, transformers quantizers",
    ),
    "deepspeed": Family(
        "DeepSpeed",
        (
            Wording("autotune", "The model is not runnable with DeepSpeed"),
            Wording("minimum", "The model requires at least ", r"<needed_bytes> (?:GPU )?memory"),
        ),
        source="microsoft/DeepSpeed deepspeed/runtime",
    ),
    "accelerate": Family(
        "Transformers, Accelerate, Lightning",
        (
            Wording("batch-size", "No executable batch size found, reached zero"),
            Wording("lightning-scale", "Failed to find a batch size that", r".{0,80}"),
            Wording("device-map", "current model requires ", r"<needed_bytes:b> bytes of buffer for offloaded layers"),
            Wording(
                "device-map", "Some parameters are on the meta device because they were offloaded to the", weak=True
            ),
            Wording("offload-folder", "The current `device_map` had weights offloaded to the disk"),
        ),
        source="huggingface/accelerate src/accelerate/utils/memory.py, Lightning-AI/pytorch-lightning",
    ),
    "ctranslate2": Family(
        "CTranslate2",
        (Wording("runtime", "CUDA failed with error out of memory"),),
        source="OpenNMT/CTranslate2 src/cuda",
    ),
    "tinygrad": Family(
        "tinygrad",
        (Wording("alloc", "Allocation of ", r"<tried_bytes> failed on", (r"Used: <used_bytes>",)),),
        source="tinygrad/tinygrad runtime",
    ),
    "candle": Family(
        "Rust: candle, burn, cudarc",
        (Wording("driver", "DriverError(CUDA_ERROR_OUT_OF_MEMORY"),),
        source="huggingface/candle",
    ),
}
