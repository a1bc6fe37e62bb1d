"""Which backend computes which node of a graph, what is copied, and the allocator that packs one buffer a backend.

[alloc] ggml-org/ggml src/ggml-alloc.c: `ggml_dyn_tallocr_alloc`, `ggml_dyn_tallocr_free_bytes`,
`ggml_gallocr_alloc_graph_impl`. A buffer only grows; a hole is taken by the tensor that fits it best, what fits no
hole goes behind the last one.
[sched] ggml-org/ggml src/ggml-backend.cpp `ggml_backend_sched_split_graph`: nodes follow their weights, the rest
follows its neighbours, cards before the host; what a node needs of another backend is copied before its split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from vramcast.engines.ggml.ops import IN_PLACE_OPS, VIEW_OPS, Graph, Tensor
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
        for node in (*tensor.src, tensor):
            if not node.held and node.home is None and node.root is None:  # as `allocate`, without the call
                packing.allocate(node, backend)
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


PIPELINE_COPIES: Final = 4
"""Copies of every input where batches overlap on several cards [GGML_SCHED_MAX_COPIES]."""

MOST_SPLIT_INPUTS: Final = 30  # GGML_SCHED_MAX_SPLIT_INPUTS


class Machine(NamedTuple):
    """The backends a graph runs on: cards first, the host last."""

    memories: tuple[Memory, ...]
    supports: Callable[[Tensor, int], bool]  # can this card compute that node; the host can all
    offloads: Callable[[Tensor], bool]  # is a node worth bringing host weights to the first card for
    copies: int = 1  # PIPELINE_COPIES with pipeline parallelism

    @property
    def host(self) -> int:
        """Index of the host."""
        return len(self.memories) - 1

    def able(self, tensor: Tensor, backend: int) -> bool:
        """Whether a backend can compute a node."""
        return backend == self.host or self.supports(tensor, backend)


class Split(NamedTuple):
    """Nodes in a row on one backend, and the tensors they need from others."""

    backend: int
    nodes: list[Tensor]
    inputs: list[Tensor]


def reserve(graph: Graph, machine: Machine) -> tuple[int, ...]:
    """Bytes of the compute buffer of each backend."""
    assign(graph, machine)
    splits, fed = cut(graph.nodes, machine)
    return pack(*_laid_out(graph, splits, fed, machine), machine.memories)


def assign(graph: Graph, machine: Machine) -> None:
    """Give every node its backend [sched, passes 1 to 4]."""
    for tensor in (*graph.leafs, *graph.nodes):
        if tensor.backend < 0:
            tensor.backend = _from_memory(tensor, machine)
    working = [node for node in graph.nodes if node.op not in VIEW_OPS]
    for backwards, cards_only in ((False, True), (True, True), (False, False), (True, False)):
        _expand(reversed(working) if backwards else working, machine, cards_only=cards_only)
    for node in working:
        if node.backend < 0:
            node.backend = _best_supported(node, machine)
    for node in graph.nodes:
        if node.backend < 0 and node.root is not None:
            node.backend = node.root.backend
        for source in node.src:
            if source.backend < 0:
                source.backend = source.root.backend if source.root is not None else node.backend


def _from_memory(tensor: Tensor, machine: Machine) -> int:
    """The backend of what a node writes into or of its weights; -1: free to choose."""
    home = tensor.home if tensor.root is None else tensor.root.home
    if home is not None:
        return home if machine.able(tensor, home) else -1
    if tensor.is_input:
        return machine.host
    for source in tensor.src:
        weight = source.root or source
        if weight.home is None or not weight.weight:
            continue
        if weight.home == machine.host and machine.host and machine.offloads(tensor) and machine.supports(tensor, 0):
            return 0
        return weight.home if machine.able(tensor, weight.home) else machine.host
    return -1


def _expand(nodes: Iterable[Tensor], machine: Machine, *, cards_only: bool) -> None:
    current = -1
    for node in nodes:
        if node.backend >= 0:
            current = -1 if cards_only and node.backend == machine.host else node.backend
        elif current >= 0 and machine.able(node, current):
            node.backend = current


def _best_supported(node: Tensor, machine: Machine) -> int:
    """The backend that already has most of what a node reads."""
    best, most = machine.host, -1
    for backend in range(machine.host + 1):
        if machine.able(node, backend):
            near = sum(_holder(source) == backend for source in node.src)
            if near > most:
                best, most = backend, near
    return best


def _holder(tensor: Tensor) -> int:
    """The backend whose memory a tensor lies in, -1 while nobody knows."""
    owner = tensor.root or tensor
    if owner.home is not None:
        return owner.home
    return tensor.backend if tensor.backend >= 0 else owner.backend


def cut(nodes: Sequence[Tensor], machine: Machine) -> tuple[list[Split], list[Tensor]]:
    """The splits, with copies put in the place of what other backends hold, and inputs that are kept several times."""
    splits: list[Split] = []
    fed: list[Tensor] = []
    for node in nodes:
        if node.op in VIEW_OPS:
            if splits:
                splits[-1].nodes.append(node)
            else:
                splits.append(Split(-1, [node], []))
            continue
        if splits and splits[0].backend < 0:
            splits[0] = splits[0]._replace(backend=node.backend)
        if not splits or node.backend != splits[-1].backend or _needs_room(node, splits[-1]):
            splits.append(Split(node.backend, [], []))
        split = splits[-1]
        split.nodes.append(node)
        for index, source in enumerate(node.src):
            if source.is_input and machine.copies > 1 and not source.copies:
                source.copies = {source.backend: [source, *_copies(source, machine.copies - 1, keep=True)]}
                source.is_output = True
                fed.append(source)
            if _holder(source) != split.backend and source.backend != split.backend:
                if split.backend not in source.copies:
                    source.copies[split.backend] = _copies(source, machine.copies, keep=machine.copies > 1)
                    split.inputs.append(source)
                node.src[index] = source.copies[split.backend][0]
    return splits, fed


def _needs_room(node: Tensor, split: Split) -> bool:
    """Whether weights brought from elsewhere, or too many inputs, start a new split."""
    if not split.inputs:
        return False
    for source in node.src:
        if source.weight and source.home is not None and source.home != split.backend:
            return True
        if len(split.inputs) >= MOST_SPLIT_INPUTS and _holder(source) != split.backend:
            return split.backend not in source.copies
    return False


def _copies(source: Tensor, count: int, *, keep: bool) -> list[Tensor]:
    """Tensors of a source's layout; kept ones are never overwritten."""
    found = [Tensor(source.dtype, source.ne, nb=source.nb) for _ in range(count)]
    for copy in found:
        copy.is_input = copy.is_output = keep
    return found


def _laid_out(
    graph: Graph, splits: Sequence[Split], fed: Sequence[Tensor], machine: Machine
) -> tuple[list[Step], list[Step]]:
    """Nodes and leafs as the allocator gets them: copies at the start of their split."""
    steps: list[Step] = []
    leafs: list[Step] = []
    for split in splits:
        for source in split.inputs:
            # keeps the source until it is copied
            kept = Tensor(source.dtype, source.ne, src=(source,), root=source, nb=source.nb)
            steps.append(Step(kept, source.backend))
            steps.append(Step(source.copies[split.backend][0], split.backend))
        steps += (Step(node, node.backend) for node in split.nodes)
    if machine.copies > 1:
        leafs += (Step(copy, source.backend) for source in fed for copy in source.copies[source.backend])
        for split in splits:
            leafs += (Step(copy, split.backend) for source in split.inputs for copy in source.copies[split.backend])
    leafs += (Step(leaf, leaf.backend) for leaf in graph.leafs)
    return steps, leafs
