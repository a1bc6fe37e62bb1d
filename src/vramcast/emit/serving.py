"""Commands that start a server: vLLM, SGLang, TensorRT-LLM, llama.cpp.

What a plan leaves to the engine's default is written out as it was computed, so that another version of the engine
starts the same deployment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.emit.files import File, Order, Part, hub_id
from vramcast.emit.launch import IN_THE_FOLDER, by_hand, head_of, one_of_several
from vramcast.emit.lines import HEAD, Line, Table, array, commented, comments, exports, yaml_text
from vramcast.engines.llamacpp.settings import settings_of as llamacpp_settings
from vramcast.engines.serving.requests import variables_of
from vramcast.engines.sglang.settings import settings_of as sglang_settings
from vramcast.engines.sglang.settings import shares_experts
from vramcast.engines.tensorrt_llm import settings_of as tensorrt_llm_settings
from vramcast.engines.vllm.settings import settings_of as vllm_settings
from vramcast.errors import Unsupported
from vramcast.question.configs import servers
from vramcast.question.configs.reading import written
from vramcast.sources.logs import options
from vramcast.sources.logs import sglang as sglang_logs
from vramcast.sources.logs import vllm as vllm_logs

SERVE: Final = "serve.sh"
EXTRA: Final = "trtllm_config.yaml"
PORT: Final = 8000

DTYPES: Final = written(options.DTYPES)
"""How vLLM, SGLang and TensorRT-LLM call a dtype; others have one name everywhere."""

def argument_names(table: Mapping[str, options.Target]) -> dict[str, str]:
    """Option -> argument, as a command line writes it, the first where several say it."""
    names = written({name: option for name, (option, _) in table.items()})
    return {option: name.replace("_", "-") for option, name in names.items()}


VLLM: Final = argument_names(vllm_logs.GIVEN)
SGLANG: Final = argument_names(sglang_logs.GIVEN)
"""Option -> the argument that says it."""

QUANTISED: Final = {format_: written(servers.QUANTISED)[format_] for format_ in ("fp8", "nf4")}
"""Format that vLLM and SGLang can make of a 16-bit checkpoint while loading -> their name for that."""

VLLM_DRAFTS: Final = {**written(vllm_logs.DRAFTS), "model": "draft_model"}
SGLANG_DRAFTS: Final = {
    **{kind: written(sglang_logs.DRAFTS)[kind] for kind in ("eagle", "eagle3", "mtp", "ngram")}, "model": "STANDALONE",
}

PLACE: Final = (
    ('NODE_RANK="${NODE_RANK:-0}"', "which machine this is"),
    ('MASTER_ADDR="${MASTER_ADDR:-localhost}"', "the first machine"),
    ('MASTER_PORT="${MASTER_PORT:-29500}"', ""),
)


def write_vllm(order: Order) -> tuple[File, ...]:
    """`vllm serve` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, vllm_settings(order.job)
    lines = [
        Line("", hub_id(job.model), "the checkpoint"),
        *_degrees(order, (VLLM["tp"], VLLM["pp"], VLLM["dp"])),
    ]
    if ask("expert_parallel"):
        lines.append(Line(VLLM["expert-parallel"], True, "whole experts per rank"))
    if ask("dcp") > 1:
        lines.append(Line(VLLM["dcp"], job.plan.dcp, "the cache is divided inside a tp group"))
    lines += _dtypes(order, VLLM)
    ask.also("memory_fraction", "max_sequences", "batched_tokens", "block_tokens", "prefix_caching")
    lines += [
        Line(VLLM["context"], job.context, "longest sequence, prompt and answer"),
        Line(VLLM["memory-fraction"], settings.memory_fraction, "share of the card vLLM may take"),
        Line(VLLM["max-sequences"], settings.max_sequences, "sequences at once"),
        Line(VLLM["batched-tokens"], settings.batched_tokens, "tokens of one step"),
        Line(VLLM["block-tokens"], settings.block_tokens, "tokens of a cache block"),
        Line(("" if settings.prefix_caching else "no-") + VLLM["prefix-caching"], True),
    ]
    if ask("cache_bytes") is not None:
        lines.append(Line(VLLM["cache-bytes"], job.plan.cache_bytes, "the cache of one card, whatever is free"))
    if not ask("graphs"):
        lines.append(Line(VLLM["graphs"], True, "no CUDA graphs"))
    lines += [*_adapters(order, VLLM["lora-slots"]), *_vllm_draft(order), *_vllm_options(order)]
    part = Part("vllm", "EngineArgs", further=("FrontendArgs",))
    return _script(order, "vllm serve", tuple(lines), part, _nodes(job, vllm=True))


def _adapters(order: Order, slots_option: str) -> list[Line]:
    slots, rank = order.ask("lora_slots"), order.ask("lora_rank")
    if not slots:
        return []
    return [Line("enable-lora", True), Line(slots_option, slots, "adapters on the card at once"),
            Line(VLLM["lora-rank"], rank, "largest rank")]


def _vllm_draft(order: Order) -> list[Line]:
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


def _vllm_options(order: Order) -> list[Line]:
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


def write_sglang(order: Order) -> tuple[File, ...]:
    """`python -m sglang.launch_server` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, sglang_settings(order.job)
    shared = shares_experts(job.plan)
    ask.also("tp", "dp", "expert_parallel", "memory_fraction", "max_sequences", "batched_tokens", "block_tokens")
    width = job.plan.tp * (job.plan.dp if shared else 1)
    lines = [
        Line(SGLANG["model"], hub_id(job.model)),
        Line(SGLANG["tp"], width, "ranks that divide every layer, attention groups together"),
        Line(SGLANG["pp"], ask("pp"), "stages"),
    ]
    if shared:
        lines.append(Line("attn-dp-size", job.plan.dp, "groups that attend apart and share experts"))
    elif job.plan.dp > 1:
        lines.append(Line("dp-size", job.plan.dp, "whole copies"))
    if job.plan.expert_parallel:
        lines.append(Line("ep-size", width, "whole experts per rank"))
    lines += _dtypes(order, SGLANG)
    lines += [
        Line(SGLANG["context"], job.context, "longest sequence, prompt and answer"),
        Line(SGLANG["memory-fraction"], settings.fraction, "share of the card for weights and cache"),
        Line(SGLANG["batched-tokens"], settings.chunk * (job.plan.dp if shared else 1), "tokens of one prefill step"),
        Line(SGLANG["block-tokens"], settings.page_tokens, "tokens of a cache page"),
    ]
    if settings.max_running is not None:
        lines.append(Line(SGLANG["max-sequences"], settings.max_running, "sequences at once"))
    if settings.graph_sequences:
        lines.append(Line("cuda-graph-max-bs-decode", settings.graph_sequences, "largest batch with a graph"))
    if not ask("graphs"):
        lines += [Line("disable-decode-cuda-graph", True), Line("disable-prefill-cuda-graph", True)]
    if ask("prefix_caching") is False:
        lines.append(Line(SGLANG["prefix-caching"], True, "finished sequences are not kept"))
    if ask("cache_bytes") is not None:
        raise Unsupported("SGLang sizes its cache by a fraction; use --memory-fraction, or --engine vllm")
    lines += [*_adapters(order, "max-loras-per-batch"), *_sglang_draft(order), *_sglang_options(order)]
    return _script(order, "python -m sglang.launch_server", tuple(lines), Part("sglang", "ServerArgs"), _nodes(job))


def _sglang_draft(order: Order) -> list[Line]:
    ask = order.ask
    kind = ask("draft.kind")
    if kind is None:
        return []
    if kind not in SGLANG_DRAFTS:
        raise Unsupported(f"SGLang has no drafts by {kind}; use {', '.join(SGLANG_DRAFTS)}")
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


def _sglang_options(order: Order) -> list[Line]:
    variables = [f"option.{name}" for name in variables_of("sglang")]
    written = "option.cuda-graph-max-bs"  # with the settings
    names = [name for name in order.ask.settings if name.startswith("option.") and name not in (*variables, written)]
    order.ask.also("images", written, *variables)
    return [Line(name.removeprefix("option."), order.ask(name), "as planned") for name in names]


def write_tensorrt_llm(order: Order) -> tuple[File, ...]:
    """`trtllm-serve` and the file beside it for what has no option."""
    job: ServeJob = order.job
    ask, settings = order.ask, tensorrt_llm_settings(order.job)
    if not settings.pytorch:
        raise Unsupported("commands are written for TensorRT-LLM 1.0 and later, which serves without a built engine")
    if ask("dp") > 1 or ask("draft.kind") is not None or ask("lora_slots"):
        raise Unsupported("copies, drafts and adapters of TensorRT-LLM are not written here; use --engine vllm")
    ask.also("max_sequences", "batched_tokens", "memory_fraction", "lora_rank", "cache_bytes", "block_tokens")
    lines = [
        Line("backend", "pytorch"), *_degrees(order, ("tp_size", "pp_size")),
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
    notes = (*_weights_note(order), *one_of_several(order, SERVE))
    script = _text(order, f"trtllm-serve {hub_id(job.model)}", tuple(lines))
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


def write_llamacpp(order: Order) -> tuple[File, ...]:
    """`llama-server` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, llamacpp_settings(order.job)
    ask.also("tp", "kv_dtype", "v_dtype", "max_sequences", "micro_batch", "attention")
    layers = ask("gpu_layers")
    lines = [
        Line("model", f"{job.model.name}-{ask('weights') or 'f16'}.gguf", "the file to serve"),
        Line("ctx-size", settings.context, "cells of the cache over all slots"),
        Line("parallel", settings.slots, "slots"),
        Line("ubatch-size", settings.micro_batch, "tokens of one graph"),
        Line("gpu-layers", job.model.num_layers + 1 if layers is None else layers, "layers on the cards"),
        Line("flash-attn", "on" if settings.flash else "off"),
        Line("cache-type-k", settings.k_type), Line("cache-type-v", settings.v_type),
    ]
    ask.also("context", "concurrency", "input_len", "output_len", "images")
    lines += [*_llamacpp_options(order), Line("host", "0.0.0.0"), Line("port", PORT)]
    text = _text(order, "llama-server", tuple(lines))
    return (order.file(SERVE, text, (Part("llamacpp", "arguments"),), one_of_several(order, SERVE), executable=True),)


LLAMACPP_VALUES: Final = {"batch": "batch-size", "n-cpu-moe": "n-cpu-moe", "override-tensor": "override-tensor",
                          "tensor-split": "tensor-split", "split-mode": "split-mode", "device": "device",
                          "threads": "threads"}
LLAMACPP_SWITCHES: Final = {"kv-unified": ("kv-unified", True), "swa-full": ("swa-full", True),
                            "cpu-moe": ("cpu-moe", True), "op-offload": ("no-op-offload", False),
                            "kv-offload": ("no-kv-offload", False)}


def _llamacpp_options(order: Order) -> list[Line]:
    ask, lines = order.ask, []
    for option, name in LLAMACPP_VALUES.items():
        if ask(f"option.{option}") is not None:
            lines.append(Line(name, ask(f"option.{option}"), "as planned"))
    for option, (name, when) in LLAMACPP_SWITCHES.items():
        if ask(f"option.{option}") is when:
            lines.append(Line(name, True, "as planned"))
    return lines


def _degrees(order: Order, names: tuple[str, ...]) -> list[Line]:
    reasons = ("ranks that divide every layer", "stages", "copies")
    fields = ("tp", "pp", "dp")
    return [Line(name, order.ask(field), why) for name, field, why in zip(names, fields, reasons, strict=False)]


def _dtypes(order: Order, names: Mapping[str, str]) -> list[Line]:
    ask, job = order.ask, order.job
    ask.also("context", "concurrency", "input_len", "output_len", "image_size")
    lines = []
    if ask("dtype") is not None:
        lines.append(Line(names["dtype"], DTYPES[job.plan.dtype], "activations and unquantised weights"))
    if job.plan.weights in QUANTISED:
        lines.append(Line(names["quantisation"], QUANTISED[ask("weights")], "made while the checkpoint loads"))
    kv = ask("kv_dtype")
    if kv != "auto":
        named = "fp8_e4m3" if kv == "fp8" and job.engine == "sglang" else DTYPES.get(kv, kv)
        lines.append(Line(names["kv-dtype"], named, "keys and values"))
    return lines


def _weights_note(order: Order) -> tuple[str, ...]:
    """A format that no engine makes while it loads must be in the checkpoint."""
    job: ServeJob = order.job
    weights = job.plan.weights
    if weights is None or (job.engine in ("vllm", "sglang") and weights in QUANTISED):
        return ()
    return (f"{SERVE}: name a checkpoint of {job.model.name} stored as {weights}; the one named is not",)


def _nodes(job: ServeJob, *, vllm: bool = False) -> Table:
    """Which machine this is, where there are several."""
    if job.cluster.num_nodes == 1:
        return ()
    if vllm:
        return (Line("nnodes", job.cluster.num_nodes), Line("node-rank", "$NODE_RANK"),
                Line("master-addr", "$MASTER_ADDR"), Line("master-port", "$MASTER_PORT"))
    return (Line("nnodes", job.cluster.num_nodes), Line("node-rank", "$NODE_RANK"),
            Line("dist-init-addr", "$MASTER_ADDR:$MASTER_PORT"))


def _script(order: Order, command: str, lines: Table, part: Part, nodes: Table) -> tuple[File, ...]:
    lines = (*lines, Line("host", "0.0.0.0"), Line("port", PORT))
    text = _text(order, command, lines, nodes)
    notes = (*_weights_note(order), *one_of_several(order, SERVE))
    return (order.file(SERVE, text, (part,), notes, executable=True),)


def _text(order: Order, command: str, lines: Table, nodes: Table = ()) -> str:
    known = variables_of(order.job.engine)
    variables = [
        Line(known[name.removeprefix("option.")], int(bool(value)), "as planned")
        for name, value in order.ask.settings.items() if name.removeprefix("option.") in known
    ]
    head = head_of(order, *by_hand(order, SERVE, PORT))
    parts = [HEAD + comments(head) + "set -euo pipefail", IN_THE_FOLDER]
    if nodes:
        parts.append("\n".join(commented(text, why) for text, why in PLACE))
    if variables:
        parts.append(exports(variables))
    parts.append(array("ARGS", lines))
    more = "".join(f' --{line.name} "{line.value}"' for line in nodes)
    parts.append(f'{command} "${{ARGS[@]}}"{more} "$@"')
    return "\n\n".join(parts) + "\n"

