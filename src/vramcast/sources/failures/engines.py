"""Inference engines: vLLM, SGLang, TensorRT-LLM and TensorRT, text-generation-inference.

[vllm] vllm-project/vllm vllm/v1/core/kv_cache_utils.py, vllm/v1/worker/gpu_worker.py, vllm/core/scheduler.py
[sglang] sgl-project/sglang python/sglang/srt/model_executor, srt/mem_cache/common.py, srt/managers/scheduler.py
[trt-llm] NVIDIA/TensorRT-LLM cpp/include/tensorrt_llm/common/cudaUtils.h, cpp/tensorrt_llm/batch_manager
[tgi] huggingface/text-generation-inference server/text_generation_server/models, backends/v3/src/lib.rs
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

RAISE: Final = r"Try increasing `?gpu_memory_utilization`?[^.]{0,120}"

VLLM: Final = (
    Wording(
        "kv-max-seq-len",
        "The model's max seq len (",
        r"<max_model_len>\) is larger than the maximum number of tokens that can be stored in "
        r"(?:the )?KV cache \(<kv_tokens>\)",
        (RAISE,),
        versions="V0",
    ),
    *(
        Wording(
            name,
            "To serve at least one request with the model",
            r"(?:s'|'s)?s? max seq len \(<max_model_len>\), \(?<kv_needed_bytes:g> ?GiB KV cache is needed",
            (
                r"KV cache memory \(<kv_available_bytes:g> ?GiB\)",
                r"estimated maximum model length is <estimated_max_len>",
                RAISE,
            ),
            holds,
            versions=versions,
        )
        for name, holds, versions in (
            ("kv-v1-estimate", ("estimated maximum model length",), "V1"),
            ("kv-v1", (), "V1"),
        )
    ),
    Wording(
        "kv-v1-needed",
        "The model's KV cache needed (",
        r"<kv_needed_bytes> ?\) to store one request with the models?'?s? max seq len \(<max_model_len>\)",
        (r"KV Cache memory \(<kv_available_bytes> ?\)", RAISE),
        versions="V1, early",
    ),
    Wording(
        "no-cache-blocks",
        "No available memory for the cache blocks",
        "",
        (r"Available KV cache memory: <kv_available_bytes>", RAISE),
    ),
    Wording(
        "free-on-startup",
        "Free memory on device",
        r"(?: \w{2,8}:<device>)? \(<free_bytes:g>/<total_bytes:g> GiB\) on startup is less than desired GPU memory"
        r" utilization \(<memory_fraction>, <desired_bytes:g> GiB\)",
        (r"reduce GPU memory used by other processes",),
    ),
    Wording(
        "profiling-freed",
        "Error in memory profiling",
        r"\. Initial free memory",
        (
            r"Initial free memory:? <free_bytes>",
            r"Initial free memory:? <free_bytes:b>[ ,]",
            r"isolate vLLM in its own container",
        ),
    ),
    Wording("profiling-freed", "Error in memory profiling", r"\. Initial used memory <used_bytes:b>", versions="V0"),
    Wording(
        "sampler-warmup",
        "CUDA out of memory occurred when warming up ",
        r"(?P<name__>\w{3,12})(?: \([^)]{1,60}\))? with <sequences> dummy requests",
        (r"Please try lowering `?max_num_seqs`?[^.]{0,120}",),
    ),
    Wording(
        "cumem", "CUDA Error: out of memory at ", r"[\w./-]{0,120}cumem_allocator\.cpp:[0-9]{1,5}", versions="0.7 -"
    ),
    Wording(
        "preempted",
        "is preempted by PreemptionMode",
        r"\.(?P<name__>\w{4,12}) mode because there is not enough KV cache space",
        (r"total_(?:num_)?cumulative_preemption(?:_cnt)?=<sequences>",),
        versions="V0",
    ),
    Wording("preempted", "is preempted by ", r"(?P<name__>\w{4,12}) mode because there is not enough KV cache space"),
    Wording("available-negative", "Available KV cache memory: -", r"NUMBER ?GiB", (r"memory: <kv_available_bytes>",)),
    Wording(
        "prompt-too-long",
        "and exceeds the capacity of block_manager",
        "",
        before=r"Input prompt \(<tried_tokens> tokens\) is too long",
    ),
    Wording(
        "mamba-blocks",
        "exceeds available Mamba cache blocks",
        r"(?: \(<blocks>\))?",
        before=r"max_num_seqs \(<sequences>\)",
    ),
    Wording("swap-space", "Too large swap space", "", (r"<needed_bytes> out of the <total_bytes> total CPU memory",)),
    Wording("swap-space", "The swap space is larger than the total CPU memory"),
    Wording("swap-space", "Aborted due to the lack of CPU swap space"),
)

SGLANG: Final = (
    Wording(
        "mem-fraction",
        "Not enough memory. Please try to increase --mem-fraction-static",
        "",
        (r"mem_fraction_static=<memory_fraction>",),
    ),
    Wording("mem-fraction", "Not enough memory. Please try increasing --mem-fraction-static"),
    Wording(
        "prefill",
        "Prefill out of memory. Try to lower your batch size",
        "",
        (
            r"Try to allocate <tried_tokens> tokens",
            r"Ava(?:il|li)able (?:full )?tokens: <free_tokens>",
        ),
    ),
    Wording(
        "decode",
        "Decode out of memory. Try to lower your batch size",
        "",
        (
            r"Try to allocate <tried_tokens> tokens",
            r"Ava(?:il|li)able (?:full )?tokens: <free_tokens>",
        ),
    ),
    Wording("decode", "Decode out of memory happened", "", (r"#retracted_reqs: <sequences>",)),
    Wording(
        "retract",
        "KV cache pool is full. Retract requests",
        "",
        (r"#retracted_reqs: <sequences>", r"#new_tokens?_(?:ratio|gained): NUMBER(?: -> NUMBER)?"),
    ),
    Wording(
        "capture",
        "Capture cuda graph failed: ",
        r"(?=.{0,80}?(?:out of memory|OutOfMemory))",
    ),
    Wording(
        "capture-other",
        "Capture cuda graph failed: ",
        r"(?P<reason__>[^.]{1,120})",
        (r"Possible solutions:",),
        reach=2_000,
        weak=True,
    ),
    Wording(
        "unbalanced",
        "The memory capacity is unbalanced",
        "",
        (r"local_gpu_memory=<free_bytes:g>", r"pre_model_load_memory=<total_bytes:g>"),
    ),
    Wording("too-small", "KV cache size too small"),
    Wording("no-progress", "No space left for only one request"),
    Wording(
        "host-kv", "Not enough host memory available. Requesting ", r"<tried_bytes> but only have <free_bytes> free"
    ),
    Wording(
        "too-long",
        "Input length (",
        r"<tried_tokens> tokens\) exceeds the maximum allowed length \(<free_tokens> tokens\)",
    ),
)

TRT_LLM: Final = (
    Wording(
        "runtime",
        "[TensorRT-LLM][ERROR] CUDA runtime error in ",
        r"(?P<call__>[^\n]{1,120}?): out of memory",
    ),
    Wording("runtime", "[TensorRT-LLM][ERROR]", r".{0,300}?out of memory"),
    Wording(
        "kv-pool",
        "Memory usage when calculating max tokens in paged kv cache",
        r": total: <total_bytes>, available: <free_bytes>",
        (r"Number of blocks in KV cache primary pool: <blocks>",),
        weak=True,
    ),
    Wording("kv-blocks", "Can't allocate new blocks. No free blocks left"),
    Wording("kv-blocks", "no free blocks left in the KV cache"),
    Wording(
        "executor",
        "Executor creation failed due to insufficient GPU memory",
        "",
        (r"kv_cache_config\.free_gpu_memory_fraction",),
    ),
    Wording("max-tokens", "exceeds the available tokens in KV cache", before=r"<tried_tokens>"),
)

TENSORRT: Final = (
    Wording(
        "requested",
        "Requested amount of GPU memory (",
        r"<tried_bytes:b> bytes\) could not be allocated",
        (r"There may not be enough free memory for allocation to succeed",),
    ),
    Wording("size", "Error Code 2: OutOfMemory", r" ?\((?:Requested size was <tried_bytes:b> bytes|[^)]{0,80})"),
    Wording("size", "Error Code 2: Out Of Memory", r"(?: \(Requested size was <tried_bytes:b> bytes)?"),
    Wording(
        "tactic",
        "due to insufficient memory on requested size of ",
        r"<tried_bytes:b>(?: detected)?(?: bytes)?",
        before=r"Skipping tactic",
    ),
    Wording("tactic", "due to insuficient memory on requested size of ", r"<tried_bytes:b>", before=r"Skipping tactic"),
    Wording(
        "tactic",
        "Tactic Device request: ",
        r"<tried_bytes> Available: <free_bytes>",
        (r"Device memory is insufficient to use tactic",),
    ),
    Wording("workspace", "Some tactics do not have sufficient workspace memory to run", weak=True),
    Wording("tactic", "GPU memory allocation error during getBestTactic"),
    Wording(
        "builder",
        "Out of memory",
        r" ?:? ?(?:error )?.{0,60}?(?:in executeWeightsAllocation|safeDeviceMemory|TensorRT)",
    ),
    Wording(
        "no-implementation",
        "Could not find any implementation for node",
        r" (?P<name__>[^ ]{1,200})",
        (r"due to insufficient workspace",),
        weak=True,
    ),
    Wording("context", "ICudaEngine::createExecutionContext: Error Code", r" ?.{0,80}?memory"),
)

TGI: Final = (
    Wording(
        "prefill",
        "Not enough memory to handle ",
        r"<tried_tokens> prefill tokens",
        (r"You need to decrease `?--max-batch-prefill-tokens`?",),
    ),
    Wording("total-tokens", "Not enough memory to handle `max_total_tokens=", r"<tried_tokens>"),
    Wording("total-tokens", "Not enough memory to handle max_total_tokens=", r"<tried_tokens>"),
    Wording(
        "total-tokens",
        "Not enough memory to handle ",
        r"<tried_tokens> total tokens with INTEGER prefill tokens",
        (r"You need to decrease `?--max-batch-total-tokens`? or `?--max-batch-prefill-tokens`?",),
    ),
    Wording("warmup", "Not enough memory to run following prefill batch_size"),
    Wording("warmup", "Not enough memory to warmup decode batch_sizes"),
    Wording("shard", "Shard <id> was signaled to shutdown with signal 9"),
    Wording("shard", "was signaled to shutdown with signal 9", before=r"Shard (?:process )?<device>"),
)

FAMILIES: Final[dict[str, Family]] = {
    "vllm": Family(
        "vLLM and its forks",
        VLLM,
        source="vllm-project/vllm vllm/v1/core/kv_cache_utils.py, vllm/v1/worker/gpu_worker.py",
    ),
    "sglang": Family("SGLang", SGLANG, source="sgl-project/sglang python/sglang/srt"),
    "tensorrt-llm": Family(
        "TensorRT-LLM", TRT_LLM, source="NVIDIA/TensorRT-LLM cpp/include/tensorrt_llm/common/cudaUtils.h"
    ),
    "tensorrt": Family(
        "TensorRT", TENSORRT, source="NVIDIA TensorRT, defaultAllocator, builder and executionContext messages"
    ),
    "tgi": Family(
        "text-generation-inference", TGI, source="huggingface/text-generation-inference server, backends/v3/src/lib.rs"
    ),
}
