"""Blocks and the sets of free ones.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp, structs Block, BlockPool and PrivatePool
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.snapshot import DEFAULT_POOL, BlockView, PoolId

ADDRESS_BITS: Final = 64
ADDRESS_MASK: Final = (1 << ADDRESS_BITS) - 1
"""A free block is kept as the integer `size << ADDRESS_BITS | address`: its order is upstream's (size, address)."""


class BlockPool:
    """One size class of the default pool or of a private one, on all streams.

    Upstream keeps the streams in one set with the stream as first key, and no search crosses streams: a set per
    stream, walked in the order of streams where all are walked, is the same.
    """

    __slots__ = ("expands", "is_small", "owner", "page_bytes", "searches", "slack_bytes", "streams")

    def __init__(
        self, *, is_small: bool, page_bytes: int, slack_bytes: int, expands: bool, owner: PoolId = DEFAULT_POOL
    ) -> None:
        """An empty pool.

        Args:
            is_small: whether it serves rounded requests up to 1 MiB
            page_bytes: unit in which its expandable segments are mapped [bytes]
            slack_bytes: the largest rest that stays part of a block instead of being split off [bytes]
            expands: whether new memory comes as pages of an expandable segment
            owner: whose pool it is
        """
        self.is_small = is_small
        self.page_bytes = page_bytes
        self.slack_bytes = slack_bytes
        self.expands = expands
        self.owner = owner
        self.searches = 0  # the clock by which garbage collection tells age
        self.streams: dict[int, FreeBlocks] = {}

    def on(self, stream: int) -> FreeBlocks:
        """Its free blocks on one stream."""
        free = self.streams.get(stream)
        if free is None:
            free = self.streams[stream] = FreeBlocks(self, stream)
        return free

    def in_order(self) -> Iterator[FreeBlocks]:
        """Its sets by ascending stream."""
        for stream in sorted(self.streams):
            yield self.streams[stream]


class FreeBlocks:
    """The free blocks of one pool on one stream, in order."""

    __slots__ = ("keys", "pool", "slack_bytes", "stream", "unmapped")

    def __init__(self, pool: BlockPool, stream: int) -> None:
        """No blocks yet."""
        self.pool = pool
        self.stream = stream
        self.slack_bytes = pool.slack_bytes
        self.keys: list[int] = []  # free mapped blocks, sorted
        self.unmapped: list[int] = []  # addresses of unmapped blocks, sorted


class PrivatePool:
    """Memory that only captures of a graph, or code within `torch.cuda.use_mem_pool`, allocate from."""

    __slots__ = ("large", "small", "use_count")

    def __init__(self, small: BlockPool, large: BlockPool) -> None:
        """A pool with one user."""
        self.small = small
        self.large = large
        self.use_count = 1


class VirtualRange:
    """Address space reserved for an expandable segment; pages count from its start."""

    __slots__ = ("address", "size_bytes")

    def __init__(self, address: int, size_bytes: int) -> None:
        """A range of whole pages [bytes]."""
        self.address = address
        self.size_bytes = size_bytes


class ForeignUse:
    """Streams other than its own that use a block, and what is left to wait for once it is freed."""

    __slots__ = ("captured", "num_events", "requested_bytes", "streams")

    def __init__(self) -> None:
        """No use yet."""
        self.streams: list[int] = []  # in the order in which they were recorded
        self.captured: set[int] = set()  # of these, recorded during a capture
        self.num_events = 0
        self.requested_bytes = 0  # of the freed block, which counts as active until the events are over


class Block:
    """A piece of a segment, linked to its neighbours there."""

    __slots__ = (
        "address",
        "foreign",
        "is_free",
        "is_mapped",
        "next",
        "pool",
        "prev",
        "requested_bytes",
        "searches_at_free",
        "size_bytes",
        "virtual",
    )

    def __init__(
        self,
        address: int,
        size_bytes: int,
        pool: FreeBlocks,
        prev: Block | None = None,
        next_: Block | None = None,
        virtual: VirtualRange | None = None,
    ) -> None:
        """A mapped block that neither holds a tensor nor lies in the set of free ones yet."""
        self.address = address
        self.size_bytes = size_bytes
        self.pool = pool
        self.prev = prev
        self.next = next_
        self.virtual = virtual
        self.foreign: ForeignUse | None = None
        self.requested_bytes = 0  # of the live tensor, unrounded; 0 where there is none
        self.searches_at_free = pool.pool.searches
        self.is_mapped = True
        self.is_free = False  # free and mapped: in the set, and open to merging

    @property
    def is_whole_segment(self) -> bool:
        """Whether it has no neighbours, and so can go back to the driver."""
        return self.prev is None and self.next is None

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.address + self.size_bytes

    @property
    def key(self) -> int:
        """Its place in the order of free blocks."""
        return self.size_bytes << ADDRESS_BITS | self.address

    @property
    def awaits_free(self) -> bool:
        """Whether its owner freed it while other streams may still use it."""
        return self.foreign is not None and not self.requested_bytes

    def view(self) -> BlockView:
        """The block as callers see it."""
        awaited = self.foreign.requested_bytes if self.foreign is not None else 0
        return BlockView(
            address=self.address,
            size_bytes=self.size_bytes,
            requested_bytes=self.requested_bytes or awaited,
            is_free=self.is_free,
            awaits_free=self.awaits_free,
        )
