"""vLLM's command, and the YAML of its --config.

[vLLM] vllm engine/arg_utils.py; `vllm serve MODEL --name value`
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.requests import variables_of
from vramcast.engines.vllm.settings import settings_of as vllm_settings
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.lines import Line
from vramcast.formats.reading import Config, Reading, plain, written
from vramcast.formats.servers import (
    Server,
    adapters,
    argument_names,
    degrees,
    dtypes,
    nodes_of,
    read_server,
    serve_script,
    table_of,
    targets_of,
)
from vramcast.formats.watched import Known, Watched
from vramcast.sources.logs import vllm as vllm_logs

VLLM_ARGUMENTS: Final = Known("vllm", "EngineArgs", (Known("vllm", "FrontendArgs"),))

SHORT: Final = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "q": "quantization",
    "dcp": "decode_context_parallel_size", "ep": "enable_expert_parallel", "m": "model", "t": "tensor_parallel_size",
    "pcp": "prefill_context_parallel_size", "n": "nnodes", "r": "node_rank", "dpl": "data_parallel_size_local",
    "O": "optimization_level", "cc": "compilation_config",
}
"""Short names of vLLM's arguments."""


NAMES: Final = argument_names(vllm_logs.GIVEN)

VLLM_DRAFTS: Final = {**written(vllm_logs.DRAFTS), "model": "draft_model"}


def _own(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {} if "tensor_parallel_size" in values else {"tp": 1}
    options: list[str] = []
    if (limits := values.get("limit_mm_per_prompt")) is not None:
        options += _images(values, limits)
    if values.flag("language_model_only"):
        options.append("language-model-only=true")
    if values.flag("disable_hybrid_kv_cache_manager"):
        options.append("hybrid-manager=false")
    if (states := values.get("mamba_ssm_cache_dtype")) is not None:
        options.append(f"mamba-ssm-cache-dtype={states}")
    sizes = values.get("cudagraph_capture_sizes")
    if isinstance(sizes, list):
        options.append(f"graph-sizes={len(sizes)}")
    elif sizes is not None:
        options.append("graph-sizes=1")
    found |= {"engine-option": tuple(options)} if options else {}
    return found | _draft(values)


def _images(values: Watched, limits: Any) -> list[str]:
    """`{"image": 2}`, or image=2 as it was written before 0.9."""
    pairs = dict(part.partition("=")[::2] for part in str(limits).split(",")) if isinstance(limits, str) and (
        "=" in limits) else table_of(limits)
    counts = {kind: plain(str(count)) for kind, count in pairs.items()}
    others = [kind for kind, count in counts.items() if kind != "image" and count != 0]
    images = counts.get("image")
    if others or not counts or (images is not None and not isinstance(images, int)):
        values.cannot("limit_mm_per_prompt", f"{', '.join(others) or 'what it says'} is not modelled; images are")
        return []
    return [f"images={images}"] if images is not None else []


def _draft(values: Watched) -> dict[str, Any]:
    """Speculative decoding [vllm config/speculative.py]."""
    given = values.get("speculative_config")
    if given is None:
        return {}
    config = Watched(table_of(given))
    method, tokens, model = config.text("method"), config.count("num_speculative_tokens"), config.text("model")
    kind = vllm_logs.DRAFTS.get(str(method)) or ("mtp" if str(method).endswith("_mtp") else None)
    if kind is None and method in (None, "draft_model") and model is not None:
        kind = model
    if kind == "ngram" or config.get("draft_tensor_parallel_size", 1) == 1:
        config.get("draft_tensor_parallel_size")
    for name in ("prompt_lookup_max", "prompt_lookup_min", "draft_sample_method", "rejection_sample_method"):
        config.get(name)
    if kind is None or tokens is None or (left := [name for name in config if name not in config.asked]):
        what = f"method {str(method)[:40]}" if kind is None else "num_speculative_tokens" if tokens is None else left[0]
        values.cannot("speculative_config", f"{what} is not modelled; --draft names what is", option="draft")
        return {}
    return {"draft": kind, "draft-tokens": tokens}


def write(order: Order) -> tuple[File, ...]:
    """`vllm serve` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, vllm_settings(order.job)
    lines = [
        Line("", hub_id(job.model), "the checkpoint"),
        *degrees(order, (NAMES["tp"], NAMES["pp"], NAMES["dp"])),
    ]
    if ask("expert_parallel"):
        lines.append(Line(NAMES["expert-parallel"], True, "whole experts per rank"))
    if ask("dcp") > 1:
        lines.append(Line(NAMES["dcp"], job.plan.dcp, "the cache is divided inside a tp group"))
    lines += dtypes(order, NAMES)
    ask.also("memory_fraction", "max_sequences", "batched_tokens", "block_tokens", "prefix_caching")
    lines += [
        Line(NAMES["context"], job.context, "longest sequence, prompt and answer"),
        Line(NAMES["memory-fraction"], settings.memory_fraction, "share of the card vLLM may take"),
        Line(NAMES["max-sequences"], settings.max_sequences, "sequences at once"),
        Line(NAMES["batched-tokens"], settings.batched_tokens, "tokens of one step"),
        Line(NAMES["block-tokens"], settings.block_tokens, "tokens of a cache block"),
        Line(("" if settings.prefix_caching else "no-") + NAMES["prefix-caching"], True),
    ]
    if ask("cache_bytes") is not None:
        lines.append(Line(NAMES["cache-bytes"], job.plan.cache_bytes, "the cache of one card, whatever is free"))
    if not ask("graphs"):
        lines.append(Line(NAMES["graphs"], True, "no CUDA graphs"))
    lines += [*adapters(order, NAMES["lora-slots"]), *_draft_lines(order), *_option_lines(order)]
    part = Part("vllm", "EngineArgs", further=("FrontendArgs",))
    return serve_script(order, "vllm serve", tuple(lines), part, nodes_of(job, vllm=True))


def _draft_lines(order: Order) -> list[Line]:
    ask = order.ask
    kind = ask("draft.kind")
    if kind is None:
        return []
    config: dict[str, Any] = {"method": VLLM_DRAFTS[kind], "num_speculative_tokens": ask("draft.tokens")}
    if ask("draft.model") is not None:
        config["model"] = hub_id(order.job.plan.draft.model)
    elif kind in ("eagle", "eagle3", "medusa"):
        config["model"] = "DRAFT-CHECKPOINT"
    if kind == "ngram":
        config["prompt_lookup_max"] = 4
    return [Line("speculative-config", json.dumps(config), f"{kind} proposes tokens")]


def _option_lines(order: Order) -> list[Line]:
    """Engine options that are options of the command line."""
    ask = order.ask
    lines = []
    if ask("option.language-model-only"):
        lines.append(Line("language-model-only", True, "towers are not loaded"))
    images = ask("option.images") if ask("option.images") is not None else ask("images") or None
    if images is not None and len(order.job.model.stacks) > 1:  # towers alone take one each
        lines.append(Line("limit-mm-per-prompt", json.dumps({"image": images}), "images in a prompt"))
    if ask("option.hybrid-manager") is False:
        lines.append(Line("disable-hybrid-kv-cache-manager", True, "every layer keeps whole sequences"))
    if ask("option.mamba-ssm-cache-dtype") is not None:
        lines.append(Line("mamba-ssm-cache-dtype", ask("option.mamba-ssm-cache-dtype"), "of recurrent states"))
    ask.also("option.offline", *(f"option.{name}" for name in variables_of("vllm")))
    return lines


SERVER: Final = Server(
    "vllm", VLLM_ARGUMENTS, targets_of(vllm_logs.GIVEN), SHORT,
    start=re.compile(r"vllm\.entrypoints\.\S+|\S*vllm/vllm-openai\S*|vllm-openai\S*"),
    image=re.compile(r"vllm/vllm-openai\S*?:v?(\d[\w.]*)|\bvllm(?:\[[\w,-]*\])?==(\d[\w.]*)"),
    own=_own, slots=1, named_model=True,
)


def read(config: Config) -> Reading:
    """Options of vLLM."""
    return read_server(config, SERVER)
