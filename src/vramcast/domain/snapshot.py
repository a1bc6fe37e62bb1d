"""What a caching allocator held and did: segments and blocks at one moment, and the events that led there.

The nouns are those of `torch.cuda.memory._snapshot()`; other recordings (profiler traces, simulated runs) are read
into them as well.
[snapshot] pytorch torch/cuda/memory.py and torch/csrc/cuda/memory_snapshot.cpp
"""

from __future__ import annotations

from array import array
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from vramcast.domain.model import Noun

if TYPE_CHECKING:
    Column = array[int]
else:
    Column = array  # before Python 3.12 it takes no type of its items, which decoders look up

PoolId = tuple[int, int]
"""(captured graph, user pool); (0, 0) is the default pool."""
DEFAULT_POOL: Final[PoolId] = (0, 0)
PREDICTED: Final = "vramcast"
"""The format of recordings that nobody measured."""
OWN_KEY: Final = "vramcast"
"""Under which files in torch's form say what torch has no key for; its viewers pass over it."""
COUNTS_EVENTS: Final = "predicted: times count events, they are not microseconds"
"""A remark of theirs."""
NO_STACK: Final = 0
"""Index of the empty stack: where none was recorded."""


class BlockView(Struct, frozen=True, kw_only=True):
    """One block as a caller sees it."""

    address: int
    size_bytes: int
    requested_bytes: int = 0  # unrounded; 0 while free
    is_free: bool = False
    awaits_free: bool = False  # freed by its owner, still used on another stream: neither live nor free
    stack: int = NO_STACK  # where it was allocated: index into the stacks of its snapshot


class SegmentView(Struct, frozen=True, kw_only=True):
    """Memory held from the driver, tiled by its blocks; of expandable memory, one contiguous mapped run."""

    address: int
    size_bytes: int
    is_small: bool
    is_expandable: bool = False
    blocks: tuple[BlockView, ...]
    stream: int = 0  # pointer as an integer; 0 is the default stream
    pool: PoolId = DEFAULT_POOL


class Action(IntEnum):
    """What happened; the names in snapshots are these in lower case."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


class Trace(Struct, kw_only=True):
    """Events of one device in order, a column a field: a million events are 49 MB.

    All columns have the same length. Column types: see `array`.
    """

    actions: Column  # "B", Action
    addresses: Column  # "Q"; of OOM: the bytes that the driver said were free
    sizes: Column  # "Q", ALLOC and frees: unrounded request (block size where only that is known) [bytes]
    streams: Column  # "Q", stream pointer
    times_us: Column  # "q", 0 where no time was recorded
    stacks: Column  # "I", index into Snapshot.stacks, NO_STACK where none
    pools: Column  # "I", index into Snapshot.pools, 0 the default pool
    labels: Column  # "I", index into Snapshot.labels, 0 where none

    @classmethod
    def empty(cls) -> Trace:
        return cls(
            actions=array("B"), addresses=array("Q"), sizes=array("Q"), streams=array("Q"), times_us=array("q"),
            stacks=array("I"), pools=array("I"), labels=array("I"),
        )

    def add(
        self, action: int, address: int, size: int, *, stream: int = 0, time_us: int = 0, stack: int = 0, pool: int = 0,
        label: int = 0,
    ) -> None:
        """One event more."""
        self.actions.append(action)
        self.addresses.append(address)
        self.sizes.append(size)
        self.streams.append(stream)
        self.times_us.append(time_us)
        self.stacks.append(stack)
        self.pools.append(pool)
        self.labels.append(label)

    def __len__(self) -> int:
        return len(self.actions)


class Frame(Struct, frozen=True):
    """One line of a stack."""

    name: str
    filename: str
    line: int


class Annotation(Struct, frozen=True):
    """A named span that a program or torch itself marked (`record_function`, optimizer steps)."""

    name: str
    device: int
    start_us: int
    end_us: int  # start_us where no end was recorded


class SizesAre(StrEnum):
    """What the sizes of a trace's events count."""

    REQUESTS = "requests"  # unrounded: torch snapshots
    BLOCKS = "blocks"  # rounded, with slack: profiler traces


class Totals(Struct, frozen=True):
    """What the recorded allocator itself counted after each event of a trace: columns as long as the trace."""

    allocated: Column  # "Q" [bytes]
    reserved: Column | None  # "Q" [bytes]; None where it does not count them


class DeviceSnapshot(Noun, frozen=True):
    """One device of a snapshot."""

    device: int
    trace: Trace
    segments: tuple[SegmentView, ...]  # at the end of the trace, by address
    has_segments: bool = True  # False: the recording lists none (profiler traces); they are not known to be empty
    has_addresses: bool = True  # False: a free does not say what it frees (profiler traces of torch 1.9)
    totals: Totals | None = None  # where the recording says (profiler traces from torch 1.10 on)
    capacity_bytes: int | None = None  # of the card, where the recording says


class Snapshot(Noun, frozen=True):
    """A recording of one process.

    `stacks`, `pools` and `labels` are shared tables that events and blocks point into.
    """

    name: str  # of the file
    format: str  # "torch", "torch-json", "kineto", "vramcast"
    devices: tuple[DeviceSnapshot, ...]  # those with events or segments
    alloc_conf: str = ""  # the value of PYTORCH_CUDA_ALLOC_CONF, as far as the recording says
    sizes_are: SizesAre = SizesAre.REQUESTS
    stacks: tuple[tuple[Frame, ...], ...] = ((),)  # innermost frame first
    pools: tuple[PoolId, ...] = (DEFAULT_POOL,)
    labels: tuple[str, ...] = ("",)  # category, user metadata or compile context of an event
    annotations: tuple[Annotation, ...] = ()
    remarks: tuple[str, ...] = ()  # what the reader had to leave out or assume, in English
