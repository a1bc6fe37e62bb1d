"""The catalogue of diffusion pipelines: one TOML file each, with the fields of its components' configs.

A file is named after the pipeline: `pipelines/flux.1-dev.toml`; `catalogue.index` holds which names lead to it. A
component names its class and config, or a model of the catalogue.
"""

from __future__ import annotations

import datetime
import tomllib
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vramcast.catalogue.index import PIPELINES
from vramcast.catalogue.models import load_model
from vramcast.domain.model import Head, Model
from vramcast.domain.pipeline import Autoencoder, AutoencoderKLWan, Component, Denoiser, Network, Pipeline
from vramcast.engines.diffusers import elements_of
from vramcast.errors import SourceError

CLASSES: Final[dict[str, Any]] = {
    str(noun.__struct_config__.tag): noun for noun in (*get_args(Denoiser), *get_args(Autoencoder))
} | {"AutoencoderKLQwenImage": AutoencoderKLWan}
"""Class of diffusers -> what describes it; Qwen-Image's autoencoder is Wan's under another name."""


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One component as a file states it."""

    name: str
    role: Literal["encoder", "denoiser", "autoencoder"]
    model: str = ""  # of the catalogue of models
    headless: bool = False  # the model is loaded without its head
    class_: str = msgspec.field(default="", name="class")
    config: dict[str, Any] = {}
    tokens: int = 0
    dtype: str | None = None


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of the catalogue."""

    source: str
    checked: datetime.date
    family: str
    components: tuple[Part, ...]
    aliases: tuple[str, ...] = ()
    height: int = 1024
    width: int = 1024
    frames: int = 1
    guidance: bool = True
    context_tokens: int = 77
    dtype: str = "bf16"


def parse_entry(text: str, *, file: str) -> Entry:
    """The record in a file.

    Raises: SourceError naming the file, for unknown, missing or wrong keys
    """
    try:
        return msgspec.convert(tomllib.loads(text), Entry)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SourceError("{}: {}", file, error) from error


def read_entry(name: str) -> Entry:
    """The file of a pipeline, by its own name."""
    return parse_entry((PIPELINES.folder / f"{name}.toml").read_text(encoding="utf-8"), file=f"{name}.toml")


def load_pipeline(name: str) -> Pipeline:
    """The pipeline of a name or alias, in any case.

    Raises: UnknownName with the nearest names
    """
    found = PIPELINES.resolve(name)
    return entry_pipeline(found, read_entry(found))


def entry_pipeline(name: str, entry: Entry) -> Pipeline:
    """The pipeline an entry describes."""
    return Pipeline(
        name=name, family=entry.family, components=tuple(_component(part, name) for part in entry.components),
        height=entry.height, width=entry.width, frames=entry.frames, guidance=entry.guidance,
        context_tokens=entry.context_tokens, dtype=entry.dtype,
    )


def _component(part: Part, pipeline: str) -> Component:
    network = _model(part) if part.model else _network(part, pipeline)
    return Component(name=part.name, role=part.role, network=network, tokens=part.tokens, dtype=part.dtype)


def _model(part: Part) -> Model:
    model = load_model(part.model)
    return replace(model, head=Head.NONE) if part.headless else model


def _network(part: Part, pipeline: str) -> Network:
    if part.class_ not in CLASSES:
        raise SourceError(
            "{}.toml: class {!r} of {} is none of {}", pipeline, part.class_, part.name, ", ".join(CLASSES)
        )
    try:
        network: Network = msgspec.convert(part.config, CLASSES[part.class_], strict=True)
    except msgspec.ValidationError as error:
        raise SourceError("{}.toml: {}: {}", pipeline, part.name, error) from error
    return network


def aliases_of(name: str) -> tuple[str, ...]:
    """By what else a pipeline is known, as its file says."""
    return read_entry(name).aliases


def summary_of(name: str) -> dict[str, Any]:
    """What a list shows of a pipeline: the weights of each component counted."""
    pipeline = load_pipeline(name)
    parts = {component.name: elements_of(component.network) for component in pipeline.components}
    return {"name": name, "family": pipeline.family, "parameters": sum(parts.values()), "components": parts}


if __name__ == "__main__":
    PIPELINES.write(PIPELINES.built(aliases_of), summary_of)
