"""The catalogue of models: one TOML file each, holding the fields of its config, where they come from and since when.

A file is named after the model: `models/llama-3.1-8b.toml`. `models/index.json` maps every name and alias to a file;
`python -m vramcast.catalogue.models` writes it anew, and a test fails while it is stale.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from vramcast.blocks.parameters.model import BUFFERS, Stored, stored_elements
from vramcast.domain.model import Head, Model
from vramcast.errors import SourceError, UnknownName
from vramcast.families import model_from_config

FOLDER: Final = Path(__file__).parent / "models"
INDEX: Final = "index.json"


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The published number of elements of all tensors, and what it counts beside the weights."""

    elements: int
    stores: tuple[Stored, ...] = ()
    lacks: tuple[Stored, ...] = ()
    source: str = ""  # where the number stands, when not in the model's own source


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of the catalogue."""

    source: str
    checked: datetime.date
    config: dict[str, Any]
    aliases: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None


def parse_entry(text: str, *, file: str) -> Entry:
    """The record in a file.

    Raises: SourceError naming file and key, for unknown, missing, duplicate or wrong keys
    """
    try:
        return msgspec.convert(tomllib.loads(text), Entry)
    except tomllib.TOMLDecodeError as error:
        raise SourceError(f"{file}: {error}{_key_at(text, str(error))}") from error
    except msgspec.ValidationError as error:
        raise SourceError(f"{file}: {error}") from error


def _key_at(text: str, message: str) -> str:
    """The key on the line a TOML error names; its own text leaves it out."""
    line = re.search(r"at line (\d+)", message)
    rows = text.splitlines()
    if line is None or not 0 < int(line[1]) <= len(rows):
        return ""
    return f", key {rows[int(line[1]) - 1].split('=')[0].strip()!r}"


def read_entry(name: str) -> Entry:
    """The file of a model, by its own name."""
    return parse_entry((FOLDER / f"{name}.toml").read_text(encoding="utf-8"), file=f"{name}.toml")


@cache
def _index() -> dict[str, str]:
    return msgspec.json.decode((FOLDER / INDEX).read_bytes(), type=dict[str, str])


def model_names() -> tuple[str, ...]:
    """The names of all models, sorted."""
    return tuple(sorted(set(_index().values())))


def known_names() -> dict[str, str]:
    """Every name and alias in lower case -> the model's own name."""
    return dict(_index())


def resolve_name(text: str) -> str:
    """The model's own name for a name or alias, in any case.

    Raises: UnknownName with the nearest names
    """
    index = _index()
    name = index.get(text.strip().lower())
    if name is None:
        raise UnknownName.of("model", text, index)
    return name


def entry_model(name: str, entry: Entry) -> Model:
    """The network an entry describes, with the buffers its checkpoint stores."""
    model = model_from_config(entry.config, name=name)
    if entry.checkpoint is None:
        return model
    buffers = sum(stored_elements(model, kind) for kind in entry.checkpoint.stores if kind in BUFFERS)
    return msgspec.structs.replace(model, buffers=buffers) if buffers else model


def load_model(name: str) -> Model:
    """The model of a catalogue name or alias.

    Raises: UnknownName with the nearest names
    """
    return _model_of(resolve_name(name))


@cache
def _model_of(name: str) -> Model:
    return entry_model(name, read_entry(name))


def text_decoders() -> Iterator[Model]:
    """The models of the catalogue that read and write text alone."""
    for name in model_names():
        model = load_model(name)
        if len(model.stacks) == 1 and model.main.causal and model.main.vision is None and model.head is Head.LM:
            yield model


def search_models(text: str) -> tuple[str, ...]:
    """Names of the models whose name or alias holds every word of the text."""
    words = text.lower().split()
    return tuple(sorted({name for alias, name in _index().items() if all(word in alias for word in words)}))


def built_index() -> dict[str, str]:
    """What `index.json` must hold: every name and alias in lower case -> the model's name.

    Raises: SourceError when two files claim one name
    """
    index: dict[str, str] = {}
    for file in sorted(FOLDER.glob("*.toml")):
        for alias in (file.stem, *read_entry(file.stem).aliases):
            if index.setdefault(alias.lower(), file.stem) != file.stem:
                raise SourceError(f"{file.name}: alias {alias!r} belongs to {index[alias.lower()]}.toml")
    return dict(sorted(index.items()))


def write_index() -> None:
    """Bring `index.json` up to date."""
    (FOLDER / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(built_index()), indent=1) + b"\n")


if __name__ == "__main__":
    write_index()
