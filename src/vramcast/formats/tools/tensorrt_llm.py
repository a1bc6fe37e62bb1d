"""TensorRT-LLM: `trtllm-serve`, and the file beside it for what has no option.

[args] NVIDIA/TensorRT-LLM tensorrt_llm/commands/serve.py: the file wins over the options; llmapi/llm_args.py
`KvCacheConfig`, `CudaGraphConfig`, `MoeConfig`, `TorchLlmArgs`
[dp] docs/source/features/parallel-strategy.md, attention data parallelism: every rank attends to requests of its own
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.rank import shares_experts
from vramcast.engines.serving.requests import variables_of
from vramcast.engines.tensorrt_llm import EXPERTS_BY, OPTIONS
from vramcast.engines.tensorrt_llm import settings_of as tensorrt_llm_settings
from vramcast.errors import Unsupported
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import DTYPES, PORT, SERVE, degrees, one_of_several, script_text, weights_note
from vramcast.formats.lines import Line, Table, when, yaml_text
from vramcast.formats.reading import Config, Reading, table
from vramcast.formats.servers import Server, read_server
from vramcast.formats.watched import Known, Watched
from vramcast.sources.logs import options
from vramcast.sources.logs.tensorrt_llm import ARGUMENTS

EXTRA: Final = "trtllm_config.yaml"


def write(order: Order) -> tuple[File, ...]:
    """`trtllm-serve` and the file beside it for what has no option."""
    job: ServeJob = order.job
    ask, settings = order.ask, tensorrt_llm_settings(order.job)
    if not settings.pytorch:
        raise Unsupported("commands are written for TensorRT-LLM 1.0 and later, which serves without a built engine")
    apart = _attends_apart(order)
    if (ask("dp") > 1 and not apart) or ask("draft.kind") is not None or ask("lora_slots"):
        raise Unsupported("copies, drafts and adapters of TensorRT-LLM are not written here; use --engine vllm")
    ask.also("max_sequences", "batched_tokens", "memory_fraction", "lora_rank", "cache_bytes", "block_tokens")
    ask.also("tp", "attention_dp")
    lines = (
        Line("backend", "pytorch"),
        *(degrees(order, ("tp_size", "pp_size")) if not apart else (
            Line("tp_size", job.plan.dp, "groups that attend apart and share experts"), Line("pp_size", ask("pp")))),
        Line("max_seq_len", job.context, "longest sequence, prompt and answer"),
        Line("max_batch_size", settings.sequences, "sequences at once"),
        Line("max_num_tokens", settings.tokens, "tokens of one step"),
        Line("kv_cache_free_gpu_memory_fraction", settings.fraction, "share of what is free beside the weights"),
        *when(ask("expert_parallel"), Line("ep_size", job.plan.tp * job.plan.dp, "whole experts per rank")),
        Line("host", "0.0.0.0"), Line("port", PORT), Line("extra_llm_api_options", EXTRA),
    )
    ask.also("context", "concurrency", "input_len", "output_len", "images", "image_size")
    ask.also(*(f"option.{name}" for name in variables_of("tensorrt-llm")))
    extra = _trtllm_extra(order, settings)
    text = yaml_text(extra, head="What trtllm-serve has no option for.")
    file = order.file(EXTRA, text, (Part("tensorrt-llm", "config"),))
    notes = (*weights_note(order), *one_of_several(order, SERVE))
    script = script_text(order, f"trtllm-serve {hub_id(job.model)}", lines)
    return order.file(SERVE, script, (Part("tensorrt-llm", "options"),), notes, executable=True), file


def _attends_apart(order: Order) -> bool:
    """Attention data parallelism: ranks that attend apart and share experts."""
    plan = order.job.plan
    return plan.tp == 1 and shares_experts(order.job)


def _trtllm_extra(order: Order, settings: Any) -> Table:
    ask = order.ask
    cache = (
        Line("dtype", ask("kv_dtype"), "of the cache"),
        Line("tokens_per_block", settings.block_tokens),
        *when(ask("prefix_caching") is not None,
              Line("enable_block_reuse", order.job.plan.prefix_caching, "finished sequences are kept for reuse")),
        *when(settings.max_tokens is not None, Line("max_tokens", ask("option.max-tokens"), "at most so many tokens")),
        *when(order.job.plan.cache_bytes is not None,
              Line("max_gpu_total_bytes", order.job.plan.cache_bytes, "an absolute size")),
    )
    return (
        Line("kv_cache_config", cache),
        *when(_attends_apart(order), Line("enable_attention_dp", True, "every rank attends to requests of its own")),
        *when(ask("dtype"), Line("dtype", DTYPES.get(order.job.plan.dtype or ""))),
    )


SHORT: Final = {
    "tp_size": "tensor_parallel_size", "tp": "tensor_parallel_size", "pp_size": "pipeline_parallel_size",
    "pp": "pipeline_parallel_size", "ep_size": "moe_expert_parallel_size", "moe_ep_size": "moe_expert_parallel_size",
    "ep": "moe_expert_parallel_size", "cp_size": "context_parallel_size", "cluster_size": "moe_cluster_parallel_size",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction", "extra_llm_api_options": "config",
    "tool_call_parser": "tool_parser", "num_gpus_per_node": "gpus_per_node",
}

TARGETS: Final = {name: target for name, target in ARGUMENTS.items() if name not in ("model", "tokens_per_block")}

DRAFTS: Final = {
    "MTP": "mtp", "EAGLE": "eagle3", "EAGLE3": "eagle3", "NGRAM": "ngram",
}
"""`decoding_type` -> kind of a draft; Eagle heads are of EAGLE-3 [args `EagleDecodingConfig`]."""


BALANCE_STEPS: Final = 50
"""`AttentionDpConfig.timeout_iters` [args]."""

HELD: Final = ("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio")
"""Keys that are engine options here under the same names."""


def _own(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if values.get("backend") not in (None, "pytorch"):
        values.cannot("backend", "{} is not modelled; the PyTorch backend is", str(values.get("backend"))[:20])
    found |= _degrees(values) | _draft(values)
    cache, more = _cache(values)
    found |= cache
    more += [f"{name.replace('_', '-')}={value}" for name in HELD if (value := values.get(name)) is not None]
    apart = values.section("attention_dp_config")
    if apart.flag("enable_balance"):
        apart.only("batching_wait_iters", 0)
        more.append(f"attention-dp-timeout-iters={apart.count('timeout_iters') or BALANCE_STEPS}")
    _graphs(values)
    moe = values.section("moe_config")
    kernels = str(moe.get("backend", values.get("moe_backend", "AUTO"))).upper()
    if kernels not in EXPERTS_BY:
        moe.cannot("backend", "{} has buffers of its own, which are not modelled", kernels[:20])
    elif kernels == "TRTLLM":
        more.append("moe-backend=TRTLLM")
    for name in ("enable_chunked_prefill", "attn_backend", "attention_backend"):
        if str(values.get(name)).upper() in ("FALSE", "TRTLLM"):
            values.pop(name)
    return found | ({"engine-option": tuple(more)} if more else {})


def _degrees(values: Watched) -> dict[str, Any]:
    """Ranks that divide every layer, or attend apart and share experts [dp]."""
    tp, experts = values.count("tensor_parallel_size") or 1, values.count("moe_expert_parallel_size") or 1
    divided = values.count("moe_tensor_parallel_size")
    if experts not in (1, tp) or divided not in (None, tp // experts):
        values.cannot("moe_expert_parallel_size", "{} of tensor_parallel_size={} is not modelled; {} is", experts, tp,
                      tp, option="expert-parallel")
    whole = {"expert-parallel": True} if experts > 1 else {}
    if values.flag("enable_attention_dp") and not {"tensor_parallel_size", "model"} & {*dict.keys(values)}:
        values.cannot("enable_attention_dp", "is over ranks that the command says, which is not here; give --dp N "
                      "--attention-dp", option="attention-dp")
    if values.flag("enable_attention_dp") and tp > 1:
        return {"tp": 1, "dp": tp, "attention-dp": True} | whole
    return {"tp": tp} | whole


def _cache(values: Watched) -> tuple[dict[str, Any], list[str]]:
    """The cache as the file has it, and engine options of it."""
    cache = values.section("kv_cache_config", Known("tensorrt-llm", "kv_cache_config"))
    found: dict[str, Any] = {
        "memory-fraction": cache.number("free_gpu_memory_fraction"), "block-tokens": cache.count("tokens_per_block"),
        "prefix-caching": cache.flag("enable_block_reuse"), "cache-bytes": cache.count("max_gpu_total_bytes"),
    }
    dtype = cache.get("dtype", values.get("kv_cache_dtype"))
    if dtype not in (None, "auto"):
        found["kv-dtype"] = options.cache_dtype(dtype) or ("nvfp4" if dtype == "nvfp4" else None)
        if found["kv-dtype"] is None:
            cache.refuse("dtype", "a value that is understood", option="kv-dtype")
    more = [f"max-tokens={tokens}"] if (tokens := cache.count("max_tokens")) else []
    cache.only("max_gpu_total_bytes", 0, found["cache-bytes"])
    return {name: value for name, value in found.items() if value is not None}, more


def _graphs(values: Watched) -> None:
    """Graphs are part of what was measured: other sizes of them are said, none at all is refused."""
    off = "cuda_graph_config" in dict.keys(values) and dict.get(values, "cuda_graph_config") is None
    if off or values.flag("use_cuda_graph") is False:
        values.cannot("cuda_graph_config", "switches the graphs off, which is not modelled")
        values.setdefault("cuda_graph_config", {})
        return
    sizes = [name for name in ("batch_sizes", "max_batch_size") if name in table(values.get("cuda_graph_config"))]
    sizes += [name for name in ("cuda_graph_batch_sizes", "cuda_graph_max_batch_size") if values.get(name) is not None]
    values.get("cuda_graph_padding_enabled")
    if sizes:
        values.assumed.append("cuda_graph_config: graphs are counted as those of the batch sizes by default")


def _draft(values: Watched) -> dict[str, Any]:
    if values.get("speculative_config") is None:
        return {}
    config = values.section("speculative_config", Known("tensorrt-llm", "speculative_config"))
    kind = DRAFTS.get(str(config.get("decoding_type")).upper().replace("_", ""))
    names = ("max_draft_len", "num_nextn_predict_layers", "max_draft_tokens")
    tokens = next((count for name in names if (count := config.count(name))), None)
    config.ignore(*names)
    if kind is None or tokens is None:
        what = f"decoding_type {str(config.get('decoding_type'))[:30]}" if kind is None else "max_draft_len"
        config.cannot("decoding_type", "{} is not modelled; --draft names what is", what, option="draft")
        return {}
    return {"draft": kind, "draft-tokens": tokens}


SERVER: Final = Server(
    "tensorrt-llm", Known("tensorrt-llm", "options", (Known("tensorrt-llm", "config"),)), TARGETS, SHORT,
    start=re.compile(r"(?:\S*/)?trtllm-serve"),
    image=re.compile(r"tensorrt-llm/\S*?:v?(\d[\w.]*)|\btensorrt[-_]llm==(\d[\w.]*)"),
    own=_own, slots=8, named_model=True,
    parts={name: known.about for name, known in OPTIONS.items() if known.about},
)


def read(config: Config) -> Reading:
    """Options of TensorRT-LLM."""
    return read_server(config, SERVER)
