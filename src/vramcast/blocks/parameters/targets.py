"""Which weights a word means: "attention.q" in every stack, "vision.attention.q" in one,
"decoder.layers.0-3.attention.q" in some of its layers. Products of several weights have a path: "attention.qkv".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import OwnedParameter, named_parameters
from vramcast.domain.model import Layer, Model, Run, Stack
from vramcast.errors import UnknownName
from vramcast.lazy import lazy_pattern

JOINED: Final[dict[str, tuple[str, ...]]] = {
    "attention.qkv": ("attention.q", "attention.k", "attention.v"),
    "mlp.gate_up": ("mlp.gate", "mlp.up"),
    "moe.experts.gate_up": ("moe.experts.gate", "moe.experts.up"),
    "moe.shared.gate_up": ("moe.shared.gate", "moe.shared.up"),
    "linear_attention.qkv": ("linear_attention.q", "linear_attention.k", "linear_attention.v"),
    "linear_attention.qkvz": (
        "linear_attention.q", "linear_attention.k", "linear_attention.v", "linear_attention.gate",
    ),
    "linear_attention.ba": ("linear_attention.beta", "linear_attention.decay"),
}
"""Path of one product -> the weights it makes."""

LAYERS: Final = lazy_pattern(r"(?:layers\.(\d+)(?:-(\d+))?\.)?(.+)")

LAST: Final = 1 << 30
"""A layer behind every other."""


class Place(Struct, frozen=True):
    """Where the weights of one word are."""

    path: str
    stack: str = ""  # empty: wherever there is one
    first: int = 0
    last: int = LAST

    def covers(self, stack: str, first: int, last: int) -> bool:
        """Whether it means all of these layers of a stack."""
        return self.stack in ("", stack) and self.first <= first and last <= self.last


def parts_of(path: str) -> tuple[str, ...]:
    """The weights that one product makes.

    >>> parts_of("mlp.gate_up"), parts_of("mlp.down")
    (('mlp.gate', 'mlp.up'), ('mlp.down',))
    """
    return JOINED.get(path, (path,))


def place_of(word: str, stacks: Collection[str]) -> Place:
    """A word taken apart.

    >>> place_of("decoder.layers.0-3.attention.q", ("vision", "decoder"))
    Place(path='attention.q', stack='decoder', first=0, last=3)
    """
    stack, _, rest = word.partition(".")
    if stack not in stacks:
        return Place(word)
    match = LAYERS.fullmatch(rest)
    if match is None or match[1] is None:
        return Place(rest or word, stack if rest else "")
    return Place(match[3], stack, int(match[1]), int(match[2] or match[1]))


def places_of(model: Model, words: Iterable[str]) -> tuple[Place, ...]:
    stacks = [stack.name for stack in model.stacks]
    return tuple(place_of(word, stacks) for word in words)


def word_of(place: Place) -> str:
    if place.last == LAST:
        return f"{place.stack}.{place.path}" if place.stack else place.path
    layers = f"{place.first}-{place.last}" if place.last > place.first else str(place.first)
    return f"{place.stack}.layers.{layers}.{place.path}"


def matrices(layer: Layer, hidden: int) -> tuple[str, ...]:
    """Paths of the weights of one layer that multiply."""
    return tuple(found.path for found in layer_parameters(layer, hidden=hidden) if found.kind == "matrix")


def has(paths: Collection[str], path: str) -> bool:
    """Whether these weights are all that a path names."""
    return all(part in paths for part in parts_of(path))


def within(places: Iterable[Place], stack: str, first: int, last: int) -> tuple[str, ...]:
    """The paths that are meant in some layers of a stack."""
    return tuple(dict.fromkeys(place.path for place in places if place.covers(stack, first, last)))


def runs_apart(stack: Stack, places: Iterable[Place]) -> Stack:
    """The stack with its runs cut where a place begins or ends, so that each of their layers is like the others."""
    edges = {edge for place in places if place.stack == stack.name and place.last < LAST
             for edge in (place.first, place.last + 1)}
    if not edges:
        return stack
    return replace(stack, runs=tuple(_cut(stack.runs, edges)))


def _cut(runs: Iterable[Run], edges: Collection[int]) -> Iterator[Run]:
    start = 0
    for run in runs:
        end = start + run.count
        marks = [start, *sorted(edge for edge in edges if start < edge < end), end]
        for first, last in pairwise(marks):
            yield Run(count=last - first, layer=run.layer)
        start = end


def paths_within(stack: Stack) -> dict[str, None]:
    """Paths of a stack's layers, in their order."""
    return {path: None for run in stack.runs for path in matrices(run.layer, stack.hidden)}


def paths_outside(model: Model) -> dict[str, str]:
    """Words for the matrices outside the layers, with their kind: "embedding.tokens", "vision.projector.0" ..."""
    found = {
        word_outside(model, owned): owned.parameter.kind for owned in named_parameters(model)
        if ".layers." not in owned.owner and owned.parameter.kind in ("matrix", "embedding")
    }
    return {**found, **({"head.output": "matrix"} if model.tied else {})}


def word_outside(model: Model, owned: OwnedParameter) -> str:
    """The word for a weight outside the layers."""
    path = owned.parameter.path
    return f"{owned.owner}.{path}" if any(owned.owner == stack.name for stack in model.stacks) else path


def is_known(model: Model, place: Place) -> bool:
    """Whether a place names weights that the model has."""
    if word_of(place) in paths_outside(model):
        return True
    for stack in model.stacks:
        if place.stack not in ("", stack.name):
            continue
        known = any(has(matrices(run.layer, stack.hidden), place.path) for run in stack.runs)
        if known and (place.last == LAST or place.last < stack.num_layers):
            return True
    return False


def usual_targets(model: Model) -> tuple[str, ...]:
    """What is adapted where nobody says: queries and values, else every product that mixes tokens."""
    paths = paths_within(model.main)
    usual = ("attention.q", "attention.v")
    if has(tuple(paths), usual[0]) and has(tuple(paths), usual[1]):
        return usual
    return tuple(path for path in paths if path.startswith(("attention.", "linear_attention.", "mamba.in")))


def check_targets(model: Model, words: Iterable[str]) -> None:
    """Raise UnknownName for a word that names no weight of the model."""
    for word, place in zip(words, places_of(model, words), strict=True):
        if not is_known(model, place):
            inside = (path for stack in reversed(model.stacks) for path in paths_within(stack))
            raise no_weight(model, word, dict.fromkeys((*inside, *paths_outside(model))))


def no_weight(model: Model, word: str, names: Iterable[str]) -> UnknownName:
    """The error for a word that names no weight."""
    return UnknownName("no weight of {} is called {!r}; it has {}", model.name, word[:80], ", ".join(names))
