"""LMDeploy's command, `lmdeploy serve api_server`.

[cli] InternLM/lmdeploy lmdeploy/cli/serve.py `add_parser_api_server`, lmdeploy/cli/utils.py `ArgumentHelper`
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.engines.lmdeploy import settings_of
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import DTYPES, PORT, SERVE, one_of_several, script_text, weights_note
from vramcast.formats.lines import Line, when
from vramcast.formats.reading import Config, Reading, written
from vramcast.formats.servers import Server, read_server
from vramcast.formats.watched import Known, Watched
from vramcast.sources.logs import options

TARGETS: Final[dict[str, options.Target]] = {
    "tp": ("tp", int),
    "dp": ("dp", int),
    "session_len": ("context", int),
    "max_batch_size": ("max-sequences", int),
    "max_prefill_token_num": ("batched-tokens", int),
    "cache_block_seq_len": ("block-tokens", int),
    "cache_max_entry_count": ("memory-fraction", float),
    "dtype": ("dtype", options.dtype),
    "enable_prefix_caching": ("prefix-caching", bool),
}
"""Argument of the command -> option of a question, and how its value is read."""

QUANTISED: Final = {0: None, 4: "int4", 8: "int8"}
"""`quant_policy` -> storage of keys and values."""

STORED: Final = ("hf", "awq", "gptq", "compressed-tensors", "fp8", "mxfp4")
"""`model_format`, which says what the checkpoint holds."""


def _own(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {"tp": values.count("tp") or 1}  # one card, however many there are
    if (policy := values.get("quant_policy")) in QUANTISED:
        found |= {"kv-dtype": kept} if (kept := QUANTISED[policy]) else {}
    elif policy is not None:
        values.cannot("quant_policy", "{} is not modelled; 0, 4 and 8 are", str(policy)[:20], option="kv-dtype")
    values.one_of("model_format", dict.fromkeys(STORED), option="weights")
    if (backend := values.text("backend")) == "pytorch":
        found["engine-option"] = ("backend=pytorch",)
    elif backend not in (None, "turbomind"):
        values.refuse("backend", "one of turbomind, pytorch")
    if values.flag("eager_mode"):
        found["graphs"] = False
    for name in ("adapters", "hf_overrides", "speculative_algorithm", "cudagraph_capture_batch_sizes"):
        values.must_be_unset(name)
    return found


SERVER: Final = Server(
    "lmdeploy", Known("lmdeploy", "options"), TARGETS, {},
    start=re.compile(r"api_server"), image=re.compile(r"openmmlab/lmdeploy:v?(\d[\w.]*)|\blmdeploy==(\d[\w.]*)"),
    own=_own, slots=0, named_model=True,
)


def read(config: Config) -> Reading:
    """Options of LMDeploy."""
    return read_server(config, SERVER)


def write(order: Order) -> tuple[File, ...]:
    """`lmdeploy serve api_server` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, settings_of(order.job)
    ask.also("context", "concurrency", "input_len", "output_len", "images", "image_size", "max_sequences",
             "batched_tokens", "memory_fraction", "block_tokens", "option.backend", "pp")
    lines = (
        Line("backend", settings.backend),
        Line("tp", ask("tp"), "ranks that divide every layer"),
        Line("session-len", job.context, "longest sequence, prompt and answer"),
        Line("max-batch-size", settings.sequences, "sequences at once"),
        Line("max-prefill-token-num", settings.tokens, "tokens of one prefill"),
        Line("cache-max-entry-count", settings.fraction, "share of what is free beside the weights"),
        Line("cache-block-seq-len", settings.block_tokens, "tokens of a block"),
        *when(ask("dp") > 1, Line("dp", job.plan.dp, "whole copies")),
        Line("dtype", DTYPES.get(ask("dtype") or "")),
        Line("quant-policy", written(QUANTISED).get(ask("kv_dtype")), "keys and values"),
        Line("enable-prefix-caching", bool(ask("prefix_caching")), "finished sequences are kept for reuse"),
        Line("eager-mode", not ask("graphs")),
        Line("server-name", "0.0.0.0"), Line("server-port", PORT),
    )
    text = script_text(order, f"lmdeploy serve api_server {hub_id(job.model)}", lines)
    notes = (*weights_note(order), *one_of_several(order, SERVE))
    return (order.file(SERVE, text, (Part("lmdeploy", "options"),), notes, executable=True),)
