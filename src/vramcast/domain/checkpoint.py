"""A model with what the headers of its checkpoint say: tensors with their exact bytes."""

from __future__ import annotations

from math import prod

from vramcast.domain.model import Model, Noun


class StoredTensor(Noun, frozen=True):
    """One tensor of a checkpoint, by its header."""

    name: str
    dtype: str  # lower case, as the format names it: "bf16", "f8_e4m3", "q4_k"
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def elements(self) -> int:
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
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes of each storage dtype, largest first."""
        sums: dict[str, int] = {}
        for tensor in self.tensors:
            sums[tensor.dtype] = sums.get(tensor.dtype, 0) + tensor.num_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


class Checkpoint(Noun, frozen=True):
    """A network, and its stored tensors where headers were at hand."""

    model: Model
    weights: StoredWeights | None = None
