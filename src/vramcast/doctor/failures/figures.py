"""The arithmetic of an out-of-memory message: what its figures say together that none of them says alone.

[message] pytorch c10/cuda/CUDACachingAllocator.cpp, `OutOfMemoryError`: "free" is asked of the driver after everything
the allocator can give back was given back, so what is reserved and not allocated lies in split segments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Final, NamedTuple

ROUNDING: Final = (1 << 30) // 100
"""Messages print GiB with two decimals: sums of such figures differ by as much [bytes]."""

WIDTHS: Final[dict[str, int]] = {
    "bool": 1, "int8": 1, "uint8": 1, "half": 2, "float16": 2, "bfloat16": 2, "int16": 2, "float": 4, "float32": 4,
    "int32": 4, "double": 8, "float64": 8, "int64": 8, "complex64": 8, "complex128": 16,
}
"""Bytes of an element by the names of TensorFlow and NumPy."""

Numbers = Mapping[str, int | float | str]


class Figures(NamedTuple):
    """Sizes of one statement [bytes]. None: the text does not say, and it does not follow."""

    tried: int | None = None  # the request that failed
    total: int | None = None  # of the card
    free: int | None = None  # as the driver says
    allocated: int | None = None  # live tensors, pools of captured graphs included
    reserved: int | None = None  # held by the framework's allocator
    unallocated: int | None = None  # reserved, in pieces between live tensors
    pools: int | None = None  # free blocks that captured graphs keep
    allowed: int | None = None  # what a fraction lets this process take
    process: int | None = None  # this process on the card, context and libraries included
    others: int | None = None  # other processes, stated or what is left of the card
    beside: int | None = None  # this process outside the allocator: context, libraries, other allocators
    outside: int | None = None  # on the card outside the allocator, whoever holds it
    own: bool = False  # the process that the text lists as another is this one

    @property
    def short(self) -> int | None:
        """What was missing at least: the request less what the driver had free."""
        if self.tried is None or self.free is None:
            return None
        return max(0, self.tried - self.free)

    @property
    def limit(self) -> int | None:
        """The most this process could take: a fraction of the card, or the card."""
        return self.total if self.allowed is None else self.allowed

    @property
    def scattered(self) -> float | None:
        """Share of what is reserved that is not allocated."""
        if not self.reserved or self.unallocated is None:
            return None
        return min(1.0, self.unallocated / self.reserved)


def figures_of(numbers: Numbers) -> Figures:
    """The figures of a statement and what follows from them; impossible ones are left out.

    >>> gib = 1 << 30
    >>> figures_of({"total_bytes": 12 * gib, "allocated_bytes": 9 * gib, "reserved_bytes": 11 * gib}).unallocated // gib
    2
    """
    tried, total, free = (_size(numbers, name) for name in ("tried_bytes", "total_bytes", "free_bytes"))
    tried = _size(numbers, "buffer_bytes") if tried is None else tried
    tried = _tensor_bytes(numbers) if tried is None else tried
    free = _left(total, _size(numbers, "used_bytes")) if free is None else free
    allocated, reserved = _size(numbers, "allocated_bytes"), _size(numbers, "reserved_bytes")
    unallocated = _size(numbers, "unallocated_bytes")
    if unallocated is None and reserved is not None and allocated is not None and reserved >= allocated:
        unallocated = reserved - allocated
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    process = _size(numbers, "process_bytes")
    others = _size(numbers, "other_processes_bytes")
    held = reserved if reserved is not None else allocated
    own = False
    used = None if total is None or free is None else _left(total, free)
    if others is None:
        others = _left(used, process)
        others = 0 if others is not None and others < ROUNDING else others
    elif process is None and used is not None and held is not None and used - others < held:
        # what the listed processes leave cannot hold this one's memory: it is one of them (containers)
        own = numbers.get("other_processes", 1) == 1 and held <= others <= used + ROUNDING
        process, others = (others, None) if own else (None, None)
    return Figures(
        tried=tried, total=total, free=free, allocated=allocated, reserved=reserved, unallocated=unallocated,
        pools=_size(numbers, "private_pools_bytes"), allowed=_size(numbers, "allowed_bytes"), process=process,
        others=others,
        beside=_size(numbers, "other_allocations_bytes") if process is None else _left(process, held),
        outside=_left(used, held), own=own,
    )


def _tensor_bytes(numbers: Numbers) -> int | None:
    """Bytes of a tensor of which the text gives shape and type.

    >>> _tensor_bytes({"shape": "[8192,50257]", "dtype": "half"})
    823410688
    """
    width = WIDTHS.get(str(numbers.get("dtype", "")))
    sides = re.findall(r"[0-9]{1,12}", str(numbers.get("shape", "")))
    return prod(map(int, sides)) * width if width and sides else None


def _left(whole: int | None, part: int | None) -> int | None:
    """What a part leaves of the whole; None where either is unknown or the part is larger by more than rounding."""
    if whole is None or part is None or part > whole + ROUNDING:
        return None
    return max(0, whole - part)


def _size(numbers: Numbers, name: str) -> int | None:
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 63:
        return None
    return int(value)
