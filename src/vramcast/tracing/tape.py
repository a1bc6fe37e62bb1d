"""What a run asked of one device, in order: every block, who asked for it, and when it came and went."""

from __future__ import annotations

from array import array
from collections import Counter
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

STEP: Final = "step"
"""The name of marks behind a step."""
BACKWARD: Final = "backward"
"""The name of marks behind a backward, in runs without an optimizer of torch.optim."""


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


class Action(IntEnum):
    """What a run told the allocator beside its requests and frees."""

    USE = 0  # another stream uses a block
    COMPLETE = 1  # the other streams of a freed block are done
    EMPTY_CACHE = 2  # what is unused goes back to the driver
    BEGIN_POOL = 3  # requests go to a private pool from now on: a capture of a graph
    END_POOL = 4
    RELEASE_POOL = 5  # a graph is gone
    REFUSED = 6  # a request that found no room


class Aside(NamedTuple):
    """One of these, and when."""

    position: int  # events before it
    action: Action
    block: int = -1  # index, of USE and COMPLETE
    number: int = 0  # stream of USE, number of a pool, bytes of REFUSED
    stream: int = 0  # of REFUSED
    stack: int = 0  # of REFUSED, index into the run's `Stacks`


class Mark(NamedTuple):
    """A moment that has a name."""

    position: int  # events before it
    name: str
    optimizer: int = 0  # whose step ended, numbered from 1; 0: the caller says so


class Tape:
    """The blocks and events of one device.

    An event is the index of the block plus one, negative where it is freed.
    """

    __slots__ = ("asides", "blocks", "events", "freed_at", "marks")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.events = array("q")
        self.marks: list[Mark] = []
        self.asides: list[Aside] = []
        self.freed_at: dict[int, int] = {}  # index of a block -> index of the stack that freed it, where that is kept

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

    def tell(self, action: Action, *, block: int = -1, number: int = 0) -> None:
        """Something beside requests and frees happens now."""
        self.asides.append(Aside(len(self.events), action, block, number))

    def refuse(self, num_bytes: int, stream: int, origin: Origin) -> None:
        """A request finds no room now."""
        self.asides.append(
            Aside(len(self.events), Action.REFUSED, number=num_bytes, stream=stream, stack=origin.stack)
        )

    def mark(self, name: str, optimizer: int = 0) -> None:
        """Name this moment."""
        self.marks.append(Mark(len(self.events), name, optimizer))

    def step_ends(self) -> tuple[int, ...]:
        """Where steps end: where the caller says so, else with the step of the optimizer that makes fewest. Without
        any, a backward ends a step.

        Several optimizers share a step: one for matrices and one for the rest, one a parameter within backward,
        generator and discriminator. Of those that make as many, the last ends it.
        """
        marks = [mark for mark in self.marks if mark.name == STEP] or self.marks
        own = tuple(mark.position for mark in marks if not mark.optimizer)
        if own or not marks:
            return own
        counts = Counter(mark.optimizer for mark in marks)
        last_of = {mark.optimizer: index for index, mark in enumerate(marks)}
        slowest = min(counts, key=lambda each: (counts[each], -last_of[each]))
        ends = [mark.position for mark in marks if mark.optimizer == slowest]
        return (*ends[:-1], marks[-1].position)  # what others did since is part of the last step
