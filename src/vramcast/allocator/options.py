"""The value of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF in torch 2.9 to 2.11), read as torch reads it.

[config] pytorch c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from vramcast.allocator.settings import DIVISION_ENTRIES, OLDEST, Version, dotted, is_power_of_two
from vramcast.errors import InvalidSpec, UnknownName, Unsupported


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


class Option(NamedTuple):
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
