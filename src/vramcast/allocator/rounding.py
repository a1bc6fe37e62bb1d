"""Request to block size, block size to segment size.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp; the constants stand since commit 079093a662 (torch 1.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vramcast.units import MIB, round_up

MIN_BLOCK_BYTES: Final = 512
"""Granularity of every block (kMinBlockSize)."""
SMALL_BYTES: Final = MIB
"""Largest rounded request of the small pool (kSmallSize)."""
SMALL_SEGMENT_BYTES: Final = 2 * MIB
"""Segment of the small pool, and page of its expandable segments (kSmallBuffer)."""
LARGE_SEGMENT_BYTES: Final = 20 * MIB
"""Segment that several requests of 1 to 10 MiB share, and page of large expandable segments (kLargeBuffer)."""
OWN_SEGMENT_BYTES: Final = 10 * MIB
"""From here on a request gets a segment of its own (kMinLargeAlloc)."""
SEGMENT_STEP_BYTES: Final = 2 * MIB
"""What own segments are rounded up to (kRoundLarge): cudaMalloc works in pages of this size."""
LARGEST_REQUEST_BYTES: Final = 1 << 60
"""Upstream refuses more than "1EB" before it looks at any pool."""

DIVISION_ENTRIES: Final = 16
"""Powers of two with their own number of divisions: 1 MiB to 32 GiB, each size outside with the nearest."""
_TABLE_START: Final = 20


def round_size(num_bytes: int, divisions: Sequence[int] = ()) -> int:
    """Block size that a request asks for, before any slack.

    Args:
        num_bytes: the request [bytes]
        divisions: steps between two powers of two, one entry per power from 1 MiB to 32 GiB, 0 or 1 = off;
            empty = off [count]

    Returns: size in the pools, a multiple of 512 [bytes]
    Source: [caching] round_size and roundup_power2_next_division

    >>> round_size(1), round_size(513), round_size(1200 << 20, (4,) * 16) >> 20
    (512, 1024, 1280)
    """
    if num_bytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    if divisions:
        index = num_bytes.bit_length() - 1 - _TABLE_START
        steps = divisions[min(max(index, 0), DIVISION_ENTRIES - 1)]
        if steps > 1 and num_bytes > MIN_BLOCK_BYTES * steps:
            return _next_division(num_bytes, steps)
    return round_up(num_bytes, MIN_BLOCK_BYTES)


def _next_division(num_bytes: int, steps: int) -> int:
    """`num_bytes` rounded up to one of `steps` equal steps between its powers of two [bytes]."""
    power = 1 << (num_bytes.bit_length() - 1)
    return round_up(num_bytes, power // steps)


def segment_bytes(size_bytes: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """Segment that a miss of this rounded size asks the driver for; the "Tried to allocate" of the message [bytes].

    >>> segment_bytes(512) >> 20, segment_bytes(3 << 20) >> 20, segment_bytes(11 << 20) >> 20
    (2, 20, 12)
    """
    if size_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return round_up(size_bytes, SEGMENT_STEP_BYTES)


def is_power_of_two(value: int) -> bool:
    """Whether it is 1, 2, 4, 8 ...

    >>> [value for value in range(10) if is_power_of_two(value)]
    [1, 2, 4, 8]
    """
    return value > 0 and value & (value - 1) == 0
