"""Random questions that look like those people ask: every option of every table, on every engine, model and card.

Nothing here knows what an engine takes. Options and their kinds are read from the tables that the command line is made
from, so that a new option is drawn by itself; only what texts and lists may say stands here, and a new one of those
is drawn from the words of its own help until it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from random import Random
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from msgspec.structs import FieldInfo, fields

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.catalogue import index
from vramcast.catalogue.gpus import gpu_names
from vramcast.catalogue.instances import instances
from vramcast.catalogue.models import load_model
from vramcast.domain.job import AttentionKernel
from vramcast.domain.version import Version, version_text
from vramcast.engines.serving.requests import Known
from vramcast.engines.serving.table import SERVING
from vramcast.engines.training import TRAINING
from vramcast.estimate.checks import options_of
from vramcast.formats.registry import READERS
from vramcast.question.option import Kind, Option, table_of
from vramcast.question.tables import TECHNIQUES as ALLOWED
from vramcast.states.optimizers import OPTIMIZERS
from vramcast.states.storage import FORMATS
from vramcast.web.visitor import FILES

LENGTHS: Final = (1, 17, 128, 512, 1000, 1024, 2048, 3333, 4096, 4097, 4475, 8192, 16384, 32768, 131072)
DEGREES: Final = (1, 2, 2, 2, 4, 4, 8, 3, 6, 16)
SMALL: Final = (1, 1, 2, 2, 3, 4, 5, 7, 8, 12, 16, 32)
COUNTS: Final[dict[str, tuple[int, ...]]] = {
    "seq-len": LENGTHS, "min-seq-len": LENGTHS, "context": LENGTHS, "input-len": LENGTHS, "output-len": LENGTHS,
    "decoder-seq-len": LENGTHS, "completion-len": LENGTHS, "batched-tokens": LENGTHS,
    "image-size": (64, 224, 336, 448, 1024, 1333),
    "height": (256, 480, 512, 1000, 1024), "width": (256, 512, 832, 1024, 1280), "frames": (1, 9, 17, 49, 81),
    "cache-bytes": (1 << 20, 1 << 30, 10**10, 1 << 36), "block-tokens": (1, 7, 8, 16, 32, 64, 128, 256),
    "global-batch": (1, 8, 24, 32, 60, 256, 512), "micro-batch": SMALL, "lora-rank": (1, 4, 8, 16, 64, 100, 256),
    "virtual-tokens": (1, 8, 20, 100), "concurrency": (1, 2, 8, 33, 128, 1000), "max-sequences": (1, 8, 100, 256),
    "tp": DEGREES, "pp": DEGREES, "cp": DEGREES, "ep": DEGREES, "etp": DEGREES, "dp": DEGREES, "dcp": DEGREES,
    "max-gpus": (1, 8, 16, 64), "top": (1, 2, 3), "layers": (1, 2, 5, 8, 31), "hidden": (256, 1024, 4096, 5000),
    "heads": (8, 16, 32, 40), "kv-heads": (1, 4, 8), "ffn": (1024, 11008, 14336), "vocab": (1000, 32000, 151936),
    "shard-group": DEGREES, "gpu-layers": (0, 1, 10, 33, 99),
}
"""What a count may be; of others SMALL."""

Words = tuple[str, ...]
PIPELINES: Final[Words] = tuple(name for name, engine in SERVING.items() if engine.runs_pipelines)
TEXTS: Final[dict[str, Words]] = {
    "optimizer": (*OPTIMIZERS, "paged-adamw-8bit", "galore:256"),
    "alloc-conf": (
        "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8",
        "garbage_collection_threshold:0.8", "expandable_segments:True,max_split_size_mb:512",
    ),
    "params": ("100M", "1B", "7B", "70B"),
    "used": ("2GiB", "512MiB"), "reserve": ("1GiB", "3GB"),
    "price": ("2usd", "98.32usd/node", "3eur"), "region": ("us-east-1", "cn-beijing"), "currency": ("USD", "CNY"),
    "weights": (*FORMATS, "stored"),
    "kv-dtype": ("auto", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "q8_0", "q4_0", "nvfp4", "turbo"),
    "v-dtype": ("f16", "q8_0", "q4_0", "bf16"),
    "draft": ("eagle", "eagle3", "mtp", "ngram", "medusa", "qwen3-0.6b", "llama-3.2-1b"),
    "budget": ("100000usd",), "deadline": ("12h", "30d"), "headroom": ("5%", "0", "0.2"), "ttft": ("500ms", "2s"),
    "recompute-modules": ("core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts"),
    "modules-to-save": ("embedding", "head", "embed_tokens", "lm_head"),
    "allow": tuple(ALLOWED), "forbid": tuple(ALLOWED), "from-format": tuple(READERS),
}
"""What a text, or a name in a list, may say."""

NUMBERS: Final = ("0", "0.05", "0.3", "0.5", "0.9", "0.95", "0.99", "1", "30")
WORD: Final = re.compile(r"[a-z0-9_][a-z0-9_.@-]*(?=[,) ]|$)")
SELDOM: Final = ("reserve", "region", "currency", "spot", "price", "ignore-unread", "from-format")
"""Options that almost every question is refused with, those beside a file without the file."""

NAMES_OF_FILES: Final = tuple(name for name in FILES if name not in SELDOM)
"""Options that are not drawn."""

BY_NUMBERS: Final = 0.1
"""Of the models."""

ZERO: Final = 0.01
"""Of the counts: nothing, which most options refuse."""


class Question(NamedTuple):
    """One thing to ask."""

    command: str  # key of TABLES
    options: dict[str, Any]


TABLES: Final[dict[str, Mapping[str, Option]]] = {
    **{command: table_of(command) for command in ("train", "serve", "plan train", "plan serve")},
    "layers": {
        "seq-len": Option("layers", "seq_len", Kind.COUNT, ""), "batch": Option("layers", "batch", Kind.COUNT, ""),
        "dtype-bytes": Option("layers", "dtype_bytes", Kind.CHOICE, "", ("2", "4")),
        "attention": Option("layers", "attention", Kind.CHOICE, "", tuple(map(str, AttentionKernel))),
    },
}
"""Command -> what can be asked of it."""

WEIGHTS: Final[dict[str, float]] = {"train": 60, "serve": 30, "plan train": 1, "plan serve": 2, "layers": 5}
"""How often each is drawn."""


def question(random: Random, command: str | None = None) -> Question:
    """The next question."""
    command = command or random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    options = _BASES[command](random)
    table = TABLES[command]
    by_numbers = "params" in options
    names = [
        name for name, option in table.items()
        if name not in (*NAMES_OF_FILES, *options, *SELDOM)
        and (option.section != "model" or by_numbers or random.random() < BY_NUMBERS)
    ]
    for name in random.sample(names, min(len(names), random.choice((0, 1, 2, 3, 4, 5, 7, 10)))):
        value = value_of(random, name, table[name], options)
        if value is not None:
            options[name] = value
        if table[name].section == "peft" and "peft" not in options:
            options["peft"] = random.choice(table["peft"].choices)
    if random.random() < 0.02:
        name = random.choice(SELDOM)
        if name in table:
            options[name] = value_of(random, name, table[name], options)
    return Question(command, options)


def without(random: Random, asked: Question, refusal: str) -> Question | None:
    """The question less one of its options, of those that its refusal names if any; None where it has none to give."""
    names = [name for name in asked.options if name not in ("model", "gpus", "on", "engine", "params")]
    if not names:
        return None
    table = TABLES[asked.command]
    named = [name for name in names if name in refusal or (name in table and table[name].field in refusal)]
    gone = random.choice(named or names)
    return asked._replace(options={name: value for name, value in asked.options.items() if name != gone})


def _model(random: Random) -> dict[str, Any]:
    if random.random() < BY_NUMBERS:
        return {"params": random.choice(TEXTS["params"]), "layers": random.choice((8, 24, 31)),
                "hidden": random.choice((1024, 4096))}
    return {"model": random.choice(index.MODELS.names())}


def _cards(random: Random) -> str:
    if random.random() < 0.1:
        return random.choice(instances()).name
    card = random.choice(gpu_names())
    number = random.choice(("", "", "2x", "4x", "8x", "8x", "8x", "3x", "16x", "2x8x", "2x4x", "4x8x"))
    return f"{number}{card}"


def _train(random: Random) -> dict[str, Any]:
    options = _model(random) | {"gpus": _cards(random)}
    if random.random() < 0.9:
        name = random.choice(tuple(TRAINING))
        engine = TRAINING[name]
        options["engine"] = _of_version(random, name, (engine.oldest, engine.newest))
    return options


def _serving_engine(random: Random, names: Words) -> str:
    name = random.choice(names)
    engine = SERVING[name]
    return _of_version(random, name, (engine.oldest, engine.newest, engine.default))


def _of_version(random: Random, name: str, versions: tuple[Version, ...]) -> str:
    """An engine, with a version or without."""
    return name if random.random() < 0.6 else f"{name}@{version_text(random.choice(versions))}"


def _serve(random: Random) -> dict[str, Any]:
    language = tuple(name for name in SERVING if name not in PIPELINES)
    if random.random() < 0.1:
        model, engines = {"model": random.choice(index.PIPELINES.names())}, PIPELINES
    else:
        model, engines = _model(random), language
    options = model | {"gpus": _cards(random), "engine": _serving_engine(random, engines)}
    if random.random() < 0.7:
        options["context"] = random.choice(LENGTHS)
    return options


def _plan_train(random: Random) -> dict[str, Any]:
    options = _model(random) | {"on": f"{random.choice(('', '2x', '4x', '8x'))}{random.choice(gpu_names())}"}
    options["engine"] = random.choice(tuple(TRAINING))
    options["seq-len"], options["top"] = random.choice(LENGTHS), 2
    return options


def _plan_serve(random: Random) -> dict[str, Any]:
    language = tuple(name for name in SERVING if name not in PIPELINES)
    options = _model(random) | {"on": f"{random.choice(('', '2x', '4x'))}{random.choice(gpu_names())}", "top": 2}
    return options | {"engine": _serving_engine(random, language), "context": random.choice(LENGTHS)}


def _layers(random: Random) -> dict[str, Any]:
    return {"model": random.choice(index.MODELS.names())}


_BASES: Final[dict[str, Callable[[Random], dict[str, Any]]]] = {
    "train": _train, "serve": _serve, "plan train": _plan_train, "plan serve": _plan_serve, "layers": _layers,
}


def value_of(random: Random, name: str, option: Option, options: Mapping[str, Any]) -> Any:
    """Something that an option may say; None where nothing is known."""
    match option.kind:
        case Kind.COUNT:
            return 0 if random.random() < ZERO else random.choice(COUNTS.get(name, SMALL))
        case Kind.AMOUNT:
            return random.choice(("300M", "1B", "1T"))
        case Kind.CHOICE:
            return random.choice(option.choices)
        case Kind.FLAG:
            return random.random() < 0.7
        case Kind.NUMBER:
            return random.choice(NUMBERS)
    if name == "engine-option":
        return _engine_option(random, str(options.get("engine", "")))
    words = option.choices or TEXTS.get(name)
    if words is None and name == "lora-targets":
        words = _targets(options.get("model"))
    if words is None and name in COUNTS:
        words = tuple(map(str, COUNTS[name]))
    words = words or tuple(WORD.findall(option.help.rpartition(":")[2]))
    if not words:
        return None
    several = min(len(words), random.choice((1, 1, 2, 3))) if option.kind is Kind.NAMES else 1
    return ",".join(dict.fromkeys(random.choices(words, k=several)))


def _targets(model: object) -> Words:
    """Weights of the model, by our names, and by those of other tools."""
    known = ("q_proj", "o_proj", "gate_proj", "all-linear", "attention.q", "mlp.up", r".*\.[qv]_proj", "linear_qkv")
    if not isinstance(model, str):
        return known
    network = load_model(model)
    layer = network.main.layers[0]
    return (*known, *(found.path for found in layer_parameters(layer, hidden=network.hidden)))


def _engine_option(random: Random, engine: str) -> str | None:
    """One option of an engine by the type of its value."""
    engine = engine.partition("@")[0]
    served = _serving_options(engine)
    if served:
        name = random.choice(list(served))
        return f"{name}={random.choice(served[name].choices or _of_type(served[name].kind))}"
    known = options_of(engine)
    if not fields(known):
        return None
    field = random.choice(fields(known))
    return f"{field.encode_name}={random.choice(_typed(field))}"


def _serving_options(engine: str) -> dict[str, Known]:
    """Engine options of a serving engine: the largest table of them in its modules; a fork's adds to another's."""
    tables: list[dict[str, Known]] = [{}]
    for part in ("options", "settings", "deploy") if engine in SERVING else ():
        with suppress(ImportError):
            found = vars(import_module(f"{SERVING[engine].module}.{part}")).values()
            tables += [
                table for table in found
                if isinstance(table, dict) and all(isinstance(known, Known) for known in table.values())
            ]
    return max(tables, key=len)


def _typed(field: FieldInfo) -> tuple[Any, ...]:
    """What a field may be."""
    kinds = {type(field.default)} | {part for part in (field.type, *get_args(field.type)) if isinstance(part, type)}
    if get_origin(field.type) is Literal:
        return get_args(field.type)
    return next((_of_type(kind) for kind in (bool, int, float) if kind in kinds), _of_type(str))


def _of_type(kind: type) -> tuple[Any, ...]:
    """What a value may be."""
    if kind is bool:
        return ("true", "false")
    if kind in (int, float):
        return (0, 1, 2, 3, 16, 0.5, 500_000_000)
    return (
        "dynamic", "static", "offloaded", "quantized", "none", "layer", "row", "3,1", "1", r"\.ffn_.*=CPU",
        "2024-06", "2025-02-06", "2026-01-01", "2026-08-21", "2.4", "2.10", "tensorwise", "delayed", "8-8-8-8",
    )
