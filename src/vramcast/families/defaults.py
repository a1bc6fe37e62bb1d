"""Sizes that a config of a family may leave out, by `model_type`: those of its configuration class in transformers.

Families without a class there have none: their configs must say everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path(__file__).with_name("defaults.json")


class Defaults(msgspec.Struct, frozen=True):
    """The table, where it comes from, and what it leaves out on purpose."""

    source: str
    left_out: str
    families: dict[str, dict[str, object]]


@cache
def all_defaults() -> Mapping[str, Mapping[str, object]]:
    """Family -> field -> value."""
    return msgspec.json.decode(FILE.read_bytes(), type=Defaults).families


def defaults_of(family: str) -> Mapping[str, object]:
    """The defaults of a family; nothing when it has none."""
    return all_defaults().get(family, {})
