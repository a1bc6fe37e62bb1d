"""Which model of the catalogue a visitor's file describes: a config.json, or the header of a GGUF file."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any, Final

from vramcast.catalogue.index import find_models, summary
from vramcast.catalogue.models import shape_of
from vramcast.errors import UnknownName
from vramcast.families import model_from_config
from vramcast.sources.gguf import config_of, read_header
from vramcast.units import GIB
from vramcast.web.exchange import BYTES, Asked, Refused

MOST_SIZE: Final = 4096 * GIB
SHAPE: Final = ("family", "parameters", "active_parameters", "layers", "hidden", "vocabulary")
"""What two networks share that need the same memory."""


def network(asked: Asked) -> dict[str, Any]:
    """The model of the catalogue that a config.json or the first bytes of a GGUF file describe.

    Nothing is read but the body; `exact`: whether the context is the same too.
    """
    name = asked.query.get("name", "the file")[:200]
    config = _of_gguf(asked, name) if asked.content_type == BYTES else asked.fields
    model = model_from_config(config, name=name)
    facts = shape_of(model)
    whole = (*SHAPE, "context")
    known = _by_shape(*whole).get(_key(facts, *whole)) or _by_shape(*SHAPE).get(_key(facts, *SHAPE))
    if known is None:
        raise UnknownName("{} describes a {} network that is in no catalogue", name, model.family)
    return {"schema": 1, "model": known, "exact": summary(known).get("context") == model.context}


def _of_gguf(asked: Asked, name: str) -> dict[str, Any]:
    text = asked.query.get("size", "")
    size = int(text) if text.isdecimal() and len(text) < 16 else len(asked.body)
    if not len(asked.body) <= size <= MOST_SIZE:
        raise Refused(422, "InvalidSpec", "size must be that of the whole file in bytes")
    return config_of(read_header(BytesIO(asked.body), name=name, size=size), name=name)


def _key(facts: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(facts.get(name) for name in names)


@cache
def _by_shape(*names: str) -> dict[tuple[Any, ...], str]:
    """These facts -> the model of the catalogue that has them: the shortest name, which is no tune of another."""
    found = sorted(find_models(""), key=lambda name: (-len(name), name))
    return {_key(summary(name), *names): name for name in found}
