"""Compiled modules that libraries call directly, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.tracing.extensions import apex, flash_attention, transformer_engine
from vramcast.tracing.extensions.stand_ins import Extension, Guard

TABLES: Final = (apex, flash_attention, transformer_engine)
EXTENSIONS: Final[Mapping[str, Extension]] = {
    name: extension for table in TABLES for name, extension in table.EXTENSIONS.items()
}
GUARDED: Final[Mapping[str, Guard]] = transformer_engine.GUARDED
LIBRARIES: Final = frozenset(extension.library for extension in EXTENSIONS.values())
"""Packages that keep what they found of a card when they were imported."""
ASKING: Final = LIBRARIES | {"xformers"}
"""Packages that ask for the card when they are imported."""
