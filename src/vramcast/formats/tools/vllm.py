"""vLLM's command, and the YAML of its --config.

[vLLM] vllm engine/arg_utils.py; `vllm serve MODEL --name value`
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.domain.version import Version, last_patch
from vramcast.engines.serving.requests import variables_of
from vramcast.engines.vllm.settings import ATTENTION_BACKENDS, BACKEND_ARGUMENT_SINCE, KNOWN, V0_CHUNKS_SINCE
from vramcast.engines.vllm.settings import settings_of as vllm_settings
from vramcast.errors import Note
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import adapters, degrees, dtypes, nodes_of, serve_script
from vramcast.formats.lines import Line, Table, when
from vramcast.formats.reading import Config, Reading, plain, written
from vramcast.formats.servers import Server, argument_names, read_server, several, stretched, table_of, targets_of
from vramcast.formats.unread import KERNELS
from vramcast.formats.watched import Known, Watched
from vramcast.sources.logs import vllm as vllm_logs

VLLM_ARGUMENTS: Final = Known("vllm", "EngineArgs", (Known("vllm", "FrontendArgs"),))

OF_V1: Final = "_VLLM_V1"
"""What names of kernels ended with while there were two engines."""

OF_ENVIRONMENT: Final = {KERNELS: "attention_backend_of_environment"}

SHORT: Final = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "q": "quantization",
    "dcp": "decode_context_parallel_size", "ep": "enable_expert_parallel", "m": "model", "t": "tensor_parallel_size",
    "pcp": "prefill_context_parallel_size", "n": "nnodes", "r": "node_rank", "dpl": "data_parallel_size_local",
    "O": "optimization_level", "O.": "compilation_config", "cc": "compilation_config", "asc": "api_server_count",
    "ac": "attention_config", "sc": "speculative_config", "dpn": "data_parallel_rank",
    "dpr": "data_parallel_start_rank", "dpa": "data_parallel_address", "dpp": "data_parallel_rpc_port",
    "dpb": "data_parallel_backend", "dph": "data_parallel_hybrid_lb", "dpe": "data_parallel_external_lb",
}
"""Short names of vLLM's arguments."""


NAMES: Final = argument_names(vllm_logs.GIVEN)

NO_SINCE: Final[Version] = (0, 8, 5)
"""Flags have a `--no-` form; before, this one takes a word [vllm/engine/arg_utils.py `StoreBoolean`]."""

VLLM_DRAFTS: Final = {**written(vllm_logs.DRAFTS), "model": "draft_model"}


LEGACY: Final = {
    "speculative_model": "model", "num_speculative_tokens": "num_speculative_tokens",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size", "spec_method": "method",
    "spec_model": "model", "spec_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max", "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_model_quantization": "quantization", "speculative_max_model_len": "max_model_len",
}
"""Arguments of their own -> the key of `speculative_config` that they are [0.6.6 and 0.22.0 engine/arg_utils.py]."""

OF_DRAFTS: Final = (
    "prompt_lookup_max", "prompt_lookup_min", "draft_sample_method", "rejection_sample_method", "disable_logprobs",
    "disable_by_batch_size", "revision", "code_revision", "acceptance_method", "posterior_threshold",
    "posterior_alpha", "disable_mqa_scorer",
)
"""Keys of it that change which proposals are accepted, which no answer counts, or where the draft comes from."""

FAST_KERNELS: Final = (
    "custom_ops", "splitting_ops", "use_inductor", "use_inductor_graph_partition", "inductor_compile_config",
    "inductor_passes", "compile_sizes", "compile_ranges_split_points", "compile_mm_encoder", "backend",
)
"""Keys of `compilation_config` that choose kernels: memory stays, the time moves by the share of small operators."""

ALLREDUCE: Final = (
    "fuse_allreduce_rms", "enable_fi_allreduce_fusion", "fuse_gemm_comms", "enable_async_tp", "enable_sp",
    "enable_sequence_parallelism",
)
"""Passes with workspaces of their own."""

MULTIPLIED: Final = ("linear", "dynamic", "yarn", "ntk")
"""Scalings by whose factor vLLM multiplies the longest sequence [config/model.py `_get_and_verify_max_len`]."""


def _own(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {} if "tensor_parallel_size" in values else {"tp": 1}
    options: list[str] = []
    if (limits := values.get("limit_mm_per_prompt")) is not None:
        options += _images(values, limits)
    if values.flag("language_model_only"):
        options.append("language-model-only=true")
    sends, without = _sends_caches(values), values.flag("disable_hybrid_kv_cache_manager")
    if without or (sends and without is None):
        options.append("hybrid-manager=false")
    if (states := values.get("mamba_ssm_cache_dtype")) is not None:
        options.append(f"mamba-ssm-cache-dtype={states}")
    if (chunks := values.flag("enable_chunked_prefill")) is not None:
        options.append(f"chunked-prefill={str(chunks).lower()}")
    if (backend := _attention(values)) is not None:
        options.append(f"attention-backend={backend}")
    if "data" in (values.get("mm_encoder_tp_mode"), values.flag("enable_multimodal_encoder_data_parallel") and "data"):
        options.append("mm-encoder-tp-mode=data")
    compiled, eager = _compiled(values)
    options += _captured(values, compiled)
    positions, lengthened = stretched(values, "hf_overrides", "max_model_len", multiplied=MULTIPLIED)
    found |= positions | ({"graphs": False} if eager else {})
    options += ["allow-long=true"] if lengthened else []
    _without_others(values, found.get("tp", values.count("tensor_parallel_size") or 1))
    found |= {"engine-option": tuple(options)} if options else {}
    return found | _draft(values)


def _attention(values: Watched) -> str | None:
    """Whose kernels attend: an argument, a key of a table, before 0.14 a variable [vllm/config/attention.py]."""
    if (given := values.get("attention_config")) is not None:
        values.inner["attention_config"] = inner = Watched(table_of(given), Known("vllm", "attention_config"))
        values.setdefault("attention_backend", inner.get("backend"))
    named = values.get("attention_backend", older := values.get(OF_ENVIRONMENT[KERNELS]))
    if older is not None and older == named:
        values.assumed.append(Note("{}: read by vLLM up to 0.14, later --attention-backend", KERNELS))
    if named in (None, "auto"):
        return None
    name = str(named).upper().removesuffix(OF_V1)
    if name not in ATTENTION_BACKENDS:
        values.cannot("attention_backend", "{} is not modelled; {} are", str(named)[:40], ", ".join(ATTENTION_BACKENDS))
        return None
    return name


def _sends_caches(values: Watched) -> bool:
    """Whether blocks are sent to or fetched from other servers, which takes the manager of hybrid caches away.

    NIXL registers the caches themselves and takes no tensors of its own on the card
    [kv_connector/v1/nixl_connector.py `register_kv_caches`; config/vllm.py: no hybrid manager beside a connector].
    """
    given = values.get("kv_transfer_config")
    if given is None:
        return False
    inner = Watched(table_of(given), Known("vllm", "kv_transfer_config"))
    if (connector := inner.get("kv_connector")) != "NixlConnector":
        what = Note(
            "{} is not modelled; NixlConnector is", str(connector)[:40]
        ) if connector else "names no kv_connector"
        values.cannot("kv_transfer_config", what)
        return False
    values.inner["kv_transfer_config"] = inner
    inner.only("kv_buffer_device", "cuda")
    values.assumed += ["NIXL sends the cache from where it lies; what its library holds on the card is not counted",
                       "NIXL hands prompts from one server to another: speed is that of a server that computes its own"]
    return True


def _without_others(values: Watched, tp: int) -> None:
    """Arguments that say nothing without ranks, or adapters, beside one."""
    if tp == 1:
        values.get("disable_custom_all_reduce")
    if (values.count("data_parallel_size") or 1) == 1:
        values.ignore("disable_nccl_for_dp_synchronization", "enable_dbo", "ubatch_size")
    if (values.count("decode_context_parallel_size") or 1) == 1:
        values.ignore("dcp_comm_backend", "dcp_kv_cache_interleave_size", "dcp_q_replicate")
    if not values.flag("enable_lora"):
        values.ignore("fully_sharded_loras", "lora_dtype", "lora_target_modules", "lora_extra_vocab_size",
                      "specialize_active_lora", "enable_lora_bias", "long_lora_scaling_factors")
    if values.get("load_format") == "fastsafetensors":
        values.assumed.append("load_format fastsafetensors: files that pass through the card while it loads are not "
                              "counted")
    plugins = values.get("logits_processors")
    if plugins is not None and not all(str(one).startswith("vllm.") for one in several(plugins)):
        values.cannot("logits_processors")
    if (extra := values.get("additional_config")) is not None and table_of(extra):
        values.cannot("additional_config")


def _compiled(values: Watched) -> tuple[Watched, bool]:
    """The compiler's table, and whether it switches the graphs off [config/compilation.py]."""
    if str(values.get("optimization_level")).startswith("{"):  # `-O '{...}'` before it had levels of its own
        values.setdefault("compilation_config", values.pop("optimization_level"))
    given = values.get("compilation_config")
    level = given if isinstance(given, int) and not isinstance(given, bool) else None
    inner = Watched(table_of(given) if level is None else {"level": level}, Known("vllm", "compilation_config"))
    values.inner["compilation_config"] = inner
    if given is not None and level is None and not inner and given != "{}":
        values.refuse("compilation_config", "a table")
    mode = inner.get("cudagraph_mode")
    eager = mode in ("NONE", 0) or inner.flag("use_cudagraph") is False
    if mode not in (None, "NONE", 0, "FULL_AND_PIECEWISE"):
        inner.cannot("cudagraph_mode", "{} captures other graphs than FULL_AND_PIECEWISE, which are not modelled",
                     str(mode)[:30])
    for name in ("level", "mode"):
        inner.only(name, 3, "VLLM_COMPILE")
    passes = table_of(inner.get("pass_config"))
    if asked := [name for name in ALLREDUCE if passes.get(name)]:
        inner.cannot("pass_config", "{} takes a workspace that is not modelled", asked[0])
    kernels = [name for name in (*FAST_KERNELS, "pass_config") if inner.get(name) not in (None, {}, [])]
    if kernels:
        values.assumed.append(Note(
            "compilation_config {}: the time is that of the kernels that vLLM compiles by itself", ", ".join(kernels)
        ))
    return inner, eager


def _captured(values: Watched, compiled: Watched) -> list[str]:
    """Batch sizes with a graph: listed, or up to the largest [config/vllm.py `_set_cudagraph_sizes`]."""
    older = values.get("cuda_graph_sizes")
    one = several(older) if older is not None else []
    listed = compiled.get("cudagraph_capture_sizes", one if len(one) > 1 else None)
    sizes = values.get("cudagraph_capture_sizes", listed)
    largest = values.count("max_cudagraph_capture_size") or compiled.count("max_cudagraph_capture_size") or (
        one[0] if len(one) == 1 else None)
    if sizes is not None:
        return [f"graph-sizes={len(several(sizes))}"]
    return [f"largest-graph={largest}"] if largest is not None else []


COUNTED: Final = {"image": "images", "video": "videos"}
"""Kinds of `--limit-mm-per-prompt` -> engine option."""


def _images(values: Watched, limits: Any) -> list[str]:
    """`{"image": 2}`, or image=2 as it was written before 0.9."""
    pairs = dict(part.partition("=")[::2] for part in str(limits).split(",")) if isinstance(limits, str) and (
        "=" in limits) else table_of(limits)
    counts = {kind: plain(str(count)) for kind, count in pairs.items()}
    others = [kind for kind, count in counts.items()
              if count != 0 and not (kind in (*COUNTED, "audio") and type(count) is int)]
    if others or not counts:
        what = ", ".join(others) or "what it says"
        values.cannot("limit_mm_per_prompt", "{} is not modelled; numbers of images and videos are", what)
        return []
    return [f"{COUNTED[kind]}={count}" for kind, count in counts.items() if kind in COUNTED]


def _draft(values: Watched) -> dict[str, Any]:
    """Speculative decoding [vllm config/speculative.py]."""
    given = values.get("speculative_config")
    table = table_of(given) | {key: value for name, key in LEGACY.items() if (value := values.get(name)) is not None}
    if given is None and not table:
        return {}
    if table.get("model") in ("[ngram]", "ngram"):
        table = {name: value for name, value in table.items() if name != "model"} | {"method": "ngram"}
    config = Watched(table)
    method, tokens, model = config.text("method"), config.count("num_speculative_tokens"), config.text("model")
    kind = vllm_logs.DRAFTS.get(str(method)) or ("mtp" if str(method).endswith("_mtp") else None)
    if kind is None and method in (None, "draft_model") and model is not None:
        named = model.lower()  # as vLLM tells heads from whole models
        kind = "eagle3" if "eagle3" in named else "eagle" if "eagle-" in named else model
    if kind == "ngram" or config.get("draft_tensor_parallel_size", 1) == 1:
        config.get("draft_tensor_parallel_size")
    config.ignore(*OF_DRAFTS)
    if kind is None or tokens is None or (left := [name for name in config if name not in config.asked]):
        what = f"method {str(method)[:40]}" if kind is None else "num_speculative_tokens" if tokens is None else left[0]
        values.cannot("speculative_config", "{} is not modelled; --draft names what is", what, option="draft")
        return {}
    return {"draft": kind, "draft-tokens": tokens}


def write(order: Order) -> tuple[File, ...]:
    """`vllm serve` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, vllm_settings(order.job)
    ask.also("memory_fraction", "max_sequences", "batched_tokens", "block_tokens", "prefix_caching")
    lines = (
        Line("", hub_id(job.model), "the checkpoint"),
        *degrees(order, (NAMES["tp"], NAMES["pp"], NAMES["dp"])),
        *when(ask("expert_parallel"), Line(NAMES["expert-parallel"], True, "whole experts per rank")),
        *when(ask("dcp") > 1, Line(NAMES["dcp"], job.plan.dcp, "the cache is divided inside a tp group")),
        *dtypes(order, NAMES),
        Line(NAMES["context"], job.context, "longest sequence, prompt and answer"),
        Line(NAMES["memory-fraction"], settings.memory_fraction, "share of the card vLLM may take"),
        Line(NAMES["max-sequences"], settings.max_sequences, "sequences at once"),
        Line(NAMES["batched-tokens"], settings.batched_tokens, "tokens of one step"),
        Line(NAMES["block-tokens"], settings.block_tokens, "tokens of a cache block"),
        Line(("" if settings.prefix_caching else "no-") + NAMES["prefix-caching"], True),
        Line(NAMES["cache-bytes"], ask("cache_bytes"), "the cache of one card, whatever is free"),
        Line(NAMES["graphs"], not ask("graphs"), "no CUDA graphs"),
        *adapters(order, NAMES["lora-slots"]), *_draft_lines(order), *_option_lines(order),
    )
    part = Part("vllm", "EngineArgs", further=("FrontendArgs",))
    older = when(job.version < BACKEND_ARGUMENT_SINCE,
                 Line(KERNELS, ask("option.attention-backend"), "whose kernels attend"))
    return serve_script(order, "vllm serve", lines, part, nodes_of(job, vllm=True), older)


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


def _chunk_lines(version: Version, chunks: bool | None) -> Table:
    """Whether prompts are cut, where the question says."""
    why = "prompts are cut where a step is full"
    version = last_patch(version)
    if chunks is None or (not chunks and version < V0_CHUNKS_SINCE):  # a flag then, and off
        return ()
    if not chunks and version < NO_SINCE:
        return (Line("enable-chunked-prefill", "false", why),)
    return (Line(f"{'' if chunks else 'no-'}enable-chunked-prefill", True, why),)


def _option_lines(order: Order) -> Table:
    """Engine options that are options of the command line."""
    ask = order.ask
    images = ask("option.images") if ask("option.images") is not None else ask("images") or None
    limits = {kind: count for kind, count in (("image", images), ("video", ask("option.videos"))) if count is not None}
    ask.also("option.offline", *(f"option.{name}" for name in variables_of("vllm")))
    return (
        Line("language-model-only", bool(ask("option.language-model-only")), "towers are not loaded"),
        *when(limits and len(order.job.model.stacks) > 1,  # towers alone take one each
              Line("limit-mm-per-prompt", json.dumps(limits), f"{' and '.join(limits)}s in a prompt")),
        *when(order.job.version >= BACKEND_ARGUMENT_SINCE,
              Line("attention-backend", ask("option.attention-backend"), "whose kernels attend")),
        *_chunk_lines(order.job.version, ask("option.chunked-prefill")),
        Line("mm-encoder-tp-mode", ask("option.mm-encoder-tp-mode"), "how ranks share the towers"),
        Line("max-cudagraph-capture-size", ask("option.largest-graph"), "largest batch with a graph"),
        Line("disable-hybrid-kv-cache-manager", ask("option.hybrid-manager") is False,
             "every layer keeps whole sequences"),
        Line("mamba-ssm-cache-dtype", ask("option.mamba-ssm-cache-dtype"), "of recurrent states"),
    )


SERVER: Final = Server(
    "vllm", VLLM_ARGUMENTS, targets_of(vllm_logs.GIVEN), SHORT,
    start=re.compile(r"vllm\.entrypoints\.\S+|\S*vllm/vllm-openai\S*|vllm-openai\S*"),
    image=re.compile(r"vllm/vllm-openai\S*?:v?(\d[\w.]*)|\bvllm(?:\[[\w,-]*\])?==(\d[\w.]*)"),
    own=_own, slots=1, named_model=True,
    arguments=OF_ENVIRONMENT,
    parts={name: known.about for name, known in KNOWN.items() if known.about},
)


OF_TRL: Final = re.compile(r"\btrl vllm-serve\b|(?:\btrl[./]scripts[./]|(?<![\w.]))vllm_serve(?:\.py)?(?![\w.])")
TRL: Final = SERVER._replace(
    start=re.compile(r"vllm-serve|(?:trl\.scripts\.|(?:\S*/)?)vllm_serve(?:\.py)?"),
    short=SHORT | {"vllm_model_impl": "model_impl", "log_level": "uvicorn_log_level"},
)
"""TRL's server, whose arguments go to vLLM's `LLM` class [huggingface/trl trl/scripts/vllm_serve.py]."""


def read(config: Config) -> Reading:
    """Options of vLLM."""
    if config.table is not None or OF_TRL.search(config.text) is None:
        return read_server(config, SERVER)
    found = read_server(config, TRL)
    pairs = (*found.options.get("engine-option", ()), "offline=true")
    return found._replace(options=found.options | {"engine-option": pairs}, notes=(
        *found.notes, "trl vllm-serve: what NCCL holds on the card for weights that the trainer sends is not counted"))
