"""The step program: what one rank does to memory, in order.

A program is a tree of three nodes: allocate a tensor, free it, repeat a body. Repeats stay repeats, so a step of a
126-layer model is a few hundred nodes, and its peak is a maximum of sums instead of a simulation.
A tensor allocated n times and freed m times has n - m live instances; the instances are interchangeable.
Nodes are frozen and so never lie in a cycle: the garbage collector leaves them alone, which saves it most of its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

ALLOCATION_GRANULARITY: Final = 512
"""Every block of the caching allocator is a multiple of this [bytes] (kMinBlockSize)."""

STEADY_REPEATS: Final = 2
"""Rounds of a balanced loop worth playing: the next meets memory in the state that the last one met [count]."""


class BrokenProgram(AssertionError):
    """A program that no process could run: a bug of the engine that wrote it, never of the question."""


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
    FITTED = "fitted"  # to a run that the user measured
    ASSUMED = "assumed"


class Tensor(Struct, frozen=True, eq=False, kw_only=True, gc=False):
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
        return "/".join(filter(None, (self.category, self.owner, self.name)))


class TensorsOf(Struct, frozen=True, kw_only=True):
    """Makes tensors that share an owner and a source, and a category where none is said."""

    owner: str
    source: str = ""
    category: Category = Category.TEMPORARIES
    basis: Basis = Basis.FORMULA
    stream: str = ""

    def __call__(self, name: str, num_bytes: int, category: Category | None = None, formula: str = "") -> Tensor:
        return Tensor(name=name, num_bytes=num_bytes, category=category or self.category, owner=self.owner,
                      basis=self.basis, formula=formula, source=self.source, stream=self.stream)


class Alloc(Struct, frozen=True, eq=False, gc=False):
    """The tensor comes to life."""

    tensor: Tensor


class Free(Struct, frozen=True, eq=False, gc=False):
    """One live instance of the tensor dies."""

    tensor: Tensor


class Loop(Struct, frozen=True, eq=False, gc=False):
    """The body, `count` times in a row."""

    count: int
    body: tuple[Node, ...]
    label: str = ""


Node = Alloc | Free | Loop
Program = tuple[Node, ...]


def transient(*tensors: Tensor) -> Program:
    """Tensors that live together and die together."""
    return (*map(Alloc, tensors), *map(Free, tensors))


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


Extents = dict[int, tuple[Program, Extent]]
"""Bodies of loops by identity, which lasts as long as they are kept here."""


def extent(program: Program, known: Extents | None = None) -> Extent:
    """Net change and peak of allocated bytes, starting from zero [bytes].

    Args:
        program: what is read; a body that several loops share is read once
        known: bodies that other programs share with it; those of this one are added
    """
    return _extent(program, {} if known is None else known)


def _extent(program: Program, bodies: Extents) -> Extent:
    net = peak = 0
    for node in program:
        if isinstance(node, Alloc):
            net -= -node.tensor.num_bytes // ALLOCATION_GRANULARITY * ALLOCATION_GRANULARITY  # block_bytes, in line
            if net > peak:
                peak = net
        elif isinstance(node, Free):
            net += -node.tensor.num_bytes // ALLOCATION_GRANULARITY * ALLOCATION_GRANULARITY
        elif len(node.body) == 1 and isinstance(node.body[0], Alloc):  # the commonest loop: a tensor of every layer
            net += max(0, node.count) * node.body[0].tensor.block_bytes
            if net > peak:
                peak = net
        else:
            if id(node.body) not in bodies:
                bodies[id(node.body)] = node.body, _extent(node.body, bodies)
            inner = bodies[id(node.body)][1]
            if node.count > 0:  # the highest point lies in the first round or in the last one
                last = net + (node.count - 1) * inner.net
                most = max(net, last) + inner.peak
                if most > peak:
                    peak = most
                net = last + inner.net
    return Extent(net, peak)


def between(less: Program, more: Program, way: float) -> Program:
    """The second program at a size between two: tensors of one name correspond in the order in which they appear.

    Args:
        way: from the one to the other, 0 to 1
    """
    sized: dict[Tensor, Tensor] = {}
    smaller = _by_path(less)
    for path, tensors in _by_path(more).items():
        for other, one in zip(tensors, smaller.get(path, ()), strict=False):
            if one.num_bytes != other.num_bytes:
                sized[other] = replace(
                    other, num_bytes=one.num_bytes + round(way * (other.num_bytes - one.num_bytes)))

    def nodes(program: Program) -> Iterator[Node]:
        for node in program:
            if isinstance(node, Loop):
                yield Loop(node.count, tuple(nodes(node.body)), label=node.label)
            else:
                yield type(node)(sized.get(node.tensor, node.tensor))

    return tuple(nodes(more))


def _by_path(program: Program) -> dict[str, list[Tensor]]:
    """The tensors of each name, in the order in which they first appear."""
    found: dict[Tensor, None] = {}
    by_path: dict[str, list[Tensor]] = {}

    def read(nodes: Program) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                read(node.body)
            elif node.tensor not in found:
                found[node.tensor] = None
                by_path.setdefault(node.tensor.path, []).append(node.tensor)

    read(program)
    return by_path


def live_at_end(program: Program) -> dict[Tensor, int]:
    """The tensors alive after the program, with their number of live instances."""
    live: dict[Tensor, int] = {}
    _accumulate(program, live, 1, {})
    return {tensor: count for tensor, count in live.items() if count}


def _accumulate(program: Program, live: dict[Tensor, int], times: int, bodies: dict[int, dict[Tensor, int]]) -> None:
    """Adds what a program leaves; `bodies`: what those leave that several loops share, by identity."""
    count_of = live.get
    for node in program:
        if isinstance(node, Alloc):
            live[node.tensor] = count_of(node.tensor, 0) + times
        elif isinstance(node, Free):
            live[node.tensor] = count_of(node.tensor, 0) - times
        else:
            left = bodies.get(id(node.body))
            if left is None:
                left = bodies[id(node.body)] = {}
                _accumulate(node.body, left, 1, bodies)
            for tensor, count in left.items():  # those that nothing is left of as well: they keep their place
                live[tensor] = count_of(tensor, 0) + count * times * node.count


class _Use(Struct, frozen=True):
    """What a piece of program does to the number of live instances of each tensor."""

    net: dict[Tensor, int]  # of those that it changes
    lowest: dict[Tensor, int]  # of those that fall below what was there before, how far


def freed_unallocated(program: Program) -> Tensor | None:
    """A tensor that the program frees more often than it has allocated it, from nothing; None where it is sound."""
    return next(taken_over(program), None)


def taken_over(program: Program) -> Iterator[Tensor]:
    """What a program frees that was there before it, in the order in which it does."""
    return iter(_use(program, {}).lowest)


def _use(program: Program, bodies: dict[int, _Use]) -> _Use:
    """Counts of a piece; a body that several loops share is read once."""
    net: dict[Tensor, int] = {}
    lowest: dict[Tensor, int] = {}
    count_of = net.get
    for node in program:
        times = 1
        if isinstance(node, Loop):
            if node.count <= 0 or not node.body:
                continue
            if len(node.body) > 1 or isinstance(node.body[0], Loop):
                _repeat(node, net, lowest, bodies)
                continue
            times, node = node.count, node.body[0]  # the commonest loop: a tensor of every layer
        if isinstance(node, Alloc):
            net[node.tensor] = count_of(node.tensor, 0) + times
        else:
            net[node.tensor] = count = count_of(node.tensor, 0) - times
            if count < 0:
                lowest[node.tensor] = min(count, lowest.get(node.tensor, 0))
    return _Use({tensor: count for tensor, count in net.items() if count}, lowest)


def _repeat(loop: Loop, net: dict[Tensor, int], lowest: dict[Tensor, int], bodies: dict[int, _Use]) -> None:
    """Adds what a loop does: the lowest point lies in its first round or in its last one."""
    inner = bodies.get(id(loop.body))
    if inner is None:
        inner = bodies[id(loop.body)] = _use(loop.body, bodies)
    for tensor, below in inner.lowest.items():
        count = net.get(tensor, 0) + min(0, (loop.count - 1) * inner.net.get(tensor, 0)) + below
        if count < 0:
            lowest[tensor] = min(count, lowest.get(tensor, 0))
    for tensor, more in inner.net.items():
        net[tensor] = net.get(tensor, 0) + more * loop.count


def events(program: Program, *, steady_repeats: int = STEADY_REPEATS) -> list[tuple[Tensor, bool]]:
    """The program unrolled: (tensor, True) where it is allocated, (tensor, False) where it is freed.

    Of a loop that leaves everything as it found it (micro-batches, steps) only some rounds are played.
    """
    found: list[tuple[Tensor, bool]] = []
    for node in program:
        if isinstance(node, Loop):
            found += events(node.body, steady_repeats=steady_repeats) * _played_rounds(node, steady_repeats)
        else:
            found.append((node.tensor, isinstance(node, Alloc)))
    return found


def _played_rounds(loop: Loop, steady_repeats: int) -> int:
    if loop.count > steady_repeats and _may_balance(loop.body) and not live_at_end(loop.body):
        return steady_repeats
    return loop.count


def _may_balance(program: Program) -> bool:
    """Whether it allocates as often as it frees, as far as can be told without reading inner loops."""
    count = 0
    for node in program:
        if isinstance(node, Loop):
            return True
        count += 1 if isinstance(node, Alloc) else -1
    return not count


def sizes(program: Iterable[Node]) -> frozenset[tuple[int, str]]:
    """Bytes and stream of all that a program allocates."""
    found: set[Tensor] = set()
    _collect(program, found, set())
    return frozenset((tensor.num_bytes, tensor.stream) for tensor in found)


def _collect(program: Iterable[Node], found: set[Tensor], read: set[int]) -> None:
    """Adds the tensors that a program allocates; `read`: identities of the bodies that are in already."""
    for node in program:
        if isinstance(node, Alloc):
            found.add(node.tensor)
        elif isinstance(node, Loop) and id(node.body) not in read:
            read.add(id(node.body))
            _collect(node.body, found, read)


def total_bytes(live: Mapping[Tensor, int]) -> int:
    """Allocated bytes of a set of live tensors."""
    return sum(tensor.block_bytes * count for tensor, count in live.items())
