"""llama.cpp: `llama-server` and `llama-cli`, and ik_llama.cpp's.

[arg] ggml-org/llama.cpp common/arg.cpp, common/common.h `common_params`; what changed with a build stands in `SINCE`
(engines/llamacpp/settings.py)
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from vramcast.catalogue.formats import load_format, renamed
from vramcast.catalogue.models import load_model
from vramcast.domain.serving import ServeJob
from vramcast.domain.version import read_version
from vramcast.engines.llamacpp.settings import FORK_OPTIONS, OPTIONS, SINCE
from vramcast.engines.llamacpp.settings import settings_of as llamacpp_settings
from vramcast.engines.serving.requests import sees
from vramcast.engines.serving.table import SERVING
from vramcast.errors import Note
from vramcast.formats.files import File, Order, Part
from vramcast.formats.launch import PORT, SERVE, one_of_several, script_text
from vramcast.formats.lines import Line
from vramcast.formats.reading import CONTEXT_OF_BUILD, Config, Reading, Unread
from vramcast.formats.servers import Server, read_server
from vramcast.formats.watched import Known, Watched
from vramcast.sources.by_name import by_name
from vramcast.sources.logs import options as logged
from vramcast.states.ggml import MIXES


def write(order: Order) -> tuple[File, ...]:
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
    ask.also("option.fit")  # nothing is left to fit: layers and context are given
    lines += [*_option_lines(order), Line("host", "0.0.0.0"), Line("port", PORT)]
    text = script_text(order, "llama-server", tuple(lines))
    return (order.file(SERVE, text, (Part("llamacpp", "arguments"),), one_of_several(order, SERVE), executable=True),)


VALUES: Final = {"batch": "batch-size", "n-cpu-moe": "n-cpu-moe", "override-tensor": "override-tensor",
                          "tensor-split": "tensor-split", "split-mode": "split-mode", "device": "device",
                          "threads": "threads"}

LATER: Final = ("image-min-tokens", "image-max-tokens")
"""Options of builds after the one whose names are known here: read, not written."""

SWITCHES: Final = {"kv-unified": ("kv-unified", True), "swa-full": ("swa-full", True),
                            "cpu-moe": ("cpu-moe", True), "op-offload": ("no-op-offload", False),
                            "kv-offload": ("no-kv-offload", False),
                            "mmproj-offload": ("no-mmproj-offload", False)}


def _option_lines(order: Order) -> list[Line]:
    ask, lines, model = order.ask, [], order.job.model
    projector = ask("option.mmproj") or "none"
    if projector not in ("none", "auto") or (projector == "auto" and sees(model)):
        stored = "f16" if projector == "auto" else projector
        lines.append(Line("mmproj", f"mmproj-{model.name}-{stored}.gguf", "the projector to load"))
    for option, name in VALUES.items():
        if ask(f"option.{option}") is not None:
            lines.append(Line(name, ask(f"option.{option}"), "as planned"))
    for option, (name, when) in SWITCHES.items():
        if ask(f"option.{option}") is when:
            lines.append(Line(name, True, "as planned"))
    return lines


ALL_LAYERS: Final = 99
"""What people write for all layers, and anything above."""

USUAL_CONTEXT: Final = 4096
"""Of builds before `fit`, where nobody says [common.h]."""

OWN_LENGTH: Final = "0, or none, is the network's own length over all slots; give it as a number"

STORED: Final = re.compile(
    r"[-._:](UD-)?(I?Q\d\w*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16)$", re.IGNORECASE
)
"""How the name of a file ends, or what stands behind a repository's."""

PARTS_OF_FILES: Final = re.compile(r"(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)

FLOATS: Final = {"f16": "fp16", "fp16": "fp16", "f32": "fp32", "bf16": "bf16", "mxfp4_moe": "mxfp4", "mxfp4": "mxfp4"}
BLOCKS: Final = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q6_k")
"""Types that a whole file is stored in."""

PROJECTORS: Final = OPTIONS["mmproj"].choices[2:]
"""Types that a projector can be stored in."""

LONGEST_NAME: Final = 500

USUAL_STORED: Final = "q4_k_m"
"""What `-hf REPOSITORY` loads where it names nothing [arg `--hf-repo`]."""

FLASH: Final = {
    "on": "flash", "1": "flash", "true": "flash", "enabled": "flash", "off": "eager", "0": "eager", "false": "eager",
    "disabled": "eager",
}
"""What is read as yes and no [arg `is_truthy`], --fit's words too."""

FORKS: Final = {"mla": "mla", "mla_use": "mla", "amb": "amb", "attention_max_batch": "amb", "fmoe": "fmoe",
                "fused_moe": "fmoe", "rtr": "rtr", "run_time_repack": "rtr"}
"""Arguments that only ik_llama.cpp has -> engine option."""


def _own(values: Watched) -> dict[str, Any]:
    found = _model(values) | _cache(values)
    layers = values.get("gpu_layers")
    if isinstance(layers, int) and 0 <= layers < ALL_LAYERS:
        found["gpu-layers"] = layers
    elif layers not in (None, "all", "auto", -1) and not isinstance(layers, int):
        values.refuse("gpu_layers", "a number of layers", option="gpu-layers")
    if (flash := values.get("flash_attn")) not in (None, "auto", -1):
        found["attention"] = "flash" if flash is True else values.one_of("flash_attn", FLASH, lower=True)
    found |= {"micro-batch": size} if (size := values.count("ubatch_size")) else {}
    pairs = (*_engine_options(values), *_projector(values, found.get("model")))
    return {name: value for name, value in found.items() if value is not None} | (
        {"engine-option": pairs} if pairs else {})


def _engine_options(values: Watched) -> tuple[str, ...]:
    """Arguments that are engine options here."""
    none = dict.get(values, "devices", "") is None
    values.must_be_unset("devices", "names cards; give as many with --gpus", option="gpus")
    own = {name.replace("-", "_"): option for option, name in VALUES.items() if option != "device"}
    own |= {name.replace("-", "_"): name for name in LATER}
    pairs = [f"{option}={value}" for name, option in own.items() if (value := values.get(name)) is not None]
    pairs += ["device=none"] if none else []
    pairs += ["split-mode=none"] if dict.get(values, "split_mode", "") is None else []  # a word here, not nothing
    pairs += [f"{option}={str(when).lower()}" for option, (name, when) in SWITCHES.items()
              if values.flag(name.replace("-", "_"))]
    for name, option in FORKS.items():
        if (value := values.get(name)) is not None:
            pairs.append(f"{option}={str(value).lower()}")
    return tuple(dict.fromkeys(pairs))


def _projector(values: Watched, network: str | None) -> tuple[str, ...]:
    """What the server loads beside the network: a file that is named, or what `-hf` finds, unless --no-mmproj [arg]."""
    named, repository = values.get("mmproj"), values.get("hf_repo")
    file = named or values.get("mmproj_url")
    if named is False or not (file or repository):
        return ()
    if not file:
        if network and not sees(load_model(network)):
            return ()
        values.assumed.append("a projector in f16 lies beside the network if it has one; --no-mmproj leaves it out")
        return ("mmproj=auto",)
    match = STORED.search(PARTS_OF_FILES.sub("", str(file)[-LONGEST_NAME:]))
    stored = match[2].lower().replace("fp", "f") if match else "f16"
    if stored not in PROJECTORS:
        values.cannot("mmproj", "is stored in {}, which is not modelled", stored)
        return ()
    values.assumed.append(Note(
        "the projector is taken for one in {}, as it is named" if match
        else "the projector is taken for one in {}, as most are", stored
    ))
    return (f"mmproj={stored}",)


def _model(values: Watched) -> dict[str, Any]:
    """The network and how its weights are stored, from the file or, where it is not here, as it is named."""
    file, repository = values.get("model"), values.get("hf_repo")
    for name in ("model_url", "docker_repo"):
        values.must_be_unset(name, "is not looked into; name the model, and --weights", option="model")
    said = str(values.get("hf_file") or repository or file or "")
    if not said:
        return {}
    if repository is None and os.path.isfile(said):  # noqa: PTH113  # a name longer than a path may be is none
        return {"model": said}
    found, why = network_of(said, str(repository) if repository else None)
    if not found:
        values.cannot("hf_repo" if repository else "model", why, option="model")
        return {}
    values.assumed.append(why)
    return found


def network_of(said: str, repository: str | None) -> tuple[dict[str, str], str]:
    """Network and storage of a file by its name, with a line that says so; without them why there are none.

    Args:
        said: name of the file, or of the repository with what stands behind it
        repository: the repository that it is of; None: a file alone

    >>> network_of("m/Qwen3-8B-Q4_K_M.gguf", None)[0], network_of("me/Qwen3-8B-GGUF", "me/Qwen3-8B-GGUF")[0]
    ({'model': 'qwen3-8b', 'weights': 'q4_k_m'}, {'model': 'qwen3-8b', 'weights': 'q4_k_m'})
    """
    stem = PARTS_OF_FILES.sub("", said[-LONGEST_NAME:])
    match = STORED.search(stem)
    named = (repository or stem)[:LONGEST_NAME].partition(":")[0]
    base = STORED.sub("", named) if repository is None else re.sub(r"[-.]gguf$", "", named, flags=re.IGNORECASE)
    network = by_name(base)
    kept = {} if network is None else network.config.get("quantization_config") or {}
    own = kept.get("quant_method") == "mxfp4"  # which files keep; what is published in FP8 they convert
    stored = match[2].lower() if match else USUAL_STORED if repository and not own else ""
    weights = FLOATS.get(stored, stored)
    whole = weights in FLOATS.values()
    if (match and match[1]) or (own and whole) or not (whole or weights in (*MIXES, *BLOCKS, "")):
        return {}, "stores its layers in several ways; name the model, and --weights"
    if network is None:
        return {}, "says no network that is known by its name; name the model, and --weights"
    return ({"model": network.base} | ({"weights": weights} if weights else {}),
            Note("{} is taken for {} with weights in {}, as it is named", said, network.base, weights) if weights else
            Note("{} is taken for {}, as it is named", said, network.base))


def _cache(values: Watched) -> dict[str, Any]:
    """Cells of the cache, slots and types [arg]; a type that is not given is f16."""
    cells, slots = values.whole("ctx_size"), values.count("parallel") or 1
    unified = values.flag("kv_unified") or False
    found: dict[str, Any] = {}
    if unified:
        found |= {"concurrency": 1, "max-sequences": slots}
    else:
        found["concurrency"] = slots
    if cells:
        found["context"] = cells if unified else max(1, cells // slots)
    elif cells == 0 and slots > 1 and not unified:
        values.cannot("ctx_size", OWN_LENGTH, option="context")
    types = [logged.cache_dtype(values.get(name)) for name in ("cache_type_k", "cache_type_v")]
    for name, dtype in zip(("cache_type_k", "cache_type_v"), types, strict=True):
        if values.get(name) is not None and dtype is None:
            values.refuse(name, "a type of ggml", option="kv-dtype")
    if any(types):
        found |= {"kv-dtype": types[0] or "fp16", "v-dtype": types[1] or "fp16"}
    return found


SHORT: Final = {
    alias.replace("-", "_"): name.replace("-", "_")
    for name, entry in load_format("llamacpp").sections["arguments"].items() for alias in entry.aliases
} | {"device": "devices", "dev": "devices", "ctx": "ctx_size", "mm": "mmproj", "mmu": "mmproj_url",
     "no_mmproj_auto": "no_mmproj"}

SERVER: Final = Server(
    "llama.cpp", Known("llamacpp", "arguments"), {}, SHORT,
    start=re.compile(r"(?:\S*/)?llama-(?:server|cli|completion)(?:\.exe)?|\S*llama\.cpp:(?:server|full|light)\S*"),
    image=re.compile(r"llama\.cpp:\S*?-b(\d{4,5})\b|\bllama-b(\d{4,5})\b"),
    own=_own, slots=1, arguments=renamed("llamacpp", "variables"),
    parts={name: known.about for name, known in FORK_OPTIONS.items() if known.about},
)


def _said(values: Watched) -> set[str]:
    """What --fit is told, and moves, where the command gives it [common/fit.cpp]."""
    fit = values.one_of("fit", {word: known == "flash" for word, known in FLASH.items()}, lower=True)
    return {name for name, said in (
        ("off", fit is False), ("context", values.get("gpu_layers") not in (None, "auto", -1)),
        ("ctx_size", values.get("ctx_size") is not None),
    ) if said}


def read(config: Config) -> Reading:
    """Options of llama.cpp."""
    said: set[str] = set()

    def own(values: Watched) -> dict[str, Any]:
        said.update(_said(values))
        return _own(values)

    found = read_server(config, SERVER._replace(own=own))
    options, unread, notes = dict(found.options), list(found.unread), list(found.notes)
    if any(pair.partition("=")[0] in FORKS.values() for pair in options.get("engine-option", ())):
        options["engine"] = str(options["engine"]).replace("llama.cpp", "ik_llama.cpp")
    engine, _, version = str(options["engine"]).partition("@")
    if config.given.engine.partition("@")[0] == engine:  # --engine names a build beside the command
        version = config.given.engine.partition("@")[2]
    build = (read_version(version) or SERVING[engine].default)[0]
    fits = engine == "llama.cpp" and build >= SINCE["fit"]
    kept = next((kept for kept in ("off", "context") if kept in said), None)  # layers that are given stay
    if fits and kept and ("gpu-layers" not in options or kept == "off"):
        options["engine-option"] = (*options.get("engine-option", ()), f"fit={kept}")
    slots = int(options.get("concurrency", 1))
    if fits and "ctx_size" not in said and slots > 1:
        unread.append(Unread("ctx_size", OWN_LENGTH, option="context"))
    if not fits and "ctx_size" not in said:
        options["context"] = max(1, USUAL_CONTEXT // slots)
        if engine == "llama.cpp" and not version:
            unread.append(Unread("-c", CONTEXT_OF_BUILD, option="context"))
        else:
            notes.append(Note(
                "a context of {}, {}'s before build {} where -c is not given", USUAL_CONTEXT, engine, SINCE["fit"]
            ))
    return found._replace(options=options, unread=tuple(unread), notes=tuple(notes))
