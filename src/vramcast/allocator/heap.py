"""What the process holds from the driver: segments, their blocks, sets of free ones; ways to get and return them.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: structs Block, BlockPool and PrivatePool; alloc_block,
release_block, try_merge_blocks
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from math import floor
from typing import Final, Protocol

from vramcast.allocator.settings import SMALL_BYTES, SMALL_SEGMENT_BYTES, Settings, segment_bytes
from vramcast.domain.snapshot import DEFAULT_POOL, BlockView, PoolId
from vramcast.errors import InvalidSpec, OutOfMemory

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
    """Streams other than its own that use a block."""

    __slots__ = ("captured", "requested_bytes", "streams")

    def __init__(self) -> None:
        """No use yet."""
        self.streams: list[int] = []  # in the order in which they were recorded
        self.captured: set[int] = set()  # of these, recorded during a capture
        self.requested_bytes = 0  # of the freed block, which counts as active until they are done


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


Observer = Callable[[str, int, int], None]
"""Told (action, address, size [bytes]) of each segment_alloc, segment_free, segment_map and segment_unmap."""

_FIRST_ADDRESS: Final = 1 << 35


class Driver(Protocol):
    """Who hands out addresses and memory; each call raises OutOfMemory where there is no more."""

    def allocate(self, size_bytes: int) -> int:
        """Address of a new segment of this size [bytes] (cudaMalloc)."""

    def reserve(self, size_bytes: int) -> int:
        """Start of a new range of addresses of this size [bytes], without memory (cuMemAddressReserve)."""

    def map(self, address: int, size_bytes: int) -> None:
        """Put memory behind reserved addresses [bytes] (cuMemCreate and cuMemMap)."""


class RisingAddresses:
    """A driver that never reuses an address, so that ties between equal blocks fall to the oldest segment.

    Leaves out the reuse of freed ranges by the real driver, whose choice is not documented.
    """

    def __init__(self) -> None:
        """Start well above zero, which means "no memory"."""
        self._next_address = _FIRST_ADDRESS

    def allocate(self, size_bytes: int) -> int:
        """The address of a new range.

        Raises: OutOfMemory where a process has no more addresses
        """
        address = self._next_address
        if address + size_bytes > ADDRESS_MASK:
            raise OutOfMemory("a process has no addresses for so much memory; ask for less")
        self._next_address += size_bytes
        return address

    reserve = allocate

    def map(self, address: int, size_bytes: int) -> None:
        """Nothing to do: capacity is counted by the heap."""

    def start_above(self, address: int) -> None:
        """Leave everything below the address to memory that is there already."""
        self._next_address = max(self._next_address, address)


class Heap:
    """Segments and blocks of one device."""

    def __init__(
        self,
        *,
        settings: Settings,
        capacity_bytes: int | None,
        total_bytes: int | None,
        driver: Driver,
        observer: Observer | None,
    ) -> None:
        """An empty heap; see Allocator for the arguments."""
        self.settings = settings
        self.capacity_bytes = capacity_bytes
        self.total_bytes = capacity_bytes if total_bytes is None else total_bytes
        self.limit_bytes: int | None = None
        self.limit(settings.per_process_memory_fraction)
        self.driver = driver
        self.observer = observer
        self.small = self._pool(is_small=True)
        self.large = self._pool(is_small=False)
        self.private: dict[PoolId, PrivatePool] = {}
        self.blocks: dict[int, Block] = {}  # every block, free, live or unmapped, by address
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0

    def limit(self, fraction: float) -> None:
        """Allow only a part of the card.

        Raises: InvalidSpec for a fraction outside 0 to 1, or where the size of the card is not known
        """
        if not 0 <= fraction <= 1:
            raise InvalidSpec("per_process_memory_fraction={} is out of range; use 0 to 1", fraction)
        if fraction < 1 and self.total_bytes is None:
            raise InvalidSpec("per_process_memory_fraction={} needs a device size; give capacity_bytes", fraction)
        self.limit_bytes = None if self.total_bytes is None or fraction == 1 else floor(fraction * self.total_bytes)

    def _pool(self, *, is_small: bool, owner: PoolId = DEFAULT_POOL) -> BlockPool:
        settings = self.settings
        expands = settings.expandable_segments
        # A rest up to 1 MiB could never serve the large pool, so it stays with the block: "slack". Expandable
        # segments split at 512 bytes in both pools, as a rest can grow again.
        return BlockPool(
            is_small=is_small,
            page_bytes=SMALL_SEGMENT_BYTES if is_small else settings.large_segment_bytes,
            slack_bytes=0 if is_small or expands else SMALL_BYTES,
            expands=expands,
            owner=owner,
        )

    def private_pool(self, owner: PoolId) -> PrivatePool:
        """The pool of that id, made where it does not exist yet."""
        pool = self.private.get(owner)
        if pool is None:
            small, large = (self._pool(is_small=is_small, owner=owner) for is_small in (True, False))
            pool = self.private[owner] = PrivatePool(small, large)
        return pool

    def insert(self, block: Block) -> None:
        """Put a free block into its set."""
        block.is_free = True
        block.searches_at_free = block.pool.pool.searches
        insort(block.pool.keys, block.key)

    def remove(self, block: Block) -> None:
        """Take a free block out of its set."""
        keys = block.pool.keys
        del keys[bisect_left(keys, block.key)]
        block.is_free = False

    def absorb_next(self, block: Block) -> None:
        """Make the neighbour behind part of the block; neither may be in a set."""
        gone = block.next
        assert gone is not None
        del self.blocks[gone.address]
        block.size_bytes += gone.size_bytes
        block.next = gone.next
        if gone.next is not None:
            gone.next.prev = block

    def cut(self, block: Block, size_bytes: int) -> Block:
        """Shorten the block, and return the rest as a new one behind it, in no set."""
        rest = Block(
            block.address + size_bytes,
            block.size_bytes - size_bytes,
            block.pool,
            block,
            block.next,
            block.virtual,
        )
        rest.is_mapped = block.is_mapped
        if block.next is not None:
            block.next.prev = rest
        block.next = rest
        block.size_bytes = size_bytes
        self.blocks[rest.address] = rest
        return rest

    def merge_free(self, block: Block) -> Block:
        """Join a mapped block with its free neighbours, and put the result into its set."""
        before, after = block.prev, block.next
        if before is not None and before.is_free:
            self.remove(before)
            self.absorb_next(before)
            block = before
        if after is not None and after.is_free:
            self.remove(after)
            self.absorb_next(block)
        self.insert(block)
        return block

    def add(self, block: Block) -> None:
        """Register a block that starts a segment or range."""
        if block.address in self.blocks:
            raise InvalidSpec(
                "the driver gave address {:#x}, which is in use; give each segment its own", block.address
            )
        self.blocks[block.address] = block

    def hold(self, delta_bytes: int) -> None:
        """Count memory taken from the driver (or given back, negative)."""
        self.reserved_bytes += delta_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def fits_device(self, size_bytes: int) -> bool:
        """Whether the device has so much left."""
        return self.capacity_bytes is None or self.reserved_bytes + size_bytes <= self.capacity_bytes

    def fits_limit(self, size_bytes: int) -> bool:
        """Whether the memory fraction allows it; upstream asks before it calls the driver."""
        return self.limit_bytes is None or self.reserved_bytes + size_bytes <= self.limit_bytes

    def new_segment(self, free: FreeBlocks, size_bytes: int) -> Block | None:
        """A fresh segment for a rounded request, as one block in no set; None where the device is full."""
        total = segment_bytes(size_bytes, self.settings.large_segment_bytes)
        if not self.fits_device(total):
            return None
        try:
            address = self.driver.allocate(total)
        except OutOfMemory:
            return None
        block = Block(address, total, free)
        self.add(block)
        self.hold(total)
        self.tell("segment_alloc", address, total)
        return block

    def release(self, block: Block) -> None:
        """Give a free block that is a whole segment back to the driver."""
        assert block.is_whole_segment and block.virtual is None
        self.remove(block)
        del self.blocks[block.address]
        self.hold(-block.size_bytes)
        self.tell("segment_free", block.address, block.size_bytes)

    def tell(self, action: str, address: int, size_bytes: int) -> None:
        """Report a segment event."""
        if self.observer is not None:
            self.observer(action, address, size_bytes)

    def free_blocks(self, pool: BlockPool) -> list[Block]:
        """The free blocks of a pool in upstream's order; a copy, so that they may be released on the way."""
        return [self.blocks[key & ADDRESS_MASK] for free in pool.in_order() for key in free.keys]

    def chains(self) -> Iterator[list[Block]]:
        """The blocks of each segment or range, by address."""
        heads = sorted(block.address for block in self.blocks.values() if block.prev is None)
        for address in heads:
            chain = []
            block: Block | None = self.blocks[address]
            while block is not None:
                chain.append(block)
                block = block.next
            yield chain
