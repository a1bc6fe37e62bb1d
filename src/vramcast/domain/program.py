"""The step program: what one rank does to memory, in order.

A program is a tree of three nodes: allocate a tensor, free it, repeat a body. Repeats stay repeats, so a step of a
126-layer model is a few hundred nodes, and its peak is a maximum of sums instead of a simulation.
A tensor allocated n times and freed m times has n - m live instances; the instances are interchangeable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

ALLOCATION_GRANULARITY: Final = 512
"""Every block of the caching allocator is a multiple of this [bytes] (kMinBlockSize)."""


class Category(StrEnum):
    """What a tensor is for; the first level of the ledger."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    COMMUNICATION = "communication"
    WORKSPACES = "workspaces"
    INPUTS = "inputs"
    CACHE = "kv cache"
    GRAPHS = "cuda graphs"
    ADAPTERS = "lora slots"
    DRAFT = "draft model"
    ENCODER = "encoder cache"


class Basis(StrEnum):
    """How a number came to be."""

    FORMULA = "formula"
    TRACED = "traced"
    MEASURED = "measured"
    ASSUMED = "assumed"


class Tensor(Struct, frozen=True, eq=False, kw_only=True):
    """A named piece of memory. Equality is identity: two tensors of one name are two ledger entries."""

    name: str  # "attention.q", "optimizer.exp_avg"
    num_bytes: int  # requested, before the allocator rounds
    category: Category
    owner: str = ""  # "decoder.layers", "embedding"
    basis: Basis = Basis.FORMULA
    formula: str = ""  # with the numbers put in
    source: str = ""  # paper, upstream line or measurement
    stream: str = ""  # CUDA stream it is allocated on; free blocks of one stream never serve another

    @property
    def block_bytes(self) -> int:
        """Bytes the caching allocator counts for it, slack of large blocks left out."""
        return -(-self.num_bytes // ALLOCATION_GRANULARITY) * ALLOCATION_GRANULARITY  # a search asks 10^8 times

    @property
    def path(self) -> str:
        """Where the ledger lists it: category/owner/name."""
        return "/".join(part for part in (self.category, self.owner, self.name) if part)


class Alloc(Struct, frozen=True, eq=False):
    """The tensor comes to life."""

    tensor: Tensor


class Free(Struct, frozen=True, eq=False):
    """One live instance of the tensor dies."""

    tensor: Tensor


class Loop(Struct, frozen=True, eq=False):
    """The body, `count` times in a row."""

    count: int
    body: tuple[Node, ...]
    label: str = ""


Node = Alloc | Free | Loop
Program = tuple[Node, ...]


class Extent(NamedTuple):
    """What a piece of program does to the sum of live bytes: the change, and the highest point on the way."""

    net: int
    peak: int

    def then(self, after: Extent) -> Extent:
        """The extent of this piece followed by another."""
        return Extent(self.net + after.net, max(self.peak, self.net + after.peak))

    def times(self, count: int) -> Extent:
        """The extent of `count` repeats: the highest point lies in the first or in the last one."""
        if count <= 0:
            return Extent(0, 0)
        return Extent(count * self.net, max(self.peak, (count - 1) * self.net + self.peak))


def extent(program: Program) -> Extent:
    """Net change and peak of allocated bytes, starting from zero [bytes]."""
    return _extent(program, {})


def _extent(program: Program, bodies: dict[int, Extent]) -> Extent:
    """As `extent`; a body that several loops share is read once."""
    net = peak = 0
    for node in program:
        if isinstance(node, Alloc):
            net += node.tensor.block_bytes
        elif isinstance(node, Free):
            net -= node.tensor.block_bytes
        else:
            inner = bodies.get(id(node.body))
            if inner is None:
                inner = bodies[id(node.body)] = _extent(node.body, bodies)
            inner = inner.times(node.count)
            if net + inner.peak > peak:
                peak = net + inner.peak
            net += inner.net
        if net > peak:
            peak = net
    return Extent(net, peak)


def live_at_peak(program: Program) -> dict[Tensor, int]:
    """The tensors alive at the (first) highest point, with their number of live instances."""
    live: dict[Tensor, int] = {}
    _descend(program, live)
    return {tensor: count for tensor, count in live.items() if count}


def live_at_end(program: Program) -> dict[Tensor, int]:
    """The tensors alive after the program, with their number of live instances."""
    live: dict[Tensor, int] = {}
    _accumulate(program, live, 1)
    return {tensor: count for tensor, count in live.items() if count}


def _accumulate(program: Program, live: dict[Tensor, int], times: int) -> None:
    for node in program:
        if isinstance(node, Loop):
            _accumulate(node.body, live, times * node.count)
        else:
            step = times if isinstance(node, Alloc) else -times
            live[node.tensor] = live.get(node.tensor, 0) + step


def _descend(program: Program, live: dict[Tensor, int]) -> None:
    best, best_index, net = 0, -1, 0
    for index, node in enumerate(program):
        inner = _node_extent(node)
        if net + inner.peak > best:
            best, best_index = net + inner.peak, index
        net += inner.net
    if best_index < 0:
        return
    _accumulate(program[:best_index], live, 1)
    node = program[best_index]
    if isinstance(node, Alloc):
        live[node.tensor] = live.get(node.tensor, 0) + 1
    elif isinstance(node, Loop):
        inner = extent(node.body)
        if inner.net > 0:
            _accumulate(node.body, live, node.count - 1)
        _descend(node.body, live)


def _node_extent(node: Node) -> Extent:
    if isinstance(node, Alloc):
        return Extent(node.tensor.block_bytes, node.tensor.block_bytes)
    if isinstance(node, Free):
        return Extent(-node.tensor.block_bytes, 0)
    return extent(node.body).times(node.count)


def events(program: Program, *, steady_repeats: int = 2) -> list[tuple[Tensor, bool]]:
    """The program unrolled: (tensor, True) where it is allocated, (tensor, False) where it is freed.

    Of a loop that leaves everything as it found it (micro-batches, steps) only some rounds are played.
    """
    found: list[tuple[Tensor, bool]] = []
    for node in program:
        if isinstance(node, Loop):
            found += events(node.body, steady_repeats=steady_repeats) * played_rounds(node, steady_repeats)
        else:
            found.append((node.tensor, isinstance(node, Alloc)))
    return found


def played_rounds(loop: Loop, steady_repeats: int = 2) -> int:
    """Rounds of a loop worth playing: after some balanced ones the next meets memory in the state the last one met."""
    if loop.count > steady_repeats and not live_at_end(loop.body):
        return steady_repeats
    return loop.count


def sizes(program: Iterable[Node]) -> frozenset[tuple[int, str]]:
    """Bytes and stream of all that a program allocates."""
    found: set[tuple[int, str]] = set()
    for node in program:
        if isinstance(node, Loop):
            found |= sizes(node.body)
        elif isinstance(node, Alloc):
            found.add((node.tensor.num_bytes, node.tensor.stream))
    return frozenset(found)


def total_bytes(live: Mapping[Tensor, int]) -> int:
    """Allocated bytes of a set of live tensors."""
    return sum(tensor.block_bytes * count for tensor, count in live.items())
