"""SGLang's command.

[SGLang] sglang srt/server_args.py, srt/arg_groups/fields/*.py
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.rank import shares_experts
from vramcast.engines.serving.requests import variables_of
from vramcast.engines.sglang.settings import OPTIONS
from vramcast.engines.sglang.settings import settings_of as sglang_settings
from vramcast.errors import Note, Unsupported
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import adapters, dtypes, nodes_of, serve_script
from vramcast.formats.lines import Line, when
from vramcast.formats.reading import Config, Reading, together, written
from vramcast.formats.servers import Server, argument_names, read_server, stretched, targets_of
from vramcast.formats.watched import Known, Watched
from vramcast.sources.logs import sglang as sglang_logs

SGLANG_ARGUMENTS: Final = Known("sglang", "ServerArgs")

SHORT: Final = {
    "tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "ep": "ep_size", "model": "model_path",
    "tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size", "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size", "mem_frac": "mem_fraction_static", "speculative_draft_model":
    "speculative_draft_model_path", "speculative_algo": "speculative_algorithm",
}


NAMES: Final = argument_names(sglang_logs.GIVEN)
"""Option -> the argument that says it."""

SGLANG_DRAFTS: Final = {
    **{kind: written(sglang_logs.DRAFTS)[kind] for kind in ("eagle", "eagle3", "mtp", "ngram")}, "model": "STANDALONE",
}


def _own(values: Watched) -> dict[str, Any]:
    """Degrees as SGLang counts them: groups that attend apart are inside --tp, copies are beside it."""
    found: dict[str, Any] = {}
    tp, copies = values.count("tp_size") or 1, values.count("dp_size") or 1
    groups, shared = values.count("attn_dp_size") or 1, values.flag("enable_dp_attention")
    experts = tp if values.flag("enable_ep_moe") else values.count("ep_size")
    if shared or groups > 1:
        groups = copies if shared else groups
        if tp % groups:
            values.cannot("dp_size", "{} does not divide tp_size={}", groups, tp)
        found |= {"tp": max(1, tp // groups), "dp": groups, "attention-dp": True}
        if not shared and copies > 1:
            values.cannot("dp_size", "{} copies of {} groups are not modelled", copies, groups, option="dp")
    else:
        found |= {"tp": tp, "dp": copies}
    if (experts or 1) not in (1, tp):
        values.cannot("ep_size", "{} of tp_size={} is not modelled; {} is", experts, tp, tp, option="expert-parallel")
    elif experts not in (None, 1):
        found["expert-parallel"] = True
    if (backend := values.get("attention_backend")) not in (None, "auto"):
        values.assumed.append(Note("{}: FlashInfer's workspace of attention is counted, and the usual speed", backend))
    options = _without_graphs(values, found)
    _without_others(values, tp)
    lengths, longer = stretched(values, "json_model_override_args", "context_length", multiplied=())
    found |= lengths
    options += ["allow-long=true"] if longer else []
    if (dcp := values.count("dcp_size") or 1) > 1:
        found["dcp"] = dcp
    return together(found | _sglang_draft(values), _sglang_options(values),
                    {"engine-option": tuple(options)} if options else {})


def _without_graphs(values: Watched, found: dict[str, Any]) -> list[str]:
    """Which graphs are switched off: all, or those of prefills."""
    decode = [values.flag(name) for name in ("disable_cuda_graph", "disable_decode_cuda_graph")]
    prefill = [values.flag(name) for name in ("disable_prefill_cuda_graph", "disable_piecewise_cuda_graph")]
    if any(decode):
        found["graphs"] = False
        if not (decode[0] or any(prefill)):
            values.cannot("disable_decode_cuda_graph", "leaves the graphs of prefills, which are not modelled alone",
                          option="graphs")
        return []
    return ["prefill-graphs=false"] if any(prefill) else []


ONLY_WITH: Final = {
    "speculative_algorithm": "speculative_", "disaggregation_mode": "disaggregation_", "enable_torch_compile":
    "torch_compile_max_bs", "offload_mode": "offload_", "enable_lora": "lora_", "dllm_algorithm": "dllm_",
    "debug_tensor_dump_output_folder": "debug_tensor_dump_",
}
"""Argument -> beginning of the names of those that say nothing without it."""

LEAST_PREFILL: Final = 16384
"""`max_prefill_tokens` by default; what more allows is cut into chunks."""


def _without_others(values: Watched, tp: int) -> None:
    """Arguments that say nothing without another one, or on one rank."""
    for switch, beginning in ONLY_WITH.items():
        if dict.get(values, switch) in (None, False, "null", "cpu"):
            values.ignore(*[name for name in values if name.startswith(beginning) and name != "lora_paths"])
    if tp == 1:
        values.get("disable_custom_all_reduce")
    tokens = values.count("max_prefill_tokens")
    if tokens is not None and tokens < LEAST_PREFILL:
        values.cannot("max_prefill_tokens")


SGLANG_OPTIONS: Final = (
    "cuda_graph_max_bs", "max_total_tokens", "swa_full_tokens_ratio", "mamba_full_memory_ratio", "max_mamba_cache_size",
    "mamba_ssm_dtype", "disable_hybrid_swa_memory", "scheduler_recv_interval",
)
"""Arguments that are engine options here under the same names."""


def _sglang_options(values: Watched) -> dict[str, Any]:
    if (largest := values.get("cuda_graph_max_bs_decode")) is not None:
        values.setdefault("cuda_graph_max_bs", largest)
    pairs = tuple(
        f"{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
        for name in SGLANG_OPTIONS if (value := values.get(name)) is not None
    )
    return {"engine-option": pairs} if pairs else {}


def _sglang_draft(values: Watched) -> dict[str, Any]:
    """What proposes tokens: chains of as many as there are steps [sglang srt/speculative/spec_info.py]."""
    algorithm = values.get("speculative_algorithm")
    steps, drafted = values.count("speculative_num_steps"), values.count("speculative_num_draft_tokens")
    model = values.text("speculative_draft_model_path")
    if algorithm is None:
        return {}
    name = str(algorithm).upper()
    kind = model if name == "STANDALONE" else sglang_logs.DRAFTS.get(name)
    kind = "mtp" if kind == "eagle" and model is None else kind  # the model's own layers propose
    tokens = steps or (drafted - 1 if drafted and drafted > 1 else None)
    if kind is None or tokens is None:
        missing = "its kind" if kind is None else "speculative_num_steps, which depends on the network"
        why = Note("{} is not modelled without {}; give --draft and --draft-tokens", name[:40], missing)
        values.cannot("speculative_algorithm", why, option="draft")
        return {}
    return {"draft": kind, "draft-tokens": tokens}


def write(order: Order) -> tuple[File, ...]:
    """`python -m sglang.launch_server` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, sglang_settings(order.job)
    shared = shares_experts(job)
    ask.also("tp", "dp", "attention_dp", "expert_parallel", "memory_fraction")
    ask.also("max_sequences", "batched_tokens", "block_tokens")
    width = job.plan.tp * (job.plan.dp if shared else 1)
    if ask("cache_bytes") is not None:
        raise Unsupported("SGLang sizes its cache by a fraction; use --memory-fraction, or --engine vllm")
    lines = (
        Line(NAMES["model"], hub_id(job.model)),
        Line(NAMES["tp"], width, "ranks that divide every layer, attention groups together"),
        Line(NAMES["pp"], ask("pp"), "stages"),
        *when(shared, Line("attn-dp-size", job.plan.dp, "groups that attend apart and share experts")),
        *when(not shared and job.plan.dp > 1, Line("dp-size", job.plan.dp, "whole copies")),
        *when(job.plan.expert_parallel, Line("ep-size", width, "whole experts per rank")),
        *dtypes(order, NAMES),
        Line(NAMES["context"], job.context, "longest sequence, prompt and answer"),
        Line(NAMES["memory-fraction"], settings.fraction, "share of the card for weights and cache"),
        Line(NAMES["batched-tokens"], settings.chunk * (job.plan.dp if shared else 1), "tokens of one prefill step"),
        Line(NAMES["block-tokens"], settings.page_tokens, "tokens of a cache page"),
        Line(NAMES["max-sequences"], settings.max_running, "sequences at once"),
        Line("cuda-graph-max-bs-decode", settings.graph_sequences or None, "largest batch with a graph"),
        *when(not ask("graphs"), Line("disable-decode-cuda-graph", True), Line("disable-prefill-cuda-graph", True)),
        Line(NAMES["prefix-caching"], ask("prefix_caching") is False, "finished sequences are not kept"),
        *adapters(order, "max-loras-per-batch"), *_draft_lines(order), *_option_lines(order),
    )
    part = Part("sglang", "ServerArgs")
    return serve_script(order, "python -m sglang.launch_server", lines, part, nodes_of(job))


def _draft_lines(order: Order) -> list[Line]:
    ask = order.ask
    kind = ask("draft.kind")
    if kind is None:
        return []
    if kind not in SGLANG_DRAFTS:
        raise Unsupported("SGLang has no drafts by {}; use {}", kind, ", ".join(SGLANG_DRAFTS))
    lines = [Line("speculative-algorithm", SGLANG_DRAFTS[kind], f"{kind} proposes tokens"),
             Line("speculative-num-draft-tokens", ask("draft.tokens") + 1, "proposed at once, and the sure one")]
    if kind not in ("mtp", "ngram"):
        lines.append(Line("speculative-num-steps", ask("draft.tokens")))
        lines.append(Line("speculative-eagle-topk", 1))
        model = ask("draft.model")
        lines.append(Line("speculative-draft-model-path", hub_id(model) if model is not None else "DRAFT-CHECKPOINT"))
    else:
        ask.also("draft.model")
    return lines


def _option_lines(order: Order) -> list[Line]:
    variables = [f"option.{name}" for name in variables_of("sglang")]
    written = "option.cuda-graph-max-bs"  # with the settings
    of_prefills = order.ask("option.prefill-graphs") is False and order.ask("graphs")
    names = [name for name in order.ask.settings if name.startswith("option.") and name not in (*variables, written)
             and name != "option.prefill-graphs"]
    order.ask.also("images", written, *variables)
    return [*when(of_prefills, Line("disable-prefill-cuda-graph", True, "no graphs of prefills")),
            *(Line(name.removeprefix("option."), order.ask(name), "as planned") for name in names)]


SERVER: Final = Server(
    "sglang", SGLANG_ARGUMENTS, targets_of(sglang_logs.GIVEN), SHORT,
    start=re.compile(r"sglang\.launch_server|\S*/sglang/launch_server\.py"),
    image=re.compile(r"lmsysorg/sglang\S*?:v?(\d[\w.]*)|\bsglang(?:\[[\w,-]*\])?==(\d[\w.]*)"),
    own=_own, slots=8, rank_needed=True,
    parts={name: known.about for name, known in OPTIONS.items() if known.about},
)


def read(config: Config) -> Reading:
    """Options of SGLang."""
    return read_server(config, SERVER)
