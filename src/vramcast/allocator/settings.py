"""What a simulated process was started with: version of torch, options of the allocator; and the sizes they round to.

Ranges are those of torch 2.13. For default options one algorithm covers all versions; the rest came as options.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp; its constants stand since commit 079093a662 (torch 1.1)
[config] pytorch c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp

The value of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF in torch 2.9 to 2.11), read as torch reads it.

[config] pytorch c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

from msgspec import Struct

from vramcast.errors import InvalidSpec, UnknownName, Unsupported
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


def read_options(text: str, version: Version) -> dict[str, Any]:
    """The options that change what is simulated, by their name in Settings.

    Args:
        text: comma-separated `option:value` pairs

    Raises: InvalidSpec, Unsupported or UnknownName.
    """
    values: dict[str, Any] = {}
    for key, value in option_pairs(text.replace(" ", "")):
        option = OPTIONS.get(key)
        if option is None:
            raise UnknownName.of("allocator option", key, OPTIONS)
        if version < option.since:
            raise InvalidSpec("torch {} refuses {}; it exists from {} on", dotted(version), key, dotted(option.since))
        parsed = option.read(key, value)
        if option.acts:
            values[key] = parsed
    return values


def option_pairs(text: str) -> Iterator[tuple[str, str]]:
    """The option:value pairs; commas inside brackets belong to the value.

    Raises: InvalidSpec for what is not a pair.
    """
    for pair in re.split(r",(?![^\[]*\])", text) if text else ():
        key, colon, value = pair.partition(":")
        if not colon or not key or not value:
            raise InvalidSpec(
                "allocator option {!r} is not of the form option:value, as in max_split_size_mb:128", pair
            )
        yield key, value


def _boolean(key: str, value: str) -> bool:
    # Upstream compares the exact text: "true" is an error there too.
    if value not in ("True", "False"):
        raise InvalidSpec("{}:{} is not a switch; use {}:True or {}:False", key, value, key, key)
    return value == "True"


def _integer(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise InvalidSpec("{}:{} is not a whole number; use one such as {}:128", key, value, key)
    return int(value)


def _real(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidSpec("{}:{} is not a number; use one such as {}:0.8", key, value, key) from None


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """The 16 entries of the table, from one number or from a list `[256:1,512:2,>:8]` in MB.

    >>> _divisions("roundup_power2_divisions", "[128:8,256:16,512:1,2048:8,>:2]")[6:13]
    (8, 8, 16, 1, 0, 8, 2)
    """
    if not value.startswith("["):
        steps = _integer(key, value)
        if steps == 0:
            raise InvalidSpec("{}:0 is refused by torch; leave the option out to switch it off", key)
        return (steps,) * DIVISION_ENTRIES
    if not value.endswith("]"):
        raise InvalidSpec("{}:{} has no closing bracket; use a list such as [256:1,512:2,>:8]", key, value)
    return _division_table(key, value[1:-1])


def _division_table(key: str, intervals: str) -> tuple[int, ...]:
    table = [0] * DIVISION_ENTRIES
    rest = 0  # first entry that ">" fills
    is_first = True
    for interval_mb, text in option_pairs(intervals):
        steps = _integer(key, text)
        if interval_mb == ">":
            table[rest:] = [steps] * (DIVISION_ENTRIES - rest)
            continue
        megabytes = _integer(key, interval_mb)
        if not is_power_of_two(megabytes):
            raise InvalidSpec(
                "{} has an interval of {} MB, which is not a power of two; use 256 or 512", key, interval_mb
            )
        index = min(megabytes.bit_length() - 1, DIVISION_ENTRIES - 1)
        if is_first:
            table[:index] = [steps] * index
            is_first = False
        table[index] = steps
        rest = index + 1
    return tuple(table)


def _backend(key: str, value: str) -> str:
    if value in ("cudaMallocAsync", "hipMallocAsync"):
        raise Unsupported("{}:{} hands memory to the driver's own pools; only {}:native is simulated", key, value, key)
    if value != "native":
        raise InvalidSpec("{}:{} is no allocator backend; use {}:native", key, value, key)
    return value


class Option(Struct, frozen=True):
    """One key of the variable."""

    read: Callable[[str, str], Any]
    since: Version
    acts: bool = True  # whether the simulation depends on it


OPTIONS: Final[dict[str, Option]] = {
    "max_split_size_mb": Option(_integer, OLDEST),
    "roundup_power2_divisions": Option(_divisions, (1, 12)),
    "garbage_collection_threshold": Option(_real, (1, 12)),
    "backend": Option(_backend, (2, 0), acts=False),
    "expandable_segments": Option(_boolean, (2, 1)),
    "release_lock_on_cudamalloc": Option(_boolean, (2, 1), acts=False),
    "release_lock_on_hipmalloc": Option(_boolean, (2, 1), acts=False),
    "pinned_use_cuda_host_register": Option(_boolean, (2, 1), acts=False),
    "pinned_use_hip_host_register": Option(_boolean, (2, 1), acts=False),
    "pinned_num_register_threads": Option(_integer, (2, 1), acts=False),
    "max_non_split_rounding_mb": Option(_integer, (2, 6)),
    "pinned_use_background_threads": Option(_boolean, (2, 6), acts=False),
    "per_process_memory_fraction": Option(_real, (2, 9)),
    "graph_capture_record_stream_reuse": Option(_boolean, (2, 9), acts=False),
    "pinned_reserve_segment_size_mb": Option(_integer, (2, 9), acts=False),
    "large_segment_size_mb": Option(_integer, (2, 12)),
    "throw_on_cudamalloc_oom": Option(_boolean, (2, 12)),
    "pinned_free_catch_all": Option(_boolean, (2, 12), acts=False),
    "pinned_max_round_threshold_mb": Option(_integer, (2, 12), acts=False),
    "pinned_max_cached_size_mb": Option(_integer, (2, 12), acts=False),
}
"""Key -> how it is read. Between two releases where the source does not say which, the earlier."""
