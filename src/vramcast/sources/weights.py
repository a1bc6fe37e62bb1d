"""How the headers of a checkpoint compare with its config."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Final

from vramcast.domain.checkpoint import Checkpoint, StoredWeights
from vramcast.domain.model import Model

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKED: Final = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f4", "f6_e2m3", "f6_e3m2"})
"""Dtypes whose elements are not weights one by one: several share an element, or they are indices."""

LARGEST_ELEMENTS: Final = 2**62
"""No tensor has more elements; larger products come from broken or hostile headers."""


def joined(parts: Iterable[StoredWeights]) -> StoredWeights:
    """The tensors of several files as one checkpoint."""
    return StoredWeights(tensors=tuple(tensor for part in parts for tensor in part.tensors))


def compared(model: Model, weights: StoredWeights | None) -> Checkpoint:
    """The model with its headers, and a note where the two disagree."""
    if weights is None:
        return Checkpoint(model=model)
    return Checkpoint(model=noted(model, comparison_notes(model, weights)), weights=weights)


def noted(model: Model, notes: tuple[str, ...]) -> Model:
    """The model with more notes."""
    from msgspec.structs import replace

    return replace(model, notes=(*model.notes, *notes)) if notes else model


def comparison_notes(model: Model, weights: StoredWeights) -> tuple[str, ...]:
    """What a reader should know when the header and the config do not agree on the number of elements."""
    if not weights.tensors:
        return ()
    packed = sorted({tensor.dtype for tensor in weights.tensors} & PACKED)
    if packed:
        return (f"checkpoint stores packed weights ({', '.join(packed)}); its elements were not compared",)
    return _element_notes(model, weights.elements)


def _element_notes(model: Model, found: int) -> tuple[str, ...]:
    from vramcast.blocks.parameters import Stored, count_parameters, stored_elements

    expected = count_parameters(model).total
    difference = found - expected
    if difference == 0:
        return ()
    sizes = {kind: stored_elements(model, kind) for kind in Stored}
    sizes = {kind: size for kind, size in sizes.items() if size}
    for number in range(1, 4):
        for kinds in combinations(sizes, number):
            if sum(sizes[kind] for kind in kinds) == difference:
                extras = " and ".join(kind.value.replace("_", " ") for kind in kinds)
                return (f"checkpoint also stores {extras} ({difference} elements)",)
    share = 100 * difference / expected
    return (f"checkpoint holds {found} elements where the config gives {expected} ({share:+.2f} %)",)
