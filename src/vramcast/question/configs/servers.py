"""Commands and configuration files of vLLM and SGLang.

[vLLM] vllm engine/arg_utils.py; `vllm serve MODEL --name value` or a YAML of --config
[SGLang] sglang srt/server_args.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.question.configs.reading import Config, Reading, arguments, unknown, words
from vramcast.sources.logs.options import Target, cache_dtype, dtype, negated, translated

VLLM: Final[dict[str, Target]] = {
    "tensor_parallel_size": ("tp", int), "pipeline_parallel_size": ("pp", int), "data_parallel_size": ("dp", int),
    "decode_context_parallel_size": ("dcp", int), "max_model_len": ("context", int),
    "max_num_seqs": ("max-sequences", int),
    "max_num_batched_tokens": ("batched-tokens", int), "gpu_memory_utilization": ("memory-fraction", float),
    "dtype": ("dtype", dtype), "kv_cache_dtype": ("kv-dtype", cache_dtype), "block_size": ("block-tokens", int),
    "enforce_eager": ("graphs", negated), "enable_prefix_caching": ("prefix-caching", bool),
    "enable_expert_parallel": ("expert-parallel", bool), "max_loras": ("lora-slots", int),
    "max_lora_rank": ("lora-rank", int), "kv_cache_memory_bytes": ("cache-bytes", int),
}

SGLANG: Final[dict[str, Target]] = {
    "tp_size": ("tp", int), "tensor_parallel_size": ("tp", int), "tp": ("tp", int), "pp_size": ("pp", int),
    "dp_size": ("dp", int), "context_length": ("context", int), "max_running_requests": ("max-sequences", int),
    "chunked_prefill_size": ("batched-tokens", int), "mem_fraction_static": ("memory-fraction", float),
    "dtype": ("dtype", dtype), "kv_cache_dtype": ("kv-dtype", cache_dtype), "page_size": ("block-tokens", int),
    "disable_radix_cache": ("prefix-caching", negated),
}

QUANTISED: Final = {"fp8": "fp8", "awq": "awq-int4", "awq_marlin": "awq-int4", "gptq": "gptq-int4",
                    "gptq_marlin": "gptq-int4", "bitsandbytes": "nf4"}

MODELS: Final = ("model", "model_tag", "model_path")

SHORT: Final = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "q": "quantization",
}


def is_vllm(config: Config) -> bool:
    """A `vllm serve` command, or a table with its names."""
    if config.table is not None:
        return any(name.replace("-", "_") in ("gpu_memory_utilization", "max_model_len", "max_num_seqs")
                   for name in config.table)
    return "vllm serve" in config.text or "vllm.entrypoints" in config.text


def is_sglang(config: Config) -> bool:
    """A command that launches SGLang."""
    return config.table is None and ("sglang.launch_server" in config.text or "sglang serve" in config.text)


def read_vllm(config: Config) -> Reading:
    """Options of vLLM."""
    found = [] if config.table is not None else words(config)
    values = _values(config, found)
    behind = found[found.index("serve") + 1 :][:1] if "serve" in found else []
    if behind and not behind[0].startswith("-"):
        values.setdefault("model", behind[0])
    values = {SHORT.get(name, name): value for name, value in values.items()}
    return _reading("vllm", "EngineArgs", values, VLLM)


def read_sglang(config: Config) -> Reading:
    """Options of SGLang."""
    return _reading("sglang", "ServerArgs", _values(config, words(config)), SGLANG)


def _values(config: Config, found: list[str]) -> dict[str, Any]:
    if config.table is not None:
        return {name.replace("-", "_"): value for name, value in config.table.items()}
    start = next((place for place, word in enumerate(found) if word.startswith(("vllm", "sglang"))), 0)
    return arguments(found[start:], short=True)


def _reading(engine: str, section: str, values: Mapping[str, Any], table: Mapping[str, Target]) -> Reading:
    options: dict[str, Any] = {"engine": engine} | translated(values, table)
    model = next((values[name] for name in MODELS if isinstance(values.get(name), str)), None)
    if model is not None:
        options["model"] = model
    warnings = []
    quantised = values.get("quantization")
    if isinstance(quantised, str):
        if quantised in QUANTISED and "awq" not in quantised and "gptq" not in quantised:
            options["weights"] = QUANTISED[quantised]
        elif quantised not in QUANTISED:
            warnings.append(f"quantization: {quantised} is not modelled; --weights names a format that is")
    known = {name: value for name, value in values.items() if name not in (*MODELS, "host", "port", "m", "config")}
    warnings += [text for text in unknown(engine, section, known) if not _of_the_server(engine, text)]
    return Reading(engine, options, {}, tuple(values), tuple(warnings))


def _of_the_server(engine: str, text: str) -> bool:
    """Whether a name is vLLM's front end's, which takes no memory on the card."""
    from vramcast.catalogue.formats import load_format

    name = text.partition(":")[0]
    return engine == "vllm" and load_format("vllm").find("FrontendArgs", name) is not None
