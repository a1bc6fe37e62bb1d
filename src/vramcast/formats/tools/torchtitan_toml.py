"""torchtitan's TOML, of every version that had one: names of each become those of the command line.

[titan] pytorch/torchtitan train_configs/*.toml, torchtitan/models/*/train_configs/*.toml, config_manager.py and
config/job_config.py from 2024-04 until 9810191bb of 2026-02-23, which put Python in their place
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from vramcast.catalogue.formats import networks_of
from vramcast.catalogue.tables import NoDocument, parse_toml
from vramcast.errors import SourceError
from vramcast.formats.dotted import flat
from vramcast.formats.reading import Config
from vramcast.formats.watched import Watched

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


def values_of(config: Config) -> tuple[Watched, str]:
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
    found = _network(values) if whole else {}
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


def _network(values: Watched) -> dict[str, Any]:
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
