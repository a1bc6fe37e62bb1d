"""What a simulated process was started with: the options that change what the allocator does, and torch's version.

Ranges are those of torch 2.13.
[config] pytorch c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp
"""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct

from vramcast.allocator.rounding import DIVISION_ENTRIES, LARGE_SEGMENT_BYTES, is_power_of_two
from vramcast.allocator.versions import NEWEST, OLDEST, ONE_DIVISION_IS_OFF_SINCE, Version, dotted
from vramcast.errors import InvalidSpec
from vramcast.units import MIB

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
            raise InvalidSpec(f"torch {dotted(self.version)} is too old; {dotted(OLDEST)} and newer are simulated")
        large_mb = self.large_segment_size_mb
        if large_mb <= _SMALLEST_LARGE_SEGMENT_MB:
            raise InvalidSpec(f"large_segment_size_mb={large_mb} is too small; use more than 10")
        for name in ("max_split_size_mb", "max_non_split_rounding_mb"):
            value = getattr(self, name)
            if value is not None and value < large_mb:
                raise InvalidSpec(f"{name}={value} is below the large segment size; use {large_mb} or more")
        threshold = self.garbage_collection_threshold
        if threshold is not None and not 0 < threshold < 1:
            raise InvalidSpec(f"garbage_collection_threshold={threshold} is out of range; use more than 0, less than 1")
        fraction = self.per_process_memory_fraction
        if not 0 <= fraction <= 1:
            raise InvalidSpec(f"per_process_memory_fraction={fraction} is out of range; use 0 to 1")
        _check_divisions(self.roundup_power2_divisions)
        if 1 in self.roundup_power2_divisions and self.version < ONE_DIVISION_IS_OFF_SINCE:
            raise InvalidSpec(f"torch {dotted(self.version)} fails on roundup_power2_divisions of 1; use 2, 4, 8 ...")

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
        raise InvalidSpec(f"roundup_power2_divisions has {len(divisions)} entries; give 16, or none to switch it off")
    for steps in divisions:
        if steps and not is_power_of_two(steps):
            raise InvalidSpec(
                f"roundup_power2_divisions={steps} is not a power of two; use 1, 2, 4, 8 ... or 0 for off"
            )
