"""Every family there is a builder for: the rows of `families.csv`, and which one a config is of."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.families.fields import Fields, defaults_of, hugging_face_names, shown

ROWS: Final = tuple(csv.DictReader(Path(__file__).with_name("families.csv").read_text(encoding="utf-8").splitlines()))
"""`model_type`, the module whose `BUILDERS` has it, and the first architectures of configs that name no type."""

ARCHITECTURES: Final[dict[str, str]] = dict(
    sorted((name, row["family"]) for row in ROWS for name in row["architectures"].split())
)
"""First architecture -> `model_type`."""

Builder = Callable[[Fields], Model]


def _build_in(module: str, family: str, fields: Fields) -> Model:
    builders: dict[str, Builder] = import_module(f"vramcast.families.{module}").BUILDERS
    return builders[family](fields)


FAMILIES: Final[dict[str, Builder]] = {row["family"]: partial(_build_in, row["module"], row["family"]) for row in ROWS}
"""`model_type` -> builder. A module is imported when one of its families is asked for: all of them take 15 ms."""


def family_of(fields: Fields) -> str:
    """The config's `model_type`; without one, what its architecture says."""
    given = fields.get("model_type")
    if isinstance(given, str) and given:
        return given
    if given is not None and not isinstance(given, str):
        raise fields.wrong("model_type", "must be a text")
    for architecture in fields.words("architectures"):
        if architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
        raise UnknownName.of("architecture", architecture, ARCHITECTURES)
    raise InvalidSpec("config of {} has neither model_type nor architectures", fields.name)


def model_from_config(config: Mapping[str, object], *, name: str) -> Model:
    """The network a `config.json` describes.

    Leaves out weights that only a checkpoint knows: buffers it stores, quantised formats, adapters.

    Args:
        config: the parsed JSON, of Hugging Face or of a dialect in `dialects.py`
        name: how the model is called in messages and answers

    Raises: InvalidSpec for a value that cannot be, UnknownName for a family without a builder
    """
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise InvalidSpec("config of {} must be a table, not {}", name, shown(config))
    fields = Fields(hugging_face_names(config), name=name)
    family = family_of(fields)
    if family not in FAMILIES:
        raise UnknownName.of("model type", family, FAMILIES)
    return FAMILIES[family](fields.over({"model_type": family}).behind(defaults_of(family)))
