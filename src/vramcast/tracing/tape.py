"""What a run asked of one device, in order: every block, who asked for it, and when it came and went."""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """What the run was doing."""

    SETUP = "setup"  # before the first forward
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Origin(NamedTuple):
    """Who asked for a block. Stacks are indices into the run's `Stacks`."""

    phase: Phase
    module: str  # qualified name of the innermost module, "" outside of all
    stack: int  # where Python was
    forward_stack: int  # of a backward operator: where its forward was; else the same as `stack`


class Block:
    """One allocation. Positions count events of its tape."""

    __slots__ = ("born", "died", "handle", "index", "kind", "name", "num_bytes", "operator", "origin", "stream")

    def __init__(self, index: int, num_bytes: int, stream: int, operator: str, origin: Origin) -> None:
        self.index = index  # in the tape
        self.num_bytes = num_bytes  # as requested
        self.stream = stream
        self.operator = operator  # "aten.mm.default"
        self.origin = origin
        self.kind = ""  # "scratch", "workspace": set by a rule; a role: set when the run knows it (see categories)
        self.name = ""  # of the parameter, state or workspace, where there is one
        self.handle = 0  # of the live allocator
        self.born = 0
        self.died: int | None = None  # None: alive at the end


class Mark(NamedTuple):
    """A moment that has a name."""

    position: int  # events before it
    name: str


class Tape:
    """The blocks and events of one device.

    An event is the index of the block plus one, negative where it is freed.
    """

    __slots__ = ("blocks", "completions", "events", "marks", "uses")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.events = array("q")
        self.marks: list[Mark] = []
        self.uses: list[tuple[int, int, int]] = []  # position, block, stream that uses it beside its own
        self.completions: list[tuple[int, int]] = []  # position, freed block whose other streams are done

    def add(self, num_bytes: int, stream: int, operator: str, origin: Origin) -> Block:
        """A block comes to life."""
        block = Block(len(self.blocks), num_bytes, stream, operator, origin)
        block.born = len(self.events)
        self.blocks.append(block)
        self.events.append(block.index + 1)
        return block

    def end(self, block: Block) -> None:
        """A block dies."""
        block.died = len(self.events)
        self.events.append(-block.index - 1)

    def mark(self, name: str) -> None:
        """Name this moment."""
        self.marks.append(Mark(len(self.events), name))
