"""The options of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF from torch 2.10) that change what the allocator does.

Ranges are those of torch 2.13.
[config] pytorch c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

from msgspec import Struct

from vramcast.allocator.rounding import LARGE_SEGMENT_BYTES
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.units import MIB

_TABLE_ENTRIES: Final = 16
_DEFAULT_MB: Final = LARGE_SEGMENT_BYTES // MIB
_SMALLEST_LARGE_SEGMENT_MB: Final = 10


class Settings(Struct, frozen=True, kw_only=True):
    """What the simulated process was started with; sizes in MB mean MiB, as upstream's do.

    Leaves out options that only move host memory or locks (`pinned_*`, `release_lock_on_cudamalloc`) and
    `graph_capture_record_stream_reuse`, as captures are not simulated: they are read and change nothing.

    Raises: InvalidSpec at construction where a value breaks upstream's range.
    """

    expandable_segments: bool = False
    max_split_size_mb: int | None = None  # None: every block may be split
    max_non_split_rounding_mb: int | None = None  # None: 20
    roundup_power2_divisions: tuple[int, ...] = ()  # 16 entries from 1 MiB up, or empty = off
    garbage_collection_threshold: float | None = None  # acts only where a memory fraction is set
    per_process_memory_fraction: float = 1.0
    large_segment_size_mb: int = _DEFAULT_MB

    def __post_init__(self) -> None:
        """Check the ranges that torch checks when it reads the variable."""
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

    @classmethod
    def parse(cls, text: str) -> Self:
        """Settings from the value of the environment variable.

        Args:
            text: comma-separated `option:value` pairs, as torch reads them

        Raises: InvalidSpec, Unsupported (a backend that is not this allocator) or UnknownName.

        >>> Settings.parse("expandable_segments:True,max_split_size_mb:128").max_split_size_mb
        128
        """
        values: dict[str, Any] = {}
        for key, value in _pairs(text.replace(" ", "")):
            if key in _OPTIONS:
                values[key] = _OPTIONS[key](key, value)
            elif key in _WITHOUT_EFFECT:
                _WITHOUT_EFFECT[key](key, value)
            else:
                raise UnknownName.of("allocator option", key, [*_OPTIONS, *_WITHOUT_EFFECT])
        return cls(**values)

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
    if divisions and len(divisions) != _TABLE_ENTRIES:
        raise InvalidSpec(f"roundup_power2_divisions has {len(divisions)} entries; give 16, or none to switch it off")
    for steps in divisions:
        if steps and not _is_power_of_two(steps):
            raise InvalidSpec(
                f"roundup_power2_divisions={steps} is not a power of two; use 1, 2, 4, 8 ... or 0 for off"
            )


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """The option:value pairs; commas inside brackets belong to the value."""
    for pair in re.split(r",(?![^\[]*\])", text) if text else ():
        key, colon, value = pair.partition(":")
        if not colon or not key or not value:
            raise InvalidSpec(f"allocator option {pair!r} is not of the form option:value, as in max_split_size_mb:128")
        yield key, value


def _boolean(key: str, value: str) -> bool:
    # Upstream compares the exact text: "true" is an error there too.
    if value not in ("True", "False"):
        raise InvalidSpec(f"{key}:{value} is not a switch; use {key}:True or {key}:False")
    return value == "True"


def _integer(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise InvalidSpec(f"{key}:{value} is not a whole number; use one such as {key}:128")
    return int(value)


def _real(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidSpec(f"{key}:{value} is not a number; use one such as {key}:0.8") from None


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """The 16 entries of the table, from one number or from a list `[256:1,512:2,>:8]` in MB.

    >>> _divisions("roundup_power2_divisions", "[128:8,256:16,512:1,2048:8,>:2]")[6:13]
    (8, 8, 16, 1, 0, 8, 2)
    """
    if not value.startswith("["):
        steps = _integer(key, value)
        if steps == 0:
            raise InvalidSpec(f"{key}:0 is refused by torch; leave the option out to switch it off")
        return (steps,) * _TABLE_ENTRIES
    if not value.endswith("]"):
        raise InvalidSpec(f"{key}:{value} has no closing bracket; use a list such as [256:1,512:2,>:8]")
    return _division_table(key, value[1:-1])


def _division_table(key: str, intervals: str) -> tuple[int, ...]:
    table = [0] * _TABLE_ENTRIES
    rest = 0  # first entry that ">" fills
    is_first = True
    for interval_mb, text in _pairs(intervals):
        steps = _integer(key, text)
        if interval_mb == ">":
            table[rest:] = [steps] * (_TABLE_ENTRIES - rest)
            continue
        megabytes = _integer(key, interval_mb)
        if not _is_power_of_two(megabytes):
            raise InvalidSpec(f"{key} has an interval of {interval_mb} MB, which is not a power of two; use 256 or 512")
        index = min(megabytes.bit_length() - 1, _TABLE_ENTRIES - 1)
        if is_first:
            table[:index] = [steps] * index
            is_first = False
        table[index] = steps
        rest = index + 1
    return tuple(table)


def _backend(key: str, value: str) -> str:
    if value in ("cudaMallocAsync", "hipMallocAsync"):
        raise Unsupported(f"{key}:{value} hands memory to the driver's own pools; only {key}:native is simulated")
    if value != "native":
        raise InvalidSpec(f"{key}:{value} is no allocator backend; use {key}:native")
    return value


def _preemptive_oom(key: str, value: str) -> bool:
    if _boolean(key, value):
        raise Unsupported(f"{key}:True rejects requests by a rule that is not simulated; use {key}:False")
    return False


_OPTIONS: Final[dict[str, Callable[[str, str], Any]]] = {
    "expandable_segments": _boolean,
    "max_split_size_mb": _integer,
    "max_non_split_rounding_mb": _integer,
    "roundup_power2_divisions": _divisions,
    "garbage_collection_threshold": _real,
    "per_process_memory_fraction": _real,
    "large_segment_size_mb": _integer,
}
_WITHOUT_EFFECT: Final[dict[str, Callable[[str, str], Any]]] = {
    "backend": _backend,
    "throw_on_cudamalloc_oom": _preemptive_oom,
    "release_lock_on_cudamalloc": _boolean,
    "release_lock_on_hipmalloc": _boolean,
    "graph_capture_record_stream_reuse": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_hip_host_register": _boolean,
    "pinned_use_background_threads": _boolean,
    "pinned_free_catch_all": _boolean,
    "pinned_num_register_threads": _integer,
    "pinned_reserve_segment_size_mb": _integer,
    "pinned_max_round_threshold_mb": _integer,
    "pinned_max_cached_size_mb": _integer,
}
