"""Sizes a config may leave out, by `model_type`."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.families.defaults.decoders import DECODERS


def defaults_of(family: str) -> Mapping[str, object]:
    """The defaults of a family; nothing when it has none."""
    if family in DECODERS:
        return DECODERS[family]
    from vramcast.families.defaults.others import OTHERS  # most questions are about plain decoders

    return OTHERS.get(family, {})
