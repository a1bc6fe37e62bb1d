"""What each family's code calls the modules that hold a model's weights: the rows of module_names.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from vramcast.blocks.parameters.targets import has, matrices, parts_of, paths_outside
from vramcast.domain.model import Layer, Model, Stack

FILE: Final = Path(__file__).with_name("module_names.toml")

UNFUSED: Final[dict[str, dict[str, str]]] = {"unsloth": {"phi3": "llama"}, "torchtune": {"phi3": "llama"}}
"""Engine -> family -> the family whose modules it makes of it [unsloth models/loader.py: Phi-3 becomes Mistral's;
torchtune models/phi3/_component_builders.py `lora_phi3`]."""

BESIDE: Final = " beside "
"""Between a module's weight and another one that its layer must have."""

MOST_KNOWN: Final = 256


class Kind(StrEnum):
    """What holds a weight."""

    LINEAR = "linear"
    PARAMETERS = "parameters"  # stacked experts
    ROUTERS = "routers"
    FORMER = "former"  # what transformers before 5 called it
    OUTSIDE = "outside"  # a linear layer beside the layers
    EMBEDDING = "embedding"


class Module(Struct, frozen=True):
    """One module of a model's code, in all layers that have it."""

    name: str  # "model.layers.#.self_attn.q_proj"
    kind: Kind
    path: str  # "attention.q"
    stack: str  # empty: outside the layers
    layers: tuple[int, ...] = ()

    def names(self) -> Iterator[tuple[str, int]]:
        """Its whole name in every layer."""
        if not self.stack:
            yield self.name, 0
        for index in self.layers:
            yield self.name.replace("#", str(index), 1), index

    @property
    def last(self) -> str:
        """The last part of its name that is no number."""
        return next(part for part in reversed(self.name.split(".")) if not part.isdecimal())


class Tables(Struct, frozen=True):
    """The file, by what it is asked for."""

    sets: Mapping[str, Mapping[str, Mapping[str, str]]]
    families: Mapping[str, Mapping[str, Any]]
    converted: Mapping[str, Mapping[str, str]]  # family -> former name -> path
    others: Mapping[str, tuple[str, ...]]


@cache
def file_tables() -> Tables:
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    families = {name: row for row in document["families"] for name in row["names"].split()}
    converted = {
        name: {key: path for key, path in row.items() if key != "families"}
        for row in document["converted"].values() for name in row["families"].split()
    }
    others = {name: tuple(paths) for name, paths in document["others"].items()}
    return Tables(document["sets"], families, converted, others)


def known_families() -> tuple[str, ...]:
    return tuple(file_tables().families)


@lru_cache(maxsize=MOST_KNOWN)
def modules_of(model: Model, engine: str = "", *, former: bool = False) -> tuple[Module, ...]:
    """The modules of a model's code that hold its weights; none where its family's names are not known.

    Args:
        engine: a trainer may have other modules than transformers
        former: as transformers before 5 had them
    """
    tables = file_tables()
    row = tables.families.get(UNFUSED.get(engine, {}).get(model.family, model.family))
    if row is None:
        return ()
    outside = paths_outside(model)
    kinds = {"matrix": Kind.OUTSIDE, "embedding": Kind.EMBEDDING}
    found = [Module(name, kinds[outside[path]], path, "") for name, path in row["outside"].items() if path in outside]
    for stack in model.stacks:
        place = row.get(stack.name)
        if place is not None:
            found += _of_stack(stack, place["layers"], [tables.sets[name] for name in place["sets"]], former)
    return tuple(found)


def _of_stack(
    stack: Stack, prefix: str, sets: list[Mapping[str, Mapping[str, str]]], former: bool
) -> Iterator[Module]:
    known: dict[Layer, set[tuple[Kind, str, str]]] = {}
    for run in stack.runs:
        if run.layer not in known:
            known[run.layer] = set(_of_layer(matrices(run.layer, stack.hidden), sets, former))
    layers = stack.layers
    for kind, name, path in _rows(sets, former):
        having = tuple(index for index, layer in enumerate(layers) if (kind, name, path) in known[layer])
        if having:
            yield Module(f"{prefix}.#.{name}", kind, path.partition(BESIDE)[0], stack.name, having)


def _rows(sets: list[Mapping[str, Mapping[str, str]]], former: bool) -> Iterator[tuple[Kind, str, str]]:
    """The rows of sets: experts and routers as this or the former transformers had them."""
    for group in sets:
        replaced = former and "former" in group
        for kind, names in group.items():
            for name, path in names.items():
                if replaced and kind in (Kind.FORMER, Kind.ROUTERS):
                    yield Kind.LINEAR, name, path
                elif kind == Kind.FORMER:
                    if "#" not in name:
                        yield Kind.FORMER, name, path
                elif not (replaced and kind == Kind.PARAMETERS):
                    yield Kind(kind), name, path


def _of_layer(
    paths: tuple[str, ...], sets: list[Mapping[str, Mapping[str, str]]], former: bool
) -> Iterator[tuple[Kind, str, str]]:
    """The modules of one layer; of two that claim a weight the earlier has it, former names stand beside."""
    claimed: set[str] = set()
    for kind, name, value in _rows(sets, former):
        path, _, beside = value.partition(BESIDE)
        parts = parts_of(path)
        there = has(paths, path) and (not beside or beside in paths)
        if there and (kind is Kind.FORMER or claimed.isdisjoint(parts)):
            claimed.update(() if kind is Kind.FORMER else parts)
            yield kind, name, value
