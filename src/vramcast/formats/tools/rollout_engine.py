"""Arguments that a framework of post-training hands on to the engine that generates, as that engine's own reader has
them.

[vllm] vllm-project/vllm vllm/config/compilation.py `CUDAGraphMode`; vllm/engine/arg_utils.py: without chunked prefill
a forward has room for the longest prompt
[sglang] sgl-project/sglang python/sglang/srt/server_args.py `enable_dp_lm_head`, `moe_dense_tp_size`,
`moe_a2a_backend`
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramcast.errors import Note
from vramcast.formats.reading import Config, Unread
from vramcast.formats.table import flat, nested
from vramcast.formats.tools import sglang, vllm
from vramcast.formats.watched import Known

BESIDE: Final = {
    **{name: name for name in (
        "memory-fraction", "max-sequences", "batched-tokens", "graphs", "engine-option", "context")},
    **{name: f"rollout-{name}" for name in (
        "tp", "dp", "attention-dp", "expert-parallel", "kv-dtype", "cache-bytes", "block-tokens", "draft",
        "draft-tokens")},
}
"""Options of `vramcast serve` -> those of `vramcast rl` that say the same of an engine beside a trainer."""

OF_SERVING: Final = ("engine", "model")
"""What the engine's own reader says of any deployment."""

SUBSETS: Final = ("PIECEWISE", "FULL_DECODE_ONLY", "FULL")
"""Modes of vLLM that capture some of the graphs of FULL_AND_PIECEWISE, and no others."""

GRAPHS: Final = "compilation_config.cudagraph_mode"

KERNELS: Final[dict[str, tuple[str, ...]]] = {
    "vllm": ("attention_backend", "attention_config", "moe_backend", "kernel_config", "mamba_cache_mode",
             "async_scheduling"),
    "sglang": ("attention_backend", "prefill_attention_backend", "decode_attention_backend", "nsa_prefill_backend",
               "nsa_decode_backend", "speculative_draft_attention_backend", "mamba_scheduler_strategy",
               "enable_deterministic_inference", "server_concurrency", "watchdog_timeout", "tool_call_parser",
               "reasoning_parser", "disaggregation_ib_device"),
}
"""Choices of kernels and of schedules: the card's share stays what it is, the time is that of the usual ones."""

SHARED: Final = ("enable_dp_lm_head", "moe_dense_tp_size")
"""What SGLang keeps whole on more ranks than it would: its weights take more of its share, its cache less."""

SENDS: Final = ("moe_a2a_backend", "deepep_mode")


REPLAYED: Final = "experts that routers chose are replayed: their numbers, a few bytes a token, are not counted"


class Passed(NamedTuple):
    """What arguments of the engine say."""

    options: dict[str, Any]
    unread: list[Unread]
    notes: list[str]
    parts: Mapping[str, str] = {}  # engine option -> part of the network without which the engine passes over it


def passed_on(
    engine: str, given: Mapping[str, Any], prefix: str, *, tp: int | None = None, context: int | None = None
) -> Passed:
    """Options of `vramcast rl` from an engine's own arguments.

    Args:
        engine: "vllm" or "sglang"
        given: its arguments by their names with underscores, tables of them nested or dotted
        prefix: what stands before a name in the framework's own file
        tp: its ranks, where they are said elsewhere
        context: its longest sequence, the same [tokens]
    """
    own = dict(flat(given))
    known = Known(engine, {"vllm": "EngineArgs", "sglang": "ServerArgs"}[engine])
    own = {name: value for name, value in own.items() if value is not None and not known.is_harmless(name)}
    notes: list[str] = []
    kernels = [name for name in own if name.partition(".")[0] in KERNELS[engine]]
    own = {name: value for name, value in own.items() if name not in kernels}
    found = _of_vllm(own, notes, context) if engine == "vllm" else _of_sglang(own, notes, tp)
    if not found:
        return Passed({}, [], notes)
    read = vllm.read(Config("", "", nested(found))) if engine == "vllm" else sglang.read(
        Config("", _command(found), None))
    said = read.options if tp is not None or engine == "sglang" else {
        name: value for name, value in read.options.items() if name != "tp"}
    unread = [one._replace(name=f"{prefix}{one.name.lstrip('-')}") for one in read.unread]
    unread += [Unread(f"{prefix}* (--{name})") for name in said if name not in (*BESIDE, *OF_SERVING)]
    return Passed({BESIDE[name]: value for name, value in said.items()
                   if name in BESIDE and (name, value) != ("dp", 1)}, unread, notes, read.parts)


def _of_vllm(own: dict[str, Any], notes: list[str], context: int | None) -> dict[str, Any]:
    if (mode := own.get(GRAPHS)) in SUBSETS:
        own.pop(GRAPHS)
        notes.append(Note("{}: all graphs of FULL_AND_PIECEWISE are counted, which are more", mode))
    if str(own.pop("enable_chunked_prefill", True)).lower() in ("false", "0") and (
            longest := own.get("max_model_len", context)) is not None:
        own["max_num_batched_tokens"] = max(int(longest), int(own.get("max_num_batched_tokens", 0)))
    return own


def _of_sglang(own: dict[str, Any], notes: list[str], tp: int | None) -> dict[str, Any]:
    if shared := [name for name in SHARED if own.pop(name, None)]:
        notes.append(Note("{}: counted as divided over all ranks; what is whole takes room of the cache, inside the "
                          "same share of the card", ", ".join(shared)))
    if sends := [name for name in SENDS if own.pop(name, None)]:
        notes.append(Note("{}: the buffers that tokens are sent through to experts are not counted", ", ".join(sends)))
    return own | ({} if tp is None else {"tp_size": tp})


def _command(given: Mapping[str, Any]) -> str:
    words = ["python3", "-m", "sglang.launch_server", "--model-path", "m"]
    for name, value in given.items():
        listed = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, listed)] if value is not False else []
    return shlex.join(words)
