"""Commands and configuration files of vLLM and SGLang.

[vLLM] vllm engine/arg_utils.py; `vllm serve MODEL --name value` or a YAML of --config
[SGLang] sglang srt/server_args.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.question.configs.reading import (
    Command,
    Config,
    Reading,
    Watched,
    arguments,
    command_of,
    not_read,
    unknown,
)
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


HUMAN: Final = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")
"""Numbers that vLLM reads with a suffix [vllm engine/arg_utils.py, human_readable_int]."""

SUFFIXES: Final = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
}

ASIDE: Final = (*MODELS, "host", "port", "m", "config", "api_key", "served_model_name")
"""Names that say nothing about memory."""

OFF: Final = ("", "auto", -1)
"""Values that leave a choice to the engine."""


def is_vllm(config: Config) -> bool:
    """A `vllm serve` command, or a table with its names."""
    if config.table is not None:
        return any(name.replace("-", "_") in ("gpu_memory_utilization", "max_model_len", "max_num_seqs")
                   for name in config.table)
    return any(name in config.text for name in ("vllm serve", "vllm.entrypoints", "vllm/vllm-openai"))


def is_sglang(config: Config) -> bool:
    """A command that launches SGLang."""
    return config.table is None and ("sglang.launch_server" in config.text or "sglang serve" in config.text)


def read_vllm(config: Config) -> Reading:
    """Options of vLLM."""
    command = _command(config, "vllm")
    found = list(command.words)
    values = _values(config, found)
    behind = found[found.index("serve") + 1 :][:1] if "serve" in found else []
    if behind and not behind[0].startswith("-"):
        values.setdefault("model", behind[0])
    values = {SHORT.get(name, name): value for name, value in values.items()}
    values |= {name: human_readable(values[name]) for name in HUMAN if name in values}
    return _reading("vllm", "EngineArgs", values, VLLM, command)


def read_sglang(config: Config) -> Reading:
    """Options of SGLang."""
    command = _command(config, "sglang")
    return _reading("sglang", "ServerArgs", _values(config, list(command.words)), SGLANG, command)


def human_readable(value: Any) -> Any:
    """A number with a suffix as vLLM reads it: small letters are decimal, capitals binary and whole; others as is.

    >>> human_readable("32k"), human_readable("32K"), human_readable("25.6k"), human_readable("1.5K")
    (32000, 32768, 25600, '1.5K')
    """
    match = re.fullmatch(r"(\d{1,12})(?:\.(\d{1,6}))?([kmgtKMGT])", value.strip()) if isinstance(value, str) else None
    if match is None or (match[2] and match[3].isupper()):
        return value
    fraction = match[2] or ""
    return int(match[1] + fraction) * SUFFIXES[match[3]] // 10 ** len(fraction)


def _command(config: Config, program: str) -> Command:
    """The command that starts a server."""
    if config.table is not None:
        return Command((), ())

    def score(words: tuple[str, ...]) -> int:
        return len(words) if any(word.startswith(program) for word in words) else 0

    return command_of(config, score)


def _values(config: Config, found: list[str]) -> dict[str, Any]:
    if config.table is not None:
        return {name.replace("-", "_"): value for name, value in config.table.items()}
    start = next((place for place, word in enumerate(found) if word.startswith(("vllm", "sglang"))), 0)
    return arguments(found[start:], short=True)


def _reading(
    engine: str, section: str, given: Mapping[str, Any], table: Mapping[str, Target], command: Command
) -> Reading:
    values = Watched(given)
    options: dict[str, Any] = {"engine": engine} | translated(values, table)
    model = next((values[name] for name in MODELS if isinstance(values.get(name), str)), None)
    if model is not None:
        options["model"] = model
    for name in table:
        value = values.get(name)
        wanted = value is not None and value not in OFF and not isinstance(value, bool)
        if wanted and not translated({name: value}, {name: table[name]}):
            values.refuse(name, value, f"a value that is understood; give --{table[name][0]}")
    quantised = values.get("quantization")
    if isinstance(quantised, str):
        if quantised in QUANTISED and "awq" not in quantised and "gptq" not in quantised:
            options["weights"] = QUANTISED[quantised]
        elif quantised not in QUANTISED:
            values.warnings.append(f"quantization: {quantised} is not modelled; --weights names a format that is")
    known = {name: value for name, value in values.items() if name not in ASIDE}
    warnings = [text for text in unknown(engine, section, known) if not _of_the_server(engine, text)]
    notes = (*command.notes, *not_read(values.unread(ASIDE)))
    return Reading(engine, options, {}, tuple(values), (*values.said(), *warnings), notes)


def _of_the_server(engine: str, text: str) -> bool:
    """Whether a name is vLLM's front end's, which takes no memory on the card."""
    from vramcast.catalogue.formats import load_format

    name = text.partition(":")[0]
    return engine == "vllm" and load_format("vllm").find("FrontendArgs", name) is not None
