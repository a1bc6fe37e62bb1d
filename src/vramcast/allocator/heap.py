"""What the process holds from the driver: segments, their blocks, and the ways to get and return them.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: alloc_block, release_block, try_merge_blocks
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from math import floor
from typing import Final, Protocol

from vramcast.allocator.blocks import ADDRESS_MASK, Block, BlockPool, FreeBlocks, PrivatePool
from vramcast.allocator.rounding import SMALL_BYTES, SMALL_SEGMENT_BYTES, segment_bytes
from vramcast.allocator.settings import Settings
from vramcast.domain.snapshot import DEFAULT_POOL, PoolId
from vramcast.errors import InvalidSpec, OutOfMemory

Observer = Callable[[str, int, int], None]
"""Told (action, address, size [bytes]) of each segment_alloc, segment_free, segment_map and segment_unmap."""

_FIRST_ADDRESS: Final = 1 << 35
_NEVER: Final = 1 << 62
"""Slack of a pool that splits nothing [bytes]."""


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
            raise InvalidSpec(f"per_process_memory_fraction={fraction} is out of range; use 0 to 1")
        if fraction < 1 and self.total_bytes is None:
            raise InvalidSpec(f"per_process_memory_fraction={fraction} needs a device size; give capacity_bytes")
        self.limit_bytes = None if self.total_bytes is None or fraction == 1 else floor(fraction * self.total_bytes)

    def _pool(
        self, *, is_small: bool, owner: PoolId = DEFAULT_POOL, expands: bool = True, splits: bool = True
    ) -> BlockPool:
        settings = self.settings
        expands = expands and settings.expandable_segments
        # A rest up to 1 MiB could never serve the large pool, so it stays with the block: "slack". Expandable
        # segments split at 512 bytes in both pools, as a rest can grow again.
        slack_bytes = 0 if is_small or expands else SMALL_BYTES
        return BlockPool(
            is_small=is_small,
            page_bytes=SMALL_SEGMENT_BYTES if is_small else settings.large_segment_bytes,
            slack_bytes=slack_bytes if splits else _NEVER,
            expands=expands,
            owner=owner,
        )

    def private_pool(self, owner: PoolId, *, expands: bool = True, splits: bool = True) -> PrivatePool:
        """The pool of that id, made where it does not exist yet."""
        pool = self.private.get(owner)
        if pool is None:
            small = self._pool(is_small=True, owner=owner, expands=expands, splits=splits)
            large = self._pool(is_small=False, owner=owner, expands=expands, splits=splits)
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
            raise InvalidSpec(f"the driver gave address {block.address:#x}, which is in use; give each segment its own")
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
