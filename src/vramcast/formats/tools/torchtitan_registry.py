"""torchtitan's registries in Python: what one function of a `config_registry.py` says, by the names of its command.

[titan] pytorch/torchtitan at b5bcd76c6 torchtitan/config/configs.py, trainer.py, models/*/config_registry.py
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from vramcast.catalogue.formats import networks_of
from vramcast.errors import Note, UnknownName
from vramcast.families import model_from_config
from vramcast.formats.reading import Config, Unread
from vramcast.formats.tools.bridge_recipe import read_calls
from vramcast.formats.tools.torchtitan_toml import FLAVOURS
from vramcast.formats.watched import Known, Watched

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
