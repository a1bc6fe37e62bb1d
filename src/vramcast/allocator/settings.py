"""What a simulated process was started with: version of torch, options of the allocator; and the sizes they round to.

Ranges are those of torch 2.13. For default options one algorithm covers all versions; the rest came as options.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp; its constants stand since commit 079093a662 (torch 1.1)
[config] pytorch c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from msgspec import Struct

from vramcast.errors import InvalidSpec
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


Version = tuple[int, int]
"""Of torch: major and minor."""

OLDEST: Final[Version] = (1, 10)
NEWEST: Final[Version] = (2, 13)

ONE_DIVISION_IS_OFF_SINCE: Final[Version] = (2, 3)
"""Before, one division between powers of two passed the test for rounding and then failed a check."""
NEWEST_POOL_FIRST_SINCE: Final[Version] = (2, 10)
"""Before, of several captures or pools at once the oldest won."""


def dotted(version: Version) -> str:
    """As people write it.

    >>> dotted((2, 13))
    '2.13'
    """
    return f"{version[0]}.{version[1]}"


_DEFAULT_MB: Final = LARGE_SEGMENT_BYTES // MIB
_SMALLEST_LARGE_SEGMENT_MB: Final = 10


class Settings(Struct, frozen=True, kw_only=True):
    """What the simulated process was started with; sizes in MB mean MiB, as upstream's do.

    Leaves out options that only move host memory or locks (`pinned_*`, `release_lock_on_cudamalloc`) and
    `graph_capture_record_stream_reuse`, whose effect depends on the graph: they are read and change nothing.

    Raises: InvalidSpec at construction where a value breaks upstream's range.
    """

    expandable_segments: bool = False
    max_split_size_mb: int | None = None  # None: every block may be split
    max_non_split_rounding_mb: int | None = None  # None: 20
    roundup_power2_divisions: tuple[int, ...] = ()  # 16 entries from 1 MiB up, or empty = off
    garbage_collection_threshold: float | None = None  # acts only where a memory fraction is set
    per_process_memory_fraction: float = 1.0
    large_segment_size_mb: int = _DEFAULT_MB
    throw_on_cudamalloc_oom: bool = False  # past the limit of a memory fraction, fail before anything is released
    version: Version = NEWEST

    def __post_init__(self) -> None:
        """Check the ranges that torch checks when it reads the variable."""
        if self.version < OLDEST:
            raise InvalidSpec("torch {} is too old; {} and newer are simulated", dotted(self.version), dotted(OLDEST))
        large_mb = self.large_segment_size_mb
        if large_mb <= _SMALLEST_LARGE_SEGMENT_MB:
            raise InvalidSpec("large_segment_size_mb={} is too small; use more than 10", large_mb)
        for name in ("max_split_size_mb", "max_non_split_rounding_mb"):
            value = getattr(self, name)
            if value is not None and value < large_mb:
                raise InvalidSpec("{}={} is below the large segment size; use {} or more", name, value, large_mb)
        threshold = self.garbage_collection_threshold
        if threshold is not None and not 0 < threshold < 1:
            raise InvalidSpec(
                "garbage_collection_threshold={} is out of range; use more than 0, less than 1", threshold
            )
        fraction = self.per_process_memory_fraction
        if not 0 <= fraction <= 1:
            raise InvalidSpec("per_process_memory_fraction={} is out of range; use 0 to 1", fraction)
        _check_divisions(self.roundup_power2_divisions)
        if 1 in self.roundup_power2_divisions and self.version < ONE_DIVISION_IS_OFF_SINCE:
            raise InvalidSpec("torch {} fails on roundup_power2_divisions of 1; use 2, 4, 8 ...", dotted(self.version))

    @classmethod
    def parse(cls, text: str, version: Version = NEWEST) -> Self:
        """Settings from the value of the environment variable.

        Args:
            text: comma-separated `option:value` pairs, as torch reads them
            version: of torch, which knows some options only from some version on

        Raises: InvalidSpec, Unsupported (a backend that is not this allocator) or UnknownName.

        >>> Settings.parse("expandable_segments:True,max_split_size_mb:128").max_split_size_mb
        128
        """
        from vramcast.allocator.options import read_options  # most processes are started without any

        return cls(**read_options(text, version), version=version)

    @property
    def max_split_bytes(self) -> int | None:
        """Blocks of this size or more are never split; None = all may be [bytes]."""
        return None if self.max_split_size_mb is None else self.max_split_size_mb * MIB

    @property
    def max_non_split_rounding_bytes(self) -> int:
        """How much larger than an unsplittable request a reused block may be [bytes]."""
        given = self.max_non_split_rounding_mb
        return (_DEFAULT_MB if given is None else given) * MIB

    @property
    def large_segment_bytes(self) -> int:
        """Segment of requests from 1 to 10 MiB, and page of large expandable segments [bytes]."""
        return self.large_segment_size_mb * MIB

    @property
    def rounds_to_divisions(self) -> bool:
        """Whether any size is rounded to steps between powers of two."""
        return any(steps > 1 for steps in self.roundup_power2_divisions)


def _check_divisions(divisions: tuple[int, ...]) -> None:
    if divisions and len(divisions) != DIVISION_ENTRIES:
        raise InvalidSpec("roundup_power2_divisions has {} entries; give 16, or none to switch it off", len(divisions))
    for steps in divisions:
        if steps and not is_power_of_two(steps):
            raise InvalidSpec(
                "roundup_power2_divisions={} is not a power of two; use 1, 2, 4, 8 ... or 0 for off", steps
            )
