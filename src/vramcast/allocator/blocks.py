"""Blocks and the sets of free ones.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp, structs Block and BlockPool
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.snapshot import BlockView

ADDRESS_BITS: Final = 64
ADDRESS_MASK: Final = (1 << ADDRESS_BITS) - 1
"""A free block is kept as the integer `size << ADDRESS_BITS | address`: its order is upstream's (size, address)."""


class Pool:
    """The free blocks of one size class on one stream, in order.

    Upstream keeps all streams of a device in one set with the stream as first key, and no search crosses streams:
    one pool per stream is the same. Private pools would be further instances.
    """

    __slots__ = ("is_small", "keys", "page_bytes", "searches", "slack_bytes", "unmapped")

    def __init__(self, *, is_small: bool, page_bytes: int, slack_bytes: int) -> None:
        """An empty pool.

        Args:
            is_small: whether it serves rounded requests up to 1 MiB
            page_bytes: unit in which its expandable segments are mapped [bytes]
            slack_bytes: the largest rest that stays part of a block instead of being split off [bytes]
        """
        self.is_small = is_small
        self.page_bytes = page_bytes
        self.slack_bytes = slack_bytes
        self.keys: list[int] = []  # free mapped blocks, sorted
        self.unmapped: list[int] = []  # addresses of unmapped blocks, sorted
        self.searches = 0  # the clock by which garbage collection tells age


class VirtualRange:
    """Address space reserved for an expandable segment; pages count from its start."""

    __slots__ = ("address", "size_bytes")

    def __init__(self, address: int, size_bytes: int) -> None:
        """A range of whole pages [bytes]."""
        self.address = address
        self.size_bytes = size_bytes


class Block:
    """A piece of a segment, linked to its neighbours there."""

    __slots__ = (
        "address",
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
        pool: Pool,
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
        self.requested_bytes = 0
        self.searches_at_free = pool.searches
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

    def view(self) -> BlockView:
        """The block as callers see it."""
        return BlockView(
            address=self.address,
            size_bytes=self.size_bytes,
            requested_bytes=0 if self.is_free else self.requested_bytes,
            is_free=self.is_free,
        )
