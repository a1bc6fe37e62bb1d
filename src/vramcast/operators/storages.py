"""Reference counts of storages: who reads, saves and discards a value of a tape.

What eager autograd keeps alive between forward and backward follows from these counts (see `graph`).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.domain.program import Alloc, Free, Node, Tensor
from vramcast.operators.graph import Checkpoint, Graph, Value


class Storages:
    """Reference counts of the block's storages, and the nodes that follow from them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.references: dict[Value, int] = {}

    def allocate(self, value: Value, references: int) -> None:
        self.references[value] = references
        if value.tensor.num_bytes:
            self.nodes.append(Alloc(value.tensor))
            if references == 0:
                self.nodes.append(Free(value.tensor))

    def adopt(self, value: Value, references: int) -> None:
        storage = value.storage
        self.references[storage] = self.references.get(storage, 0) + references

    def release(self, value: Value, references: int = 1) -> None:
        storage = value.storage
        left = self.references[storage] - references
        self.references[storage] = left
        if left == 0 and storage.tensor.num_bytes:  # what has no size is somebody else's: nothing is allocated for it
            self.nodes.append(Free(storage.tensor))

    def allocate_all(self, tensors: Sequence[Tensor]) -> None:
        if tensors:  # most operators have none
            self.nodes += [Alloc(tensor) for tensor in tensors]

    def free_all(self, tensors: Sequence[Tensor]) -> None:
        if tensors:
            self.nodes += [Free(tensor) for tensor in tensors]

    def pass_all(self, tensors: Sequence[Tensor]) -> None:
        """All at once, and gone."""
        if tensors:
            self.nodes += [Alloc(tensor) for tensor in tensors]
            self.nodes += [Free(tensor) for tensor in tensors]


def regions_by_index(graph: Graph) -> dict[int, Checkpoint]:
    return {index: region for region in graph.checkpoints for index in range(region.start, region.stop)}


def external_inputs(graph: Graph, region: Checkpoint) -> list[Value]:
    """What a region reads but does not make, in order of first reading."""
    made: set[Value] = set()
    seen: dict[Value, None] = {}
    for operator in graph.operators[region.start : region.stop]:
        for value in operator.inputs:
            if value.storage not in made:
                seen.setdefault(value.storage)
        made.update(operator.outputs)
    return list(seen)


def discarded_values(graph: Graph) -> dict[Value, Checkpoint]:
    """Values whose storage dies after their reader and is recomputed for its backward."""
    return {
        value: region
        for region in graph.checkpoints
        if region.discard_output
        for value in graph.operators[region.stop - 1].outputs
    }


def saver_counts(graph: Graph) -> dict[Value, int]:
    """How many savers hold each value between forward and backward."""
    saves: dict[Value, int] = {}
    if not graph.checkpoints:
        for operator in graph.operators:
            for value in (*operator.saved, *operator.extra):
                saves[value.storage] = saves.get(value.storage, 0) + 1
        return saves
    regions, discarded = regions_by_index(graph), discarded_values(graph)

    def add(value: Value) -> None:
        storage = value.storage
        if storage not in discarded:
            saves[storage] = saves.get(storage, 0) + 1

    for index, operator in enumerate(graph.operators):
        region = regions.get(index)
        if region is None:
            for value in (*operator.saved, *operator.extra):
                add(value)
        elif region.keep is not None and region.keep(operator):
            for value in (*operator.outputs, *operator.extra):
                add(value)
    for region in graph.checkpoints:
        for value in external_inputs(graph, region):
            add(value)
    return saves
