"""The table of what can be asked of a serving plan: command line, job files and Python arguments are made from it."""

from __future__ import annotations

from typing import Final

from vramcast.question.options import CONFIG_OPTIONS, HEADROOM, MARKET_OPTIONS, MODEL_OPTIONS, Kind, Option


def _choice(section: str, field: str, help_: str, choices: tuple[str, ...]) -> Option:
    return Option(section, field, Kind.CHOICE, help_, choices)


GOALS: Final = ("smallest-gpu", "fewest-gpus", "best-split", "longest-context", "most-users", "quantisation")
"""Inverse questions; `search.serving` answers them."""

SERVE_OPTIONS: Final[dict[str, Option]] = {
    "find": _choice("job", "find", "the inverse question: vary this until the load fits", GOALS),
    "headroom": Option("job", "headroom", Kind.TEXT, f"with --find: {HEADROOM}"),
    "engine": Option(
        "job", "engine", Kind.TEXT, "engine@version: vllm@0.19 (default), sglang, tensorrt-llm, llama.cpp, diffusers"
    ),
    "context": Option("requests", "context", Kind.COUNT, "longest sequence, prompt and answer (32k = 32768)"),
    "concurrency": Option("requests", "concurrency", Kind.COUNT, "sequences in flight; diffusers: images per prompt"),
    "input-len": Option("requests", "input_len", Kind.COUNT, "tokens of a prompt", also=("input",)),
    "output-len": Option("requests", "output_len", Kind.COUNT, "tokens of an answer", also=("output",)),
    "rate": Option("traffic", "rate", Kind.NUMBER, "requests that arrive per second: latencies by simulation of the "
                   "engine's scheduler"),
    "arrivals": Option("traffic", "arrivals", Kind.TEXT, "instead: a file of recorded requests, JSON lines or CSV"),
    "slo": Option("traffic", "slo", Kind.TEXT, "latencies that are promised: ttft<2s,tpot<50ms (also e2e)"),
    "burstiness": Option("traffic", "burstiness", Kind.NUMBER, "of arrivals: 1 Poisson, less comes in bursts"),
    "num-requests": Option("traffic", "num_requests", Kind.COUNT, "requests that are simulated"),
    "seed": Option("traffic", "seed", Kind.COUNT, "of the random arrivals"),
    "shared-prefix": Option("traffic", "shared_prefix", Kind.COUNT, "tokens that all prompts begin with"),
    "replicas": Option("traffic", "replicas", Kind.COUNT, "such deployments behind one router"),
    "router": _choice("traffic", "router", "how it chooses", ("round-robin", "least-loaded")),
    "images": Option("requests", "images", Kind.COUNT, "images in a prompt"),
    "image-size": Option("requests", "image_size", Kind.COUNT, "pixels per side of an image in a prompt"),
    "height": Option("requests", "height", Kind.COUNT, "generated image or video: pixels"),
    "width": Option("requests", "width", Kind.COUNT, "generated image or video: pixels"),
    "frames": Option("requests", "frames", Kind.COUNT, "generated video: frames"),
    "tp": Option("plan", "tp", Kind.COUNT, "tensor-parallel degree; by default what pp and dp leave of the GPUs"),
    "pp": Option("plan", "pp", Kind.COUNT, "pipeline stages"),
    "dp": Option("plan", "dp", Kind.COUNT, "data-parallel copies"),
    "attention-dp": Option("plan", "attention_dp", Kind.FLAG, "copies attend apart and share the experts"),
    "expert-parallel": Option("plan", "expert_parallel", Kind.FLAG, "whole experts per rank instead of slices"),
    "dcp": Option("plan", "dcp", Kind.COUNT, "decode context parallelism: the cache divided inside a tp group"),
    "weights": Option(
        "plan", "weights", Kind.TEXT, "what if the weights were stored so: fp8, int4, nf4, mxfp4, nvfp4, q4_k_m ..."
    ),
    "dtype": _choice("plan", "dtype", "activations and unquantised weights", ("bf16", "fp16", "fp32")),
    "kv-dtype": Option("plan", "kv_dtype", Kind.TEXT, "cache: auto, bf16, fp8, int8, q8_0 ..."),
    "v-dtype": Option("plan", "v_dtype", Kind.TEXT, "llama.cpp: cached values, when not as keys"),
    "memory-fraction": Option("plan", "memory_fraction", Kind.NUMBER, "share of the card the engine may take"),
    "cache-bytes": Option("plan", "cache_bytes", Kind.COUNT, "absolute size of the cache instead of a share"),
    "max-sequences": Option("plan", "max_sequences", Kind.COUNT, "vLLM max_num_seqs and its kin"),
    "batched-tokens": Option("plan", "batched_tokens", Kind.COUNT, "vLLM max_num_batched_tokens and its kin"),
    "micro-batch": Option("plan", "micro_batch", Kind.COUNT, "llama.cpp -ub"),
    "block-tokens": Option("plan", "block_tokens", Kind.COUNT, "tokens of one cache block"),
    "graphs": Option("plan", "graphs", Kind.FLAG, "CUDA graphs"),
    "prefix-caching": Option("plan", "prefix_caching", Kind.FLAG, "keep finished sequences' blocks for reuse"),
    "lora-slots": Option("plan", "lora_slots", Kind.COUNT, "adapters on the card at once (vLLM max_loras)"),
    "lora-rank": Option("plan", "lora_rank", Kind.COUNT, "largest rank of an adapter"),
    "draft": Option(
        "draft", "draft", Kind.TEXT, "speculative decoding: eagle, eagle3, mtp, ngram, medusa or a MODEL"
    ),
    "draft-tokens": Option("draft", "draft_tokens", Kind.COUNT, "tokens proposed at once"),
    "gpu-layers": Option("plan", "gpu_layers", Kind.COUNT, "llama.cpp -ngl: layers on the cards"),
    "attention": _choice("plan", "attention", "implementation, where there is a choice", ("eager", "sdpa", "flash")),
    "offload": _choice(
        "plan", "offload", "diffusers: what waits on the host", ("none", "model", "sequential", "group")
    ),
    "tiling": Option("plan", "tiling", Kind.FLAG, "diffusers: the VAE decodes in tiles"),
    "slicing": Option("plan", "slicing", Kind.FLAG, "diffusers: the VAE decodes one image after the other"),
    "calibration": Option(
        "job", "calibration", Kind.TEXT, "a file that --save-calibration wrote: measured over predicted, by entry"
    ),
    "engine-option": Option("job", "engine_options", Kind.NAMES, "key=value for the engine (repeatable)"),
    **CONFIG_OPTIONS,
    **MARKET_OPTIONS,
    **MODEL_OPTIONS,
}
"""Name as users write it -> where it goes. `gpus` and `model` are the two that are always there."""
