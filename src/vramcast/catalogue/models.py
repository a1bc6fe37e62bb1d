"""The catalogue of models: one TOML file each, holding the fields of its config, where they come from and since when.

A file is named after the model: `models/llama-3.1-8b.toml`; `catalogue.index` holds which names lead to it.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from vramcast.blocks.parameters.model import BUFFERS, Stored, count_parameters, stored_elements
from vramcast.catalogue.index import MODELS
from vramcast.domain.model import Head, Model
from vramcast.errors import SourceError
from vramcast.families import model_from_config


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
        raise SourceError("{}: {}{}", file, error, _key_at(text, str(error))) from error
    except msgspec.ValidationError as error:
        raise SourceError("{}: {}", file, error) from error


def _key_at(text: str, message: str) -> str:
    """The key on the line a TOML error names; its own text leaves it out."""
    line = re.search(r"at line (\d+)", message)
    rows = text.splitlines()
    if line is None or not 0 < int(line[1]) <= len(rows):
        return ""
    return f", key {rows[int(line[1]) - 1].split('=')[0].strip()!r}"


def read_entry(name: str) -> Entry:
    """The file of a model, by its own name."""
    return parse_entry((MODELS.folder / f"{name}.toml").read_text(encoding="utf-8"), file=f"{name}.toml")


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
    return _model_of(MODELS.resolve(name))


@cache
def _model_of(name: str) -> Model:
    return entry_model(name, read_entry(name))


def text_decoders() -> Iterator[Model]:
    """The models of the catalogue that read and write text alone."""
    for name in MODELS.names():
        model = load_model(name)
        if len(model.stacks) == 1 and model.main.causal and model.main.vision is None and model.head is Head.LM:
            yield model


def aliases_of(name: str) -> tuple[str, ...]:
    """By what else a model is known, as its file says."""
    return read_entry(name).aliases


def summary_of(name: str) -> dict[str, Any]:
    """What a list shows of a model: its name and its shape."""
    return {"name": name} | shape_of(load_model(name))


def shape_of(model: Model) -> dict[str, Any]:
    """The weights of a model counted, and what of its shape is known."""
    count = count_parameters(model)
    facts = {
        "family": model.family, "parameters": count.total, "active_parameters": count.active,
        "layers": model.num_layers, "hidden": model.hidden, "vocabulary": model.vocab, "context": model.context,
    }
    return {key: value for key, value in facts.items() if value is not None and value != ""}


if __name__ == "__main__":
    MODELS.write(MODELS.built(aliases_of), summary_of)
