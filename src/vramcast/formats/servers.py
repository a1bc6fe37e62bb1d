"""What commands of servers share: arguments by their long names and short ones, the version of an image, serve.sh.

What a plan leaves to the engine's default is written out as it was computed, so that another version of the engine
starts the same deployment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import load_format
from vramcast.engines.serving.requests import variables_of
from vramcast.errors import Note, SourceError
from vramcast.formats.reading import (
    DEEPEST,
    ELSEWHERE,
    NO_GPU,
    Command,
    Config,
    Reading,
    Unread,
    command_of,
    plain,
    written,
)
from vramcast.formats.unread import unread_environment, without_comments
from vramcast.formats.watched import Known, Watched
from vramcast.sources.logs import options
from vramcast.sources.logs.options import Target, negated, translated

APART: Final = (
    "model", "model_path", "quantization", "max_seq_len", "max_loras", "max_lora_rank", "max_loras_per_batch",
)
"""Arguments of the logs' tables that are read in another way here, or that only logs have."""

MODEL: Final = ("model", "model_tag", "model_path", "model_id")

QUANTISED: Final = {
    "fp8": "fp8", "awq": "awq-int4", "awq_marlin": "awq-int4", "gptq": "gptq-int4", "gptq_marlin": "gptq-int4",
    "bitsandbytes": "nf4", "mxfp4": "mxfp4", "modelopt_fp4": None, "modelopt": None, "modelopt_fp8": None,
    "w8a8_int8": "int8", "w8a8_fp8": "fp8", "auto_awq": "awq-int4", "auto_gptq": "gptq-int4", "gpt_oss_mxfp4": "mxfp4",
    "fp8_per_tensor": "fp8", "fp8_per_channel": "fp8-channel", "fp8_per_block": "fp8-block",
    "int8_per_channel_weight_only": "int8", "compressed-tensors": None, "compressed_tensors": None, "quark": None,
    "moe_wna16": None, "gguf": None, "auto-round": None, "inc": None, "modelopt_mixed": None, "petit_nvfp4": None,
    "deepseek_v4_fp8": None,
}
"""`--quantization` -> how the weights are stored; None: as the checkpoint says, which these only read."""

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

PACED: Final[dict[str, tuple[Any, ...]]] = {
    "long_prefill_token_threshold": (0,), "max_num_partial_prefills": (1,), "max_long_partial_prefills": (1,),
    "scheduler_delay_factor": (0, 0.0), "scheduler_reserve_full_isl": (True,), "prefill_schedule_interval": (),
}
"""Arguments of a scheduler that change latencies and no memory, and what they are anyway [vllm/config/scheduler.py]."""

OTHER_IMAGES: Final = re.compile(
    r"\b(nvcr\.io/\S+|rocm/\S+|intel/\S+|quay\.io/ascend/\S+|\S+(?<!vllm/vllm-openai)-rocm\S*|\S+:\S*rocm\S*)")
"""Images of other builds, whose version is none of the engine's."""

TAGGED: Final = re.compile(r"((?:vllm/vllm-openai(?:-rocm)?|lmsysorg/sglang):(?!v?\d|latest\b|\$)[^\s'\"]+)")
"""Images of the engines whose tag is a name: of one model, of one day, of one's own."""

WITHOUT_CARDS: Final = re.compile(
    r"(?i)\b(\S*(?:vllm|sglang)[\w./-]*(?:-|:)(?:\S*-)?(?:cpu|xpu|tpu|npu|hpu|neuron|xeon)\b[^\s'\"]*|"
    r"ghcr\.io/(?:ggml-org|ggerganov)/llama\.cpp:(?:server|full|light)(?:-b\d+)?$)"
)
"""Images of the engines that run on no GPU of the catalogue; llama.cpp's without -cuda or -rocm are built for the CPU
[ggml-org/llama.cpp docs/docker.md]."""

WORD: Final = re.compile(r"[^\s'\"]{1,200}")
OF_IMAGES: Final = (
    "vllm", "sglang", "rocm", "nvcr.io", "intel/", "ascend", "tensorrt", "llama", "text-generation-", "lmdeploy",
)
MOST_IMAGES: Final = 100
"""Names of images and packages, words that hold them, and how many of those are looked at."""


class Server(NamedTuple):
    """What tells one server's command from another's."""

    engine: str
    known: Known
    targets: dict[str, Target]  # argument -> option, and how its value is read
    short: dict[str, str]  # names that stand for others
    start: re.Pattern[str]  # the word behind which the arguments stand, beside `ENGINE serve`
    image: re.Pattern[str]  # where a script names the version: the tag of the image, or what it installs
    own: Callable[[Watched], dict[str, Any]]  # options of what no other server has
    slots: int  # adapters on the card at once where nobody says
    rank_needed: bool = False  # whether nobody but the adapters says their rank
    named_model: bool = False  # whether the model stands behind the command without a name
    arguments: Mapping[str, str] = {}  # variable of the environment -> the argument that it is
    parts: Mapping[str, str] = {}  # engine option -> part of the network without which the engine passes over it


def targets_of(table: Mapping[str, Target]) -> dict[str, Target]:
    return {name: target for name, target in table.items() if name not in APART}


def argument_names(table: Mapping[str, options.Target]) -> dict[str, str]:
    """Option -> argument, as a command line writes it, the first where several say it."""
    names = written({name: option for name, (option, _) in table.items()})
    return {option: name.replace("_", "-") for option, name in names.items()}


def read_server(config: Config, server: Server) -> Reading:
    command, given, place = _given(config, server)
    values = Watched(given, server.known, undecided=command.undecided)
    options: dict[str, Any] = {"engine": server.engine} | translated(values, server.targets)
    for name, (option, reads) in server.targets.items():
        value = values.get(name)
        switch = isinstance(value, bool) and reads in (bool, negated)
        wanted = value is not None and (isinstance(value, bool) or value not in OFF or name in FITTED) and not switch
        if name in FITTED and value in ("auto", -1):
            values.cannot(name, "is fitted to the card; give --context", option="context")
        elif wanted and option not in translated({name: value}, {name: server.targets[name]}):
            values.refuse(name, "a value that is understood", option=option)
    models = [text for name in MODEL if isinstance(text := values.get(name), str)]
    for name in MODEL:
        if name in given and values.is_open(name):
            values.cannot(name, values.why_open(name), option="model")
    options |= {"model": models[0]} if models else {}
    if "config" in values:
        values.cannot("config", ELSEWHERE, file=server.engine)
    if values.get("device") not in (None, "auto", "cuda", "rocm"):
        values.cannot("device", NO_GPU)
    options |= _stored(values, models) | _adapters(values, server)
    options |= server.own(values)
    known = variables_of(server.engine)
    texts = {option: command.variables.get(name, "").lower() for option, name in known.items()}
    switches = {option: SWITCHED[text] for option, text in texts.items() if text in SWITCHED}
    pairs = (*options.get("engine-option", ()), *(f"{option}={value}" for option, value in switches.items()))
    options |= {"engine-option": tuple(dict.fromkeys(pairs))} if pairs else {}
    values.assumed += [Note("{} paces prompts: memory is the same and speed is that without it", name)
                       for name, usual in PACED.items() if values.get(name) not in (None, *usual)]
    read = {*map(known.get, switches), *server.arguments}
    others = {name: text for name, text in command.variables.items() if name not in read}
    unread = [*command.unread, *place, *values.unread(), *unread_environment(others, allocator=False)]
    unread += _versions(config, server, options)
    nodes = values.count("nnodes") or 1
    return Reading(server.engine, options, unread=tuple(unread), notes=(*command.notes, *values.assumed), nodes=nodes,
                   parts=server.parts)


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
        raise SourceError("{}: no command that starts {} stands in it", config.name, server.engine)
    named, plainly = split(command.words[start or 0:], server.known, server.short)
    values = _long(named, server)
    if plainly and server.named_model:
        values.setdefault("model", plainly.pop(0))
    given = {name: plain(command.variables[variable]) for variable, name in server.arguments.items()
             if variable in command.variables}
    values = given | values
    if config.beside:
        values = {name: value for name, value in values.items() if name != "config"} | _long(config.beside, server)
    return command, values, [
        Unread(word[:60], "is no argument of a command that is understood") for word in plainly
    ]


def _start(words: tuple[str, ...], server: Server) -> int | None:
    """Where the arguments of a server begin."""
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == server.engine and words[place + 1 : place + 2] == ("serve",):
            return place + 2 + (words[place + 2 : place + 3] == ("api_server",))
    found = [place + 1 for place, word in enumerate(words) if server.start.fullmatch(word)]
    return found[-1] + (words[found[-1] : found[-1] + 1] == ("serve",)) if found else None


def split(words: tuple[str, ...], known: Known, short: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Arguments by name, and words that belong to none: a flag takes no word, most names one, lists all that follow.

    >>> words = ("m/x", "--enforce-eager", "-tp", "2", "--x.y=3")
    >>> split(words, Known("vllm", "EngineArgs"), {"tp": "tensor_parallel_size"})
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
            kind = entry.kind if entry is not None else "list" if name in OLDER_LISTS else "any"
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
        table, *inner = name.split(".")[:DEEPEST]
        long = _whole(server.short.get(name, name), server)
        off = long.removeprefix("no_")
        if inner:
            whole = server.short.get(f"{table}.") or _whole(server.short.get(table, table), server)
            found[whole] = _with_inner(table_of(found.get(whole)), inner, value)
        elif long.startswith("no_") and server.known.entry(off) is not None and value is True:
            found[off] = False
        else:
            found[long] = human_readable(value) if long in HUMAN else value
    return found


def _with_inner(table: dict[str, Any], names: list[str], value: Any) -> dict[str, Any]:
    """A table with a value in one of the tables inside it."""
    first, *rest = names
    return {**table, first: _with_inner(table_of(table.get(first)), rest, value) if rest else value}


OLDER_LISTS: Final = ("cuda_graph_sizes",)
"""Names of earlier versions that take all words behind them."""

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


def table_of(value: Any) -> dict[str, Any]:
    """A value that is a table, or the JSON of one; empty where it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def several(value: Any) -> list[Any]:
    """A list, or the one value that stands for it; a text of JSON or with commas is one, too.

    >>> several("[1,2]"), several("1,2"), several(7)
    ([1, 2], [1, 2], [7])
    """
    if isinstance(value, str) and ("," in value or value.startswith("[")):
        value = [plain(part) for part in re.split(r"[\s,]+", value.strip("[] ")) if part]
    return list(value) if isinstance(value, (list, tuple)) else [value]


ROPE: Final = ("rope_scaling", "rope_parameters")
OF_POSITIONS: Final = (*ROPE, "rope_theta", "max_position_embeddings", "original_max_position_embeddings")
INNER: Final = ("text_config", "llm_config", "language_config")
"""Keys of `--hf-overrides` that say how long sequences may be, and tables of the config that hold them."""


def stretched(
    values: Watched, overrides: str, length: str, *, multiplied: tuple[str, ...]
) -> tuple[dict[str, Any], bool]:
    """How long sequences may be where the config is overridden, and whether they may be longer than it says.

    Args:
        overrides: the argument that overrides keys of the config
        length: the one of the longest sequence
        multiplied: scalings by whose factor the engine multiplies the length that the network was trained with
    """
    given, legacy = values.get(overrides), values.get("rope_scaling")
    values.get("rope_theta")
    whole = Watched(table_of(given))
    values.inner[overrides] = whole
    if given not in (None, "{}") and not whole:
        values.refuse(overrides, "a table")
    tables = [whole, *(whole.section(name) for name in INNER if name in whole)]
    said = {name: table.get(name) for table in tables for name in OF_POSITIONS if name in table}
    if not said and legacy is None:
        return {}, False
    if values.count(length) is not None:
        return {}, True
    rope = table_of(legacy) or next((table_of(said[name]) for name in ROPE if name in said), {})
    factor, kind = rope.get("factor"), str(rope.get("rope_type") or rope.get("type"))
    known = said.get("max_position_embeddings")
    original = rope.get("original_max_position_embeddings") or known
    if factor is None and isinstance(known, int):
        return {"context": known}, True
    if kind in multiplied and isinstance(original, int) and isinstance(factor, (int, float)) and 0 < factor < 1e4:
        return {"context": int(original * factor)}, True
    if factor is not None:
        values.cannot(overrides if legacy is None else "rope_scaling", "stretches the network's own length; give --{} "
                      "with it", length.replace("_", "-"), option="context")
    return {}, False


def _stored(values: Watched, models: list[str]) -> dict[str, Any]:
    """How the weights are stored; GPTQ and AWQ only read what a checkpoint holds [vllm config/vllm.py, weight_utils.py
    `get_quant_config`: a checkpoint without them ends the start]."""
    if refuses_stored(values, "quantization", models):
        return {}
    weights = values.one_of("quantization", QUANTISED, lower=True, option="weights")
    return {"weights": weights} if weights else {}


def refuses_stored(values: Watched, name: str, models: list[str]) -> bool:
    """Whether an argument asks for a checkpoint in GPTQ or AWQ that the model's name is none of; it is refused then."""
    method = str(values.get(name)).lower().partition("_")[0]
    if method not in ("gptq", "awq") or not models or not models[0][:1].isalnum() or method in models[0].lower():
        return False
    why = Note("{} is no checkpoint in {}; name one that is, or give --weights", models[0][:80], method)
    values.cannot(name, why, option="weights")
    return True


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
    if server.rank_needed and "lora-rank" not in found:
        values.cannot("max_lora_rank", "is not given: SGLang takes it from the adapters", option="lora-rank")
    return {"lora-slots": server.slots} | found


def _versions(config: Config, server: Server, options: dict[str, Any]) -> Iterator[Unread]:
    """The version that an image or a package names, put into the options."""
    if config.table is not None:
        return
    words = _image_words(config.text)
    found = {one or other for word in words for one, other in server.image.findall(word)}
    if len(found) == 1:
        options["engine"] = f"{server.engine}@{_release(next(iter(found)))}"
    elif found:
        why = Note("is named in {} versions; give --engine {}@VERSION", len(found), server.engine)
        yield Unread(server.engine, why, "engine")
    head, _, rest = config.text.partition("\n")  # a container's image stands in the first line, behind a #
    if (image := _first(_image_words(f"{head}\n{without_comments(rest)}"), WITHOUT_CARDS)) is not None:
        yield Unread(image[1][:60], NO_GPU)
    elif not found and (image := _first(words, OTHER_IMAGES) or _first(words, TAGGED)) is not None:
        why = Note("does not say which {} is in it; give --engine {}@VERSION", server.engine, server.engine)
        yield Unread(image[1][:60], why, "engine")


def _image_words(text: str) -> list[str]:
    """Words of a script that may name an image or a package: bounded, whatever the script is."""
    words = (word for word in WORD.findall(text) if any(name in word.lower() for name in OF_IMAGES))
    return list(islice(dict.fromkeys(words), MOST_IMAGES))


def _first(words: list[str], pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The first word that a pattern finds something in."""
    return next((match for word in words if (match := pattern.search(word)) is not None), None)


def _release(text: str) -> str:
    """A tag without what it says of CUDA; "2-3" of a registry whose names take no second point is 2.3.

    >>> _release("0.4.6.post1-cu124"), _release("0.8.5"), _release("2-3")
    ('0.4.6.post1', '0.8.5', '2.3')
    """
    text = re.sub(r"^(\d+)-(\d+)$", r"\1.\2", text)
    return re.sub(r"[-_.]cu\d.*$|-.*$", "", text).rstrip(".")
