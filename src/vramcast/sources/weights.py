"""What the headers of a checkpoint say: tensors with their exact bytes, and how they compare with a config."""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Final

from vramcast.domain.model import Model, Noun

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKED: Final = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f4", "f6_e2m3", "f6_e3m2"})
"""Dtypes whose elements are not weights one by one: several share an element, or they are indices."""

LARGEST_ELEMENTS: Final = 2**62
"""No tensor has more elements; larger products come from broken or hostile headers."""


class StoredTensor(Noun, frozen=True):
    """One tensor of a checkpoint, by its header."""

    name: str
    dtype: str  # lower case, as the format names it: "bf16", "f8_e4m3", "q4_k"
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class StoredWeights(Noun, frozen=True):
    """All tensors of a checkpoint. Without headers only `listed_bytes`, which the index states, is known."""

    tensors: tuple[StoredTensor, ...] = ()
    listed_bytes: int | None = None  # metadata.total_size of an index whose shards were not read

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, headers and padding not counted."""
        if self.listed_bytes is not None and not self.tensors:
            return self.listed_bytes
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def elements(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes of each storage dtype, largest first."""
        sums: dict[str, int] = {}
        for tensor in self.tensors:
            sums[tensor.dtype] = sums.get(tensor.dtype, 0) + tensor.num_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def joined(parts: Iterable[StoredWeights]) -> StoredWeights:
    """The tensors of several files as one checkpoint."""
    return StoredWeights(tensors=tuple(tensor for part in parts for tensor in part.tensors))


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
