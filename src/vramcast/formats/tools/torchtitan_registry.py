"""torchtitan's registries in Python: what one function of a `config_registry.py` says, by the names of its command.

[titan] pytorch/torchtitan at b5bcd76c6 torchtitan/config/configs.py, trainer.py, models/*/config_registry.py

torchtitan's TOML, of every version that had one: names of each become those of the command line.

[titan] pytorch/torchtitan train_configs/*.toml, torchtitan/models/*/train_configs/*.toml, config_manager.py and
config/job_config.py from 2024-04 until 9810191bb of 2026-02-23, which put Python in their place
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from vramcast.catalogue.formats import networks_of
from vramcast.catalogue.tables import NoDocument, parse_toml
from vramcast.errors import Note, SourceError, UnknownName
from vramcast.families import model_from_config
from vramcast.formats.reading import Config, Unread
from vramcast.formats.table import flat
from vramcast.formats.tools.bridge_recipe import read_calls
from vramcast.formats.watched import Known, Watched

LAST: Final = "2026-02-22"
"""The day before Python took the place of TOML."""

FORMS: Final = (
    (r"training\.fp8_linear", "2024-07-16"),  # 69fe8defc
    (r"training\.data_parallel_degree", "2024-09-09"),  # db6b39acd
    (r"float8\.enable_float8_linear", "2025-02-14"),  # 57387af0e
    (r"(?:training|experimental)\.(?:\w+_parallel_\w*degree|pipeline_parallel_\w+)", "2025-03-17"),  # 785c34c99
    (r"model\.norm_type", "2025-04-16"),  # 5078e92e4
    (r"training\.batch_size", "2025-06-04"),  # 8570415c3
    (r"model\.tokenizer_path", "2025-08-10"),  # fd5a87fa6
    (r"training\.compile", "2025-08-19"),  # 08b8b244f
    (r"checkpoint\.enable_checkpoint", "2025-08-21"),  # cd337db63
    (r"float8\.\w+", "2025-09-25"),  # 5b5d46856
)
"""A name -> the last day that it was one, with the commit of the next [titan]."""

MOVED: Final = (
    (r"training\.batch_size", "training.local_batch_size"),
    (r"training\.data_parallel_degree", "parallelism.data_parallel_shard_degree"),
    (r"training\.compile", "compile.enable"),
    (r"(?:experimental|parallelism)\.enable_async_tensor_parallel", "compile.enable_async_tensor_parallel"),
    (r"(?:training|experimental)\.(\w+_parallel_\w+|\w+_loss_parallel|enable_compiled_autograd)", r"parallelism.\1"),
    (r"float8\.(\w+)", r"quantize.linear.float8.\1"),
)
"""A name of before -> the last one."""

DEFAULTS: Final[dict[str, Any]] = {
    "training.local_batch_size": 8, "training.seq_len": 2048, "activation_checkpoint.mode": "selective",
    "model.name": "llama3", "model.flavor": "debugmodel",
}
"""Where a file says nothing [titan config/job_config.py]."""

FLAVOURS: Final[dict[str, str]] = networks_of("torchtitan")["models"]
"""Folder of torchtitan/models and key of its table -> our name."""

FLOAT8: Final = ("float8", "quantize.linear.float8")

EVERY_SECOND: Final = "2"
"""selective_ac_option where nobody says it: a layer of two is run again."""


def last_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same by the last names that torchtitan gave them."""
    return {_moved(name): value for name, value in found.items()}


def _moved(name: str) -> str:
    for pattern, instead in MOVED:
        if (match := re.fullmatch(pattern, name)) is not None:
            return match.expand(instead)
    return name


def day_of(names: Iterable[str]) -> str:
    """The last day on which all of these were names."""
    names = tuple(names)
    return min((day for pattern, day in FORMS if any(re.fullmatch(pattern, name) for name in names)), default=LAST)


def values_of_toml(config: Config) -> tuple[Watched, str]:
    """What a file says by the last names, defaults where it says nothing, and its day.

    Raises: SourceError for what is no TOML
    """
    try:
        found = dict(flat(parse_toml(config.text)))
    except NoDocument as error:
        raise SourceError("{}: not TOML: {}", config.name, error) from None
    return Watched(DEFAULTS | last_names(found)), day_of(found)


def read_older(values: Watched, *, whole: bool) -> dict[str, Any]:
    """Options of what the versions with TOML had beside what the command line has today.

    Args:
        whole: a file, where what is not said has its default
    """
    found = _network_of_toml(values) if whole else {}
    found |= _layers_again(values, whole=whole) | _float8(values)
    if (values.count("parallelism.expert_parallel_degree") or 1) > 1:
        inside = values.count("parallelism.expert_tensor_parallel_degree") or 1
        found |= {"etp": inside} if inside > 1 else {}
        values.only("parallelism.expert_parallel_comm_backend", "standard")
    for name in ("expert_tensor_parallel_degree", "expert_parallel_comm_backend"):
        values.get(f"parallelism.{name}")
    for name in ("parallelism.disable_loss_parallel", "parallelism.enable_compiled_autograd",
                 "optimizer.early_step_in_backward"):
        values.only(name, False)
    values.only("model.norm_type", "rmsnorm")
    values.only("training.fp8_linear", "")
    values.only("parallelism.data_parallel_type", "fsdp")
    return found


def _network_of_toml(values: Watched) -> dict[str, Any]:
    name, flavour = values.text("model.name") or "", values.text("model.flavor") or ""
    if (known := FLAVOURS.get(f"{name} {flavour}")) is not None:
        return {"model": known}
    if name == "flux":
        values.ignore("*")
        values.cannot("model.name", "is a diffusion network, whose training by torchtitan is not modelled")
        return {}
    values.cannot("model.flavor", "{} {} is no network known here; give the model", name[:40], flavour[:40],
                  option="model")
    return {}


def _layers_again(values: Watched, *, whole: bool) -> dict[str, Any]:
    """Of a network of layers run again in part: by operator, or every so many of them."""
    name = "activation_checkpoint.selective_ac_option"
    given = values.get(name)
    if values.get("activation_checkpoint.mode") != "selective":
        return {}
    option = str(given if given is not None else EVERY_SECOND if whole else "op")
    if option == "1":
        return {"recompute": "full"}
    if option != "op":
        values.cannot(name, "runs one layer of {} again, which is not modelled; give --recompute", option[:8],
                      option="recompute")
    return {}


def _float8(values: Watched) -> dict[str, Any]:
    """Products in fp8 where a converter is named; sections of others say nothing."""
    p = "quantize.linear.float8."
    named = values.get("model.converters") or []
    others = [one for one in named if one not in FLOAT8] if isinstance(named, list) else [named]
    if others:
        values.cannot("model.converters")
    asked = bool(values.flag(f"{p}enable_float8_linear")) or (isinstance(named, list) and bool(named) and not others)
    if asked:
        values.only(f"{p}recipe_name", "tensorwise")
        values.only(f"{p}emulate", False)
    gathered = values.flag(f"{p}enable_fsdp_float8_all_gather")
    for name in values:
        if name.startswith(("quantize.", "mx.")):
            values.get(name)
    return {"engine-option": ("float8=true", *(("float8_all_gather=true",) if gathered else ()))} if asked else {}


TRAINER: Final = "Trainer.Config"

FILE: Final = "config_registry.py"

SECTIONS: Final = ("training", "parallelism", "compile")
"""Classes that hold nothing but what is said by name."""

TOKENS: Final = "training.num_tokens_per_microbatch_per_dp_rank"
CONTEXT: Final = "training.max_context_length"
STEP: Final = "training.num_tokens_per_train_step"
PIPELINE: Final = "parallelism.num_pp_microbatches"
GRAPHS: Final = "training.disable_cuda_graphs"

SIZES: Final = {TOKENS: 16384, CONTEXT: 2048}
"""Where a function says nothing."""

POLICIES: Final = {"SelectiveAC.Config": "selective", "FullAC.Config": "full", "None": "none"}

LOSSES: Final = {"ChunkedLossWrapper.Config": "chunked", "CrossEntropyLoss.Config": "eager"}

DEBUG: Final[dict[str, dict[str, Any]]] = networks_of("torchtitan")["debug"]
"""Networks that torchtitan tries itself with, as config.json says such."""


def functions_of(module: ast.Module) -> list[str]:
    """Names that --config can have."""
    return [node.name for node in module.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            and node.returns is not None and ast.unparse(node.returns).endswith(".Config")]


def values_of(config: Config, module: ast.Module) -> tuple[Watched, dict[str, Any], tuple[Unread, ...]]:
    """What the function that `--args` names says, or the only one: by the command's names, what it says of network,
    loss, optimizer and recomputation as options, and what only a run knows.

    Raises: UnknownName for a function that the file does not have
    """
    names, asked = functions_of(module), config.given.arguments
    if asked and asked[0] not in names:
        raise UnknownName.of("function", asked[0], names)
    names = [asked[0]] if asked else names
    if len(names) != 1:
        why = (Note("{} recipes stand in the file; name one, as in --args {}", len(names), names[0]) if names
               else "no function of the file makes a trainer's Config")
        return Watched({}), {}, (Unread(TRAINER, why),)
    recipe = read_calls(module, names[0])
    unread = tuple(Unread(line, "may change what the recipe sets") for line in recipe.others)
    if recipe.base != TRAINER:
        return Watched({}), {}, (Unread(recipe.base or names[0], "is not made by Trainer.Config, which alone is read"),)
    said = {name: _plain(value) for name, value in recipe.values.items() if name not in SECTIONS}
    values = Watched(in_samples(said, SIZES), Known("torchtitan", "registry"))
    if values.get("validator.enable") is not True:  # which passes forward alone
        values.ignore(*[one for one in values if one.partition(".")[0] == "validator"])
    options = _policy(values) | _loss(values) | _optimizer(values) | _network(
        values, config.name, config.folder, names[0])
    return values, options, unread


def _plain(value: Any) -> Any:
    """What a class or a function is called where one makes the value; else the value, or its text."""
    if isinstance(value, ast.AST):
        return ast.unparse(value.func if isinstance(value, ast.Call) else value)
    return value


def in_samples(values: Mapping[str, Any], usual: Mapping[str, int] = {}) -> dict[str, Any]:
    """The same with the sizes that torchtitan counted in until it folded the batch [titan 73aed7f6c]: samples of a
    length; those of a pipeline are all its micro-batches."""
    older = any(name in values for name in ("training.seq_len", "training.local_batch_size"))
    found = (dict(usual) if not older else {}) | dict(values)
    if GRAPHS in found or (usual and not older):
        found["cuda_graphs"] = found.pop(GRAPHS, False) is not True
    context, tokens = found.get(CONTEXT), found.get(TOKENS)
    if not (isinstance(context, int) and isinstance(tokens, int) and tokens > 0 and context > 0):
        return found
    if tokens % context:  # refused by its name
        return found
    for name in (CONTEXT, TOKENS, PIPELINE):
        found.pop(name, None)
    batches, staged = values.get(PIPELINE, 1), values.get("parallelism.pipeline_parallel_degree", 1) != 1
    samples = tokens // context
    found |= {"training.seq_len": context, "training.local_batch_size": samples * (batches if staged else 1)}
    if staged:
        found["parallelism.pipeline_parallel_microbatch_size"] = samples
    step = found.pop(STEP, -1)
    if isinstance(step, int) and step > 0:
        found["training.global_batch_size"] = step // context
    return {"cuda_graphs": True} | found


def _policy(values: Watched) -> dict[str, Any]:
    """SelectiveAC where a function says nothing [titan trainer.py `activation_checkpoint`]; until 2026-06 it had a
    mode, which is read with the command's names."""
    said = str(dict.get(values, "activation_checkpoint", "SelectiveAC.Config"))
    values.get("activation_checkpoint")
    if said in POLICIES:
        return {"recompute": POLICIES[said]}
    if not said.startswith("ActivationCheckpointConfig"):
        values.cannot("activation_checkpoint", "{} is none of {}", said[:60], ", ".join(POLICIES), option="recompute")
    return {}


def _loss(values: Watched) -> dict[str, Any]:
    said = str(values.get("loss", "CrossEntropyLoss.Config"))
    for name in ("loss.loss_fn", "loss.global_vocab_size"):
        values.ignore(*[one for one in values if one.startswith(name)])
    if said not in LOSSES:
        values.cannot("loss", "{} is none of {}", said[:60], ", ".join(LOSSES), option="loss")
        return {}
    parts = str(values.get("compile.components", ("model", "loss")))
    compiled = said.startswith("Cross") and values.get("compile.enable") is True and "loss" in parts
    return {"loss": "compiled" if compiled else LOSSES[said]}


def _optimizer(values: Watched) -> dict[str, Any]:
    """AdamW's states and Adam's are the same."""
    said = str(values.get("optimizer", "default_adamw"))
    groups = str(values.get("optimizer.param_groups", ""))
    values.ignore(*[one for one in values if one.startswith("optimizer.") and one != "optimizer.implementation"])
    names = groups.replace('"', "'").split("optimizer_name=")[1:]
    known = [word.startswith(("'AdamW'", "'Adam'")) for word in names]
    if said == "default_adamw" or (known and all(known)):
        only_adam = bool(known) and all(word.startswith("'Adam'") for word in names)
        return {"optimizer": "adam" if only_adam else "adamw"}
    values.cannot("optimizer", "is none of AdamW and Adam", option="optimizer")
    return {}


def _network(values: Watched, name: str, folder: str, function: str) -> dict[str, Any]:
    """The flavour that model_registry is asked for, of the folder that the file lies in; another file's is told by its
    function."""
    values.get("model_spec")
    flavour = values.text("model_spec.0") or ""
    found = _converters(values)
    places = {name.partition(" ")[0] for name in (*FLAVOURS, *DEBUG)}
    place = folder.rpartition("/")[2]
    if name != FILE:
        place = next((one for one in sorted(places) if function.startswith(f"{one}_")), place)
    flavour = flavour.removesuffix("_non_fused_qkv")
    named = f"{place} {flavour}"
    if named in FLAVOURS:
        return found | {"model": FLAVOURS[named]}
    if named in DEBUG:
        return found | {"model": model_from_config(DEBUG[named], name=f"{place}-{flavour}")}
    values.cannot("model_spec", "{} {} is no network known here; give the model", place[:40], flavour[:40],
                  option="model")
    return found


def _converters(values: Watched) -> dict[str, Any]:
    said = str(values.get("model_spec.converters", ""))
    made = [part.rpartition("[")[2].rpartition(" ")[2] for part in said.split("Converter.Config(")[:-1]]
    if said and made != ["Float8Linear"]:
        values.cannot("model_spec.converters")
    return {"engine-option": ("float8=true",)} if made == ["Float8Linear"] else {}
