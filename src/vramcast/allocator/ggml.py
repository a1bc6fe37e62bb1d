"""ggml's graph allocator: the compute buffer that a graph of tensors needs, address by address.

A graph is walked from its result down to its leaves; tensors are placed in the order the walk finishes them, into the
smallest free block that fits, and freed when the last reader has run. An operator that may work in place takes over its
operand's memory when it is the only reader.

[alloc] ggml-org/ggml src/ggml-alloc.c at ff90529 `ggml_gallocr_alloc_graph_impl`, `ggml_dyn_tallocr_alloc`
[order] ggml-org/ggml src/ggml.c at ff90529 `ggml_visit_parents`
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from vramcast.units import round_up

IN_PLACE: Final = frozenset(
    ("scale", "diag_mask_zero", "diag_mask_inf", "add", "add1", "sub", "mul", "div", "sqr", "sqrt", "log", "unary",
     "rope", "silu_back", "rms_norm", "soft_max")
)
"""Operators whose result may take over the memory of an operand [alloc: ggml_op_can_inplace]."""

CUDA_ALIGNMENT: Final = 128
"""Of tensors in a CUDA buffer [ggml src/ggml-cuda/ggml-cuda.cu `get_alignment`; bytes]."""

CPU_ALIGNMENT: Final = 32
"""Of tensors in host memory [ggml src/ggml-cpu/ggml-cpu.cpp; TENSOR_ALIGNMENT in ggml-impl.h; bytes]."""

Shape = tuple[int, int, int, int]
Layout = tuple[str, Shape, Shape]


class GgmlTensor:
    """One tensor of a graph: a weight (external), an input, a view or the result of an operator."""

    __slots__ = ("dtype", "external", "num_bytes", "op", "shape", "sources", "strides", "view_of")

    def __init__(
        self, op: str, dtype: str, shape: Shape, strides: Shape, num_bytes: int,
        sources: tuple[GgmlTensor, ...] = (), view_of: GgmlTensor | None = None, *, external: bool = False,
    ) -> None:
        self.op = op  # "" of weights and inputs
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.num_bytes = num_bytes
        self.sources = sources
        self.view_of = view_of  # the tensor that owns the memory, never a view itself
        self.external = external  # lies in another buffer

    @property
    def layout(self) -> Layout:
        """Type, sizes and strides: equal ones can share memory."""
        return self.dtype, self.shape, self.strides


class FreeBlocks:
    """Free address ranges in ascending order; the last one has no end."""

    def __init__(self) -> None:
        self.offsets = [0]
        self.sizes = [1 << 62]
        self.highest = 0

    def take(self, size: int) -> int:
        """The start of the smallest block that fits; of equal ones the last, and the endless one only if no other."""
        sizes, best = self.sizes, -1
        for index in range(len(sizes) - 1):
            if sizes[index] >= size and (best < 0 or sizes[index] <= sizes[best]):
                best = index
        offset = self.offsets[best]
        self.offsets[best] += size
        sizes[best] -= size
        if not sizes[best]:
            del self.offsets[best], sizes[best]
        self.highest = max(self.highest, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        """The range becomes free and joins its free neighbours."""
        offsets, sizes = self.offsets, self.sizes
        index = bisect_left(offsets, offset)
        if index and offsets[index - 1] + sizes[index - 1] == offset:
            index -= 1
            sizes[index] += size
        else:
            offsets.insert(index, offset)
            sizes.insert(index, size)
        if index + 1 < len(offsets) and offsets[index] + sizes[index] == offsets[index + 1]:
            sizes[index] += sizes[index + 1]
            del offsets[index + 1], sizes[index + 1]


def in_order(results: tuple[GgmlTensor, ...]) -> tuple[list[GgmlTensor], list[GgmlTensor]]:
    """Leaves and operators of a graph as a depth-first walk finishes them [order]."""
    seen: set[GgmlTensor] = set()
    leaves: list[GgmlTensor] = []
    nodes: list[GgmlTensor] = []
    for result in results:
        stack = [(result, 0)]
        while stack:
            tensor, position = stack.pop()
            if not position:
                if tensor in seen:
                    continue
                seen.add(tensor)
            if position < len(tensor.sources):
                stack += [(tensor, position + 1), (tensor.sources[position], 0)]
                continue
            (nodes if tensor.op else leaves).append(tensor)
    return leaves, nodes


class GraphAllocator:
    """Places the tensors of one graph."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.blocks = FreeBlocks()
        self.children: dict[GgmlTensor, int] = {}
        self.views: dict[GgmlTensor, int] = {}
        self.placed: dict[GgmlTensor, int] = {}  # own memory, by its start

    def run(self, results: tuple[GgmlTensor, ...]) -> int:
        """Bytes of the buffer."""
        leaves, nodes = in_order(results)
        for leaf in leaves:
            self._place(leaf)
        for node in nodes:
            if node.view_of is not None:
                self.views[node.view_of] = self.views.get(node.view_of, 0) + 1
            for source in node.sources:
                self.children[source] = self.children.get(source, 0) + 1
        for node in nodes:
            self._place(node)
            for source in node.sources:
                self._read(source)
        return self.blocks.highest

    def _size(self, tensor: GgmlTensor) -> int:
        return round_up(tensor.num_bytes, self.alignment)

    def _place(self, tensor: GgmlTensor) -> None:
        if tensor.external or tensor.view_of is not None:
            return
        if tensor.op in IN_PLACE:
            for source in tensor.sources:
                alone = self.children[source] == 1 and not self.views.get(source)
                if source in self.placed and alone and source.layout == tensor.layout:
                    self.placed[tensor] = self.placed.pop(source)
                    return
        self.placed[tensor] = self.blocks.take(self._size(tensor))

    def _read(self, tensor: GgmlTensor) -> None:
        self.children[tensor] -= 1
        if self.children[tensor] or self.views.get(tensor):
            return
        owner = tensor.view_of
        if owner is None:
            self._free(tensor)
            return
        self.views[owner] -= 1
        if not self.views[owner] and not self.children.get(owner):
            self._free(owner)

    def _free(self, tensor: GgmlTensor) -> None:
        if tensor in self.placed:
            self.blocks.give(self.placed.pop(tensor), self._size(tensor))


def compute_buffer_bytes(*results: GgmlTensor, alignment: int = CUDA_ALIGNMENT) -> int:
    """The buffer that `ggml_gallocr_reserve` asks a backend for [bytes]."""
    return GraphAllocator(alignment).run(results)
