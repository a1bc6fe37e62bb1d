"""Sizes a config may leave out, by `model_type`."""

from __future__ import annotations

from typing import Final

from vramcast.sources.config.defaults.decoders import DECODERS
from vramcast.sources.config.defaults.others import OTHERS

DEFAULTS: Final[dict[str, dict[str, object]]] = {**DECODERS, **OTHERS}
