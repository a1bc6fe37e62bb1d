"""The best-fit allocator that packs a graph's tensors into one buffer per backend.

[alloc] ggml-org/ggml src/ggml-alloc.c: `ggml_dyn_tallocr_alloc`, `ggml_dyn_tallocr_free_bytes`,
`ggml_gallocr_alloc_graph_impl`. A buffer only grows; a hole is taken by the tensor that fits it best, what fits no hole
goes behind the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vramcast.engines.ggml.tensor import IN_PLACE_OPS, Tensor
from vramcast.states.ggml import QUANTISED, row_bytes
from vramcast.units import round_up

ENDLESS: Final = 1 << 62

MATRIX_ROW_PADDING: Final = 512
"""Rows of quantised tensors are padded to this on CUDA [ggml-cuda/common.cuh]."""


class Buffer:
    """The free blocks of one backend's buffer, by address."""

    __slots__ = ("alignment", "free", "size")

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.free: list[list[int]] = [[0, ENDLESS]]  # offset, bytes
        self.size = 0

    def take(self, num_bytes: int) -> int:
        """Offset of a new block: in the smallest hole that holds it (the last of equals), else at the end."""
        num_bytes = round_up(num_bytes, self.alignment)
        best = len(self.free) - 1
        best_size = ENDLESS
        for index in range(len(self.free) - 1):
            if num_bytes <= self.free[index][1] <= best_size:
                best, best_size = index, self.free[index][1]
        block = self.free[best]
        offset = block[0]
        block[0] += num_bytes
        block[1] -= num_bytes
        if not block[1]:
            del self.free[best]
        self.size = max(self.size, offset + num_bytes)
        return offset

    def give(self, offset: int, num_bytes: int) -> None:
        """Free a block; neighbours become one."""
        num_bytes = round_up(num_bytes, self.alignment)
        free = self.free
        position = 0
        while position < len(free) and free[position][0] < offset:
            position += 1
        if position and sum(free[position - 1]) == offset:
            position -= 1
            free[position][1] += num_bytes
        else:
            free.insert(position, [offset, num_bytes])
        if position + 1 < len(free) and sum(free[position]) == free[position + 1][0]:
            free[position][1] += free.pop(position + 1)[1]


class Step(NamedTuple):
    """A node, and the backend whose buffer its result goes to."""

    tensor: Tensor
    backend: int


class Memory(NamedTuple):
    """What the buffers of a backend are like."""

    alignment: int  # [bytes]
    pads_rows: bool = False  # CUDA pads rows of quantised tensors
    shrinks: bool = True  # gives back the rest when a smaller result takes a larger one's place, since b6808


CUDA: Final = Memory(128, pads_rows=True)
HOST: Final = Memory(32)


def padded_bytes(tensor: Tensor, memory: Memory) -> int:
    """What a backend allocates for a tensor [bytes]."""
    padding = -tensor.ne[0] % MATRIX_ROW_PADDING
    if memory.pads_rows and padding and tensor.dtype in QUANTISED:
        return tensor.num_bytes + row_bytes(tensor.dtype, padding)
    return tensor.num_bytes


def pack(steps: Sequence[Step], leafs: Sequence[Step], memories: Sequence[Memory]) -> tuple[int, ...]:
    """Bytes of each backend's buffer for a graph.

    Args:
        steps: nodes in the order of computation
        leafs: inputs, allocated before everything else
        memories: of the backends
    """
    packing = _Packing(memories)
    for leaf in leafs:
        packing.allocate(*leaf)
    for tensor, backend in steps:
        if tensor.root is not None and tensor.op != "none":
            tensor.root.views += 1
        if tensor.is_input:
            packing.allocate(tensor, backend)
        for source in tensor.src:
            source.children += 1
            if source.is_input:
                packing.allocate(source, backend)
    for tensor, backend in steps:
        for source in tensor.src:
            packing.allocate(source, backend)
        packing.allocate(tensor, backend)
        for source in tensor.src:
            packing.release(source)
    return tuple(buffer.size for buffer in packing.buffers)


class _Packing:
    """One run of the allocator over a graph."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self.memories = memories
        self.buffers = tuple(Buffer(memory.alignment) for memory in memories)
        self.places: dict[int, int] = {}

    def allocate(self, tensor: Tensor, backend: int) -> None:
        """Give a tensor its place, unless it has one or looks at another's."""
        if tensor.held or tensor.home is not None or tensor.root is not None:
            return
        tensor.held = True
        if tensor.op in IN_PLACE_OPS and self._in_place(tensor):
            return
        tensor.offset = self.buffers[backend].take(padded_bytes(tensor, self.memories[backend]))
        self.places[id(tensor)] = backend

    def _in_place(self, tensor: Tensor) -> bool:
        """Take the place of a source that nobody else needs; views own nothing that could be taken [alloc]."""
        for source in tensor.src:
            if source.root is not None or not source.held or source.is_output:
                continue
            if source.children != 1 or source.views or not tensor.same_layout(source):
                continue
            tensor.offset = source.offset
            self.places[id(tensor)] = self.places[id(source)]
            source.held = False
            self._shrink(source, tensor)
            return True
        return False

    def _shrink(self, owner: Tensor, tensor: Tensor) -> None:
        backend = self.places[id(tensor)]
        memory = self.memories[backend]
        before = round_up(padded_bytes(owner, memory), memory.alignment)
        after = round_up(padded_bytes(tensor, memory), memory.alignment)
        if memory.shrinks and before > after:
            self.buffers[backend].give(tensor.offset + after, before - after)

    def release(self, source: Tensor) -> None:
        """One reader fewer; the last one frees the memory."""
        source.children -= 1
        if source.children or source.views:
            return
        owner = source
        if source.root is not None:
            owner = source.root
            owner.views -= 1
            if owner.views or owner.children:
                return
        if owner.held and not owner.is_output:
            backend = self.places[id(owner)]
            self.buffers[backend].give(owner.offset, padded_bytes(owner, self.memories[backend]))
            owner.held = False
