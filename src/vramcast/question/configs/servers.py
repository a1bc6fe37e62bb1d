"""Commands and configuration files of vLLM and SGLang.

[vLLM] vllm engine/arg_utils.py; `vllm serve MODEL --name value` or a YAML of --config
[SGLang] sglang srt/server_args.py, srt/arg_groups/fields/*.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import load_format
from vramcast.engines.serving.requests import variables_of
from vramcast.errors import SourceError
from vramcast.question.configs.environment import unread_environment
from vramcast.question.configs.reading import ELSEWHERE, NO_GPU, Command, Config, Reading, Unread, command_of, plain
from vramcast.question.configs.watched import Known, Watched
from vramcast.sources.logs import sglang as sglang_logs
from vramcast.sources.logs import vllm as vllm_logs
from vramcast.sources.logs.options import Target, translated

VLLM_ARGUMENTS: Final = Known("vllm", "EngineArgs", (Known("vllm", "FrontendArgs"),))
SGLANG_ARGUMENTS: Final = Known("sglang", "ServerArgs")

APART: Final = (
    "model", "model_path", "quantization", "max_seq_len", "max_loras", "max_lora_rank", "max_loras_per_batch",
)
"""Arguments of the logs' tables that are read in another way here, or that only logs have."""

SHORT: Final = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "q": "quantization",
    "dcp": "decode_context_parallel_size", "ep": "enable_expert_parallel", "m": "model", "t": "tensor_parallel_size",
    "pcp": "prefill_context_parallel_size", "n": "nnodes", "r": "node_rank", "dpl": "data_parallel_size_local",
    "O": "optimization_level", "cc": "compilation_config",
}
"""Short names of vLLM's arguments."""

SGLANG_SHORT: Final = {
    "tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "ep": "ep_size", "model": "model_path",
    "tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size", "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size", "mem_frac": "mem_fraction_static", "speculative_draft_model":
    "speculative_draft_model_path", "speculative_algo": "speculative_algorithm",
}

QUANTISED: Final = {
    "fp8": "fp8", "awq": "awq-int4", "awq_marlin": "awq-int4", "gptq": "gptq-int4", "gptq_marlin": "gptq-int4",
    "bitsandbytes": "nf4", "mxfp4": "mxfp4", "modelopt_fp4": "nvfp4", "modelopt": "fp8", "modelopt_fp8": "fp8",
    "w8a8_int8": "int8", "w8a8_fp8": "fp8",
}
"""`--quantization` -> how the weights are stored."""

HUMAN: Final = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")
"""Numbers that vLLM reads with a suffix [vllm engine/arg_utils.py, human_readable_int]."""

SUFFIXES: Final = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
}

OFF: Final = ("", "auto", -1)
"""Values that leave a choice to the engine."""

SWITCHED: Final = {"1": "true", "true": "true", "0": "false", "false": "false"}
"""How variables of the environment switch something [vllm vllm/envs.py]."""

FITTED: Final = ("max_model_len",)
"""What vLLM then makes as large as the card allows, which is no default [vllm v1/core/kv_cache_utils.py,
`_auto_fit_max_model_len`]."""

USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "enable_chunked_prefill": (True,), "async_scheduling": (True,), "optimization_level": (2, 3),
    "runner": ("auto", "generate"), "task": ("auto", "generate"), "model_impl": ("auto", "vllm"),
    "cpu_offload_gb": (0, 0.0),
    "load_format": ("auto", "safetensors", "pt", "npcache", "dummy", "bitsandbytes", "runai_streamer", "mistral"),
    "prefill_context_parallel_size": (1,), "mamba_cache_mode": ("none",), "performance_mode": ("balanced",),
    "attention_backend": ("auto",), "enable_sleep_mode": (False,),
    "mm_encoder_tp_mode": ("weights",), "offload_backend": ("auto",),
    # SGLang's
    "ep_num_redundant_experts": (0,), "speculative_eagle_topk": (1,), "disaggregation_mode": ("null", None),
    "moe_a2a_backend": ("none",),
}
"""Arguments that change nothing with these values, and are not modelled with others."""

VERSIONS: Final[dict[str, re.Pattern[str]]] = {
    "vllm": re.compile(r"vllm/vllm-openai\S*?:v?(\d[\w.]*)|\bvllm(?:\[[\w,-]*\])?==(\d[\w.]*)"),
    "sglang": re.compile(r"lmsysorg/sglang\S*?:v?(\d[\w.]*)|\bsglang(?:\[[\w,-]*\])?==(\d[\w.]*)"),
}
"""Engine -> where a script names its version: the tag of the image, or what it installs."""

OTHER_IMAGES: Final = re.compile(r"\b(nvcr\.io/\S+|rocm/\S+|intel/\S+|quay\.io/ascend/\S+|\S+-rocm\S*|\S+:\S*rocm\S*)")
"""Images of other builds, whose version is none of the engine's."""

TAGGED: Final = re.compile(r"((?:vllm/vllm-openai|lmsysorg/sglang):(?!v?\d|latest\b|\$)[^\s'\"]+)")
"""Images of the engines whose tag is a name: of one model, of one day, of one's own."""

WITHOUT_CARDS: Final = re.compile(
    r"(?i)\b(\S*(?:vllm|sglang)[\w./-]*(?:-|:)(?:\S*-)?(?:cpu|xpu|tpu|npu|hpu|neuron|xeon)\b[^\s'\"]*)"
)
"""Images of the engines that run on no GPU of the catalogue."""


class Server(NamedTuple):
    """What tells one server from the other."""

    engine: str
    known: Known
    targets: dict[str, Target]
    short: dict[str, str]
    drafts: dict[str, str]


def _targets(table: Mapping[str, Target]) -> dict[str, Target]:
    return {name: target for name, target in table.items() if name not in APART}


VLLM: Final = Server("vllm", VLLM_ARGUMENTS, _targets(vllm_logs.GIVEN), SHORT, vllm_logs.DRAFTS)
SGLANG: Final = Server(
    "sglang", SGLANG_ARGUMENTS, _targets(sglang_logs.GIVEN), SGLANG_SHORT, sglang_logs.DRAFTS
)


def is_vllm(config: Config) -> bool:
    """A `vllm serve` command, or a table with its names."""
    if config.table is not None:
        return any(name.replace("-", "_") in ("gpu_memory_utilization", "max_model_len", "max_num_seqs")
                   for name in config.table)
    return any(name in config.text for name in ("vllm serve", "vllm.entrypoints", "vllm/vllm-openai"))


def is_sglang(config: Config) -> bool:
    """A command that launches SGLang."""
    return config.table is None and any(name in config.text for name in ("sglang.launch_server", "sglang serve"))


def read_vllm(config: Config) -> Reading:
    """Options of vLLM."""
    return _read(config, VLLM)


def read_sglang(config: Config) -> Reading:
    """Options of SGLang."""
    return _read(config, SGLANG)


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


def _read(config: Config, server: Server) -> Reading:
    command, given, place = _given(config, server)
    values = Watched(given, server.known, undecided=command.undecided)
    options: dict[str, Any] = {"engine": server.engine} | translated(values, server.targets)
    for name, (option, _) in server.targets.items():
        value = values.get(name)
        wanted = value is not None and (value not in OFF or name in FITTED) and not isinstance(value, bool)
        if wanted and option not in translated({name: value}, {name: server.targets[name]}):
            values.refuse(name, "a value that is understood", option=option)
    models = [text for name in ("model", "model_tag", "model_path") if isinstance(text := values.get(name), str)]
    options |= {"model": models[0]} if models else {}
    if "config" in values:
        values.cannot("config", ELSEWHERE, file=server.engine)
    if values.get("device") not in (None, "auto", "cuda", "rocm"):
        values.cannot("device", NO_GPU)
    options |= _stored(values, models) | _adapters(values, server)
    options |= _vllm(values) if server is VLLM else _sglang(values)
    known = variables_of(server.engine)
    texts = {option: command.variables.get(name, "").lower() for option, name in known.items()}
    switches = {option: SWITCHED[text] for option, text in texts.items() if text in SWITCHED}
    pairs = tuple(f"{option}={value}" for option, value in switches.items())
    options |= {"engine-option": (*options.get("engine-option", ()), *pairs)} if pairs else {}
    for name, usual in USUAL.items():
        values.only(name, *usual)
    others = {name: text for name, text in command.variables.items() if name not in map(known.get, switches)}
    unread = [*command.unread, *place, *values.unread(), *unread_environment(others, allocator=False)]
    unread += _versions(config, server, options)
    return Reading(server.engine, options, unread=tuple(unread), notes=command.notes)


def _given(config: Config, server: Server) -> tuple[Command, dict[str, Any], list[Unread]]:
    """The command that starts a server, its arguments by their long names, and what of it is no argument."""
    if config.table is not None:
        values = {name.replace("-", "_"): value for name, value in config.table.items()}
        return Command(()), _long(values, server), []

    def score(words: tuple[str, ...]) -> int:
        fetched = words[:2] in (("docker", "pull"), ("docker", "build"), ("podman", "pull"))
        return len(words) if not fetched and _start(words, server) is not None else 0

    command = command_of(config, score)
    start = _start(command.words, server)
    if start is None and not any(word.startswith("-") for word in command.words):
        raise SourceError(f"{config.name}: no command that starts {server.engine} stands in it")
    named, plainly = split(command.words[start or 0:], server.known, server.short)
    values = _long(named, server)
    if plainly and server is VLLM:
        values.setdefault("model", plainly[0])
    stray = [Unread(word[:60], "is no argument of a command that is understood") for word in plainly[1:]]
    return command, values, stray if server is VLLM else [
        Unread(word[:60], "is no argument of a command that is understood") for word in plainly
    ]


STARTS: Final = {
    "vllm": re.compile(r"vllm\.entrypoints\.\S+|\S*vllm/vllm-openai\S*|vllm-openai\S*"),
    "sglang": re.compile(r"sglang\.launch_server|\S*/sglang/launch_server\.py"),
}
"""Engine -> the word behind which its arguments stand, beside `vllm serve` and `sglang serve`."""


def _start(words: tuple[str, ...], server: Server) -> int | None:
    """Where the arguments of a server begin."""
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == server.engine and words[place + 1 : place + 2] == ("serve",):
            return place + 2
    found = [place for place, word in enumerate(words) if STARTS[server.engine].fullmatch(word)]
    return found[-1] + 1 if found else None


def split(words: tuple[str, ...], known: Known, short: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Arguments by name, and words that belong to none: a flag takes no word, most names one, lists all that follow.

    >>> split(("m/x", "--enforce-eager", "-tp", "2", "--x.y=3"), VLLM_ARGUMENTS, SHORT)
    ({'enforce_eager': True, 'tp': 2, 'x.y': 3}, ['m/x'])
    """
    named: dict[str, Any] = {}
    others: list[str] = []
    name, room = "", 0
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            text, equals, value = word.lstrip("-").partition("=")
            if level := re.fullmatch(r"O(\d)", text):
                text, equals, value = "O", "=", level[1]
            name = text.replace("-", "_")
            entry = known.entry(short.get(name, name))
            kind = entry.kind if entry is not None else "any"
            room = 0 if equals else 1 if kind in ("bool", "flag") else 99 if kind == "list" else 1
            named[name] = plain(value) if equals else True
            flag = kind in ("bool", "flag")
        elif room and not (flag and word.lower() not in ("true", "false")):
            before = named[name]
            several = before if isinstance(before, list) else [before]
            named[name] = plain(word) if before is True else [*several, plain(word)]
            room -= 1
        else:
            others.append(word)
    return named, others


def _long(values: Mapping[str, Any], server: Server) -> dict[str, Any]:
    """Arguments by the names of the snapshot: short ones, switched-off ones and those of tables inside."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        table, point, inner = name.partition(".")
        long = _whole(server.short.get(name, name), server)
        off = long.removeprefix("no_")
        if point:
            before = _table(found.get(table))
            found[table] = {**before, inner: value}
        elif long.startswith("no_") and server.known.entry(off) is not None and value is True:
            found[off] = False
        else:
            found[long] = human_readable(value) if long in HUMAN else value
    return found


OLDER: Final = ("enable_dp_attention", "enable_ep_moe", "disable_cuda_graph", "cuda_graph_max_bs", "cuda_graph_bs",
                "max_seq_len_to_capture", "enable_torch_compile", "task", "config", "device")
"""Names of earlier versions, and of the command around the engine's, that begin those of others."""


def _whole(name: str, server: Server) -> str:
    """A name that only begins the one it stands for, as Python's argparse takes it."""
    if name in OLDER or server.known.entry(name) is not None or len(name) < 4 or name.startswith("no_"):
        return name
    names = load_format(server.known.format).sections[server.known.section]
    found = [whole for whole in names if whole.startswith(name)]
    return found[0] if len(found) == 1 else name


def _table(value: Any) -> dict[str, Any]:
    """A value that is a table, or the JSON of one; empty where it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def _stored(values: Watched, models: list[str]) -> dict[str, Any]:
    """How the weights are stored; GPTQ and AWQ only read what a checkpoint holds [vllm config/vllm.py, weight_utils.py
    `get_quant_config`: a checkpoint without them ends the start]."""
    method = str(values.get("quantization")).lower().partition("_")[0]
    if method in ("gptq", "awq") and models and models[0][0].isalnum() and method not in models[0].lower():
        why = f"{models[0][:80]} is no checkpoint in {method}; name one that is, or give --weights"
        values.cannot("quantization", why, option="weights")
        return {}
    weights = values.one_of("quantization", QUANTISED, lower=True, option="weights")
    return {"weights": weights} if weights else {}


def _adapters(values: Watched, server: Server) -> dict[str, Any]:
    """Room for adapters, which there is only where they are switched on."""
    switched = values.flag("enable_lora") or bool(values.get("lora_paths"))
    found = {
        option: size for name, option in (("max_loras", "lora-slots"), ("max_loras_per_batch", "lora-slots"),
                                          ("max_lora_rank", "lora-rank"))
        if (size := values.count(name)) is not None
    }
    if not switched:
        return {}
    if server is SGLANG and "lora-rank" not in found:
        values.cannot("max_lora_rank", "is not given: SGLang takes it from the adapters", option="lora-rank")
    return {"lora-slots": 8 if server is SGLANG else 1} | found


def _vllm(values: Watched) -> dict[str, Any]:
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
        "=" in limits) else _table(limits)
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
    config = Watched(_table(given))
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


def _sglang(values: Watched) -> dict[str, Any]:
    """Degrees as SGLang counts them: groups that attend apart are inside --tp, copies are beside it."""
    found: dict[str, Any] = {}
    tp, copies = values.count("tp_size") or 1, values.count("dp_size") or 1
    groups, shared = values.count("attn_dp_size") or 1, values.flag("enable_dp_attention")
    experts = tp if values.flag("enable_ep_moe") else values.count("ep_size")
    if shared or groups > 1:
        groups = copies if shared else groups
        if tp % groups:
            values.cannot("dp_size", f"{groups} does not divide tp_size={tp}")
        found |= {"tp": max(1, tp // groups), "dp": groups, "expert-parallel": True}
        if not shared and copies > 1:
            values.cannot("dp_size", f"{copies} copies of {groups} groups are not modelled", option="dp")
    else:
        found |= {"tp": tp, "dp": copies}
    if (experts or 1) not in (1, tp) or ((experts or 1) == 1 and groups > 1):
        why = f"{experts or 1} of tp_size={tp} is not modelled where groups attend apart; {tp} is"
        values.cannot("ep_size", why if groups > 1 else f"{experts} of tp_size={tp} is not modelled; {tp} is",
                      option="expert-parallel")
    elif experts not in (None, 1):
        found["expert-parallel"] = True
    for name in ("disable_cuda_graph", "disable_decode_cuda_graph"):
        if values.flag(name):
            found["graphs"] = False
    values.get("disable_prefill_cuda_graph")
    if (dcp := values.count("dcp_size") or 1) > 1:
        found["dcp"] = dcp
    found |= _sglang_draft(values) | _sglang_options(values)
    return found


SGLANG_OPTIONS: Final = (
    "cuda_graph_max_bs", "max_total_tokens", "swa_full_tokens_ratio", "mamba_full_memory_ratio", "max_mamba_cache_size",
    "disable_hybrid_swa_memory",
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
    kind = model if name == "STANDALONE" else SGLANG.drafts.get(name)
    kind = "mtp" if kind == "eagle" and model is None else kind  # the model's own layers propose
    tokens = steps or (drafted - 1 if drafted and drafted > 1 else None)
    if kind is None or tokens is None:
        missing = "its kind" if kind is None else "speculative_num_steps, which depends on the network"
        why = f"{name[:40]} is not modelled without {missing}; give --draft and --draft-tokens"
        values.cannot("speculative_algorithm", why, option="draft")
        return {}
    return {"draft": kind, "draft-tokens": tokens}


def _versions(config: Config, server: Server, options: dict[str, Any]) -> Iterator[Unread]:
    """The version that an image or a package names, put into the options."""
    if config.table is not None:
        return
    found = {one or other for one, other in VERSIONS[server.engine].findall(config.text)}
    if len(found) == 1:
        options["engine"] = f"{server.engine}@{_release(next(iter(found)))}"
    elif found:
        why = f"is named in {len(found)} versions; give --engine {server.engine}@VERSION"
        yield Unread(server.engine, why, "engine")
    if (image := WITHOUT_CARDS.search(config.text)) is not None:
        yield Unread(image[1][:60], NO_GPU)
    elif not found and (image := OTHER_IMAGES.search(config.text) or TAGGED.search(config.text)) is not None:
        why = f"does not say which {server.engine} is in it; give --engine {server.engine}@VERSION"
        yield Unread(image[1][:60], why, "engine")


def _release(text: str) -> str:
    """A tag without what it says of CUDA.

    >>> _release("0.4.6.post1-cu124"), _release("0.8.5")
    ('0.4.6.post1', '0.8.5')
    """
    return re.sub(r"[-_.]cu\d.*$|-.*$", "", text).rstrip(".")
