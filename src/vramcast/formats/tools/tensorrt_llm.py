"""TensorRT-LLM: `trtllm-serve`, and the file beside it for what has no option."""

from __future__ import annotations

from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.requests import variables_of
from vramcast.engines.tensorrt_llm import settings_of as tensorrt_llm_settings
from vramcast.errors import Unsupported
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import one_of_several
from vramcast.formats.lines import Line, Table, yaml_text
from vramcast.formats.servers import (
    DTYPES,
    PORT,
    SERVE,
    degrees,
    script_text,
    weights_note,
)

EXTRA: Final = "trtllm_config.yaml"


def write(order: Order) -> tuple[File, ...]:
    """`trtllm-serve` and the file beside it for what has no option."""
    job: ServeJob = order.job
    ask, settings = order.ask, tensorrt_llm_settings(order.job)
    if not settings.pytorch:
        raise Unsupported("commands are written for TensorRT-LLM 1.0 and later, which serves without a built engine")
    if ask("dp") > 1 or ask("draft.kind") is not None or ask("lora_slots"):
        raise Unsupported("copies, drafts and adapters of TensorRT-LLM are not written here; use --engine vllm")
    ask.also("max_sequences", "batched_tokens", "memory_fraction", "lora_rank", "cache_bytes", "block_tokens")
    lines = [
        Line("backend", "pytorch"), *degrees(order, ("tp_size", "pp_size")),
        Line("max_seq_len", job.context, "longest sequence, prompt and answer"),
        Line("max_batch_size", settings.sequences, "sequences at once"),
        Line("max_num_tokens", settings.tokens, "tokens of one step"),
        Line("kv_cache_free_gpu_memory_fraction", settings.fraction, "share of what is free beside the weights"),
    ]
    if ask("expert_parallel"):
        lines.append(Line("ep_size", job.plan.tp, "whole experts per rank"))
    lines += [Line("host", "0.0.0.0"), Line("port", PORT), Line("extra_llm_api_options", EXTRA)]
    ask.also("context", "concurrency", "input_len", "output_len", "images", "image_size")
    ask.also(*(f"option.{name}" for name in variables_of("tensorrt-llm")))
    extra = _trtllm_extra(order, settings)
    text = yaml_text(extra, head="What trtllm-serve has no option for.")
    file = order.file(EXTRA, text, (Part("tensorrt-llm", "config"),))
    notes = (*weights_note(order), *one_of_several(order, SERVE))
    script = script_text(order, f"trtllm-serve {hub_id(job.model)}", tuple(lines))
    return order.file(SERVE, script, (Part("tensorrt-llm", "options"),), notes, executable=True), file


def _trtllm_extra(order: Order, settings: Any) -> Table:
    ask = order.ask
    cache = [Line("dtype", ask("kv_dtype") if ask("kv_dtype") != "auto" else "auto", "of the cache"),
             Line("tokens_per_block", settings.block_tokens)]
    if ask("prefix_caching") is not None:
        cache.append(Line("enable_block_reuse", order.job.plan.prefix_caching, "finished sequences are kept for reuse"))
    if settings.max_tokens is not None:
        cache.append(Line("max_tokens", ask("option.max-tokens"), "at most so many tokens"))
    if order.job.plan.cache_bytes is not None:
        cache.append(Line("max_gpu_total_bytes", order.job.plan.cache_bytes, "an absolute size"))
    lines = [Line("kv_cache_config", tuple(cache))]
    if ask("dtype") is not None:
        lines.append(Line("dtype", DTYPES[order.job.plan.dtype]))
    return tuple(lines)
