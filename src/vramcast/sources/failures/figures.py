"""Figures of failures: their canonical names with units, and how texts write them.

All sizes become bytes. Libraries that print "GB", "MB" or "G" here divide by powers of 1024, whatever they call them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from vramcast.units import GIB, KIB, MIB

MOST_DIGITS: Final = 30
"""What `int` is asked to read of a text; a longer row of digits is no figure [characters]."""

MOST_BYTES: Final = 1 << 80
"""Beyond what any library's 64 bits can print, even wrapped around and scaled [bytes]."""


class Figure(NamedTuple):
    """What one number of a statement is."""

    unit: str  # "bytes", "count", "ratio", "index" or "text"
    meaning: str


NUMBERS: Final[dict[str, Figure]] = {
    "tried_bytes": Figure("bytes", "the request that failed, as the library rounded it"),
    "buffer_bytes": Figure(
        "bytes", "the whole buffer that was wanted, exact, where the text also gives a rounded size"
    ),
    "total_bytes": Figure("bytes", "memory of the device, as its driver states it"),
    "free_bytes": Figure("bytes", "free on the device (or on the host) when the request failed"),
    "allocated_bytes": Figure("bytes", "in live blocks of the library's allocator"),
    "active_bytes": Figure("bytes", "as allocated, with blocks that other streams still use"),
    "requested_bytes": Figure("bytes", "what tensors asked for, before rounding"),
    "reserved_bytes": Figure("bytes", "held by the library's allocator, in use or not"),
    "unallocated_bytes": Figure("bytes", "reserved, but in no live block ('cached' up to torch 1.3)"),
    "allowed_bytes": Figure("bytes", "the limit somebody set, below the device's memory"),
    "private_pools_bytes": Figure("bytes", "kept for captured graphs"),
    "process_bytes": Figure("bytes", "in use by this process as the driver sees it, libraries included"),
    "other_processes_bytes": Figure("bytes", "in use by the other processes that the text lists, summed"),
    "other_processes": Figure("count", "processes that the text lists beside this one"),
    "other_allocations_bytes": Figure("bytes", "taken on the device outside this allocator"),
    "inactive_split_bytes": Figure("bytes", "free parts of segments that hold live blocks: not releasable"),
    "allocated_peak_bytes": Figure("bytes", "highest of allocated"),
    "active_peak_bytes": Figure("bytes", "highest of active"),
    "requested_peak_bytes": Figure("bytes", "highest of requested"),
    "reserved_peak_bytes": Figure("bytes", "highest of reserved"),
    "used_bytes": Figure("bytes", "in use on the device by everybody"),
    "needed_bytes": Figure("bytes", "what the job, program or model needs in all"),
    "limit_bytes": Figure("bytes", "the most the hardware, driver or allocator grants"),
    "desired_bytes": Figure("bytes", "what an engine wants of the device by its fraction"),
    "kv_needed_bytes": Figure("bytes", "key/value cache for one longest sequence"),
    "kv_available_bytes": Figure("bytes", "what is left for the key/value cache"),
    "arguments_bytes": Figure("bytes", "arguments of a compiled program"),
    "program_bytes": Figure("bytes", "temporaries of a compiled program"),
    "output_bytes": Figure("bytes", "results of a compiled program"),
    "exceeded_bytes": Figure("bytes", "by how much a limit is exceeded"),
    "largest_free_bytes": Figure("bytes", "largest free block of an allocator"),
    "weights_bytes": Figure("bytes", "parameters of the model"),
    "resident_bytes": Figure("bytes", "main memory in use by the process that was ended"),
    "virtual_bytes": Figure("bytes", "address space of the process that was ended"),
    "kv_tokens": Figure("count", "tokens that the key/value cache holds"),
    "tried_tokens": Figure("count", "tokens for which room was asked"),
    "free_tokens": Figure("count", "tokens for which there was room"),
    "max_model_len": Figure("count", "longest sequence asked for [tokens]"),
    "estimated_max_len": Figure("count", "longest sequence that the engine says would fit [tokens]"),
    "sequences": Figure("count", "sequences at once, or dummy requests of a warm-up"),
    "blocks": Figure("count", "blocks of a key/value cache, or of an allocator"),
    "num_alloc_retries": Figure("count", "allocations that succeeded only after the cache was emptied"),
    "num_ooms": Figure("count", "allocations that failed for good"),
    "memory_fraction": Figure("ratio", "share of the device that an engine or user allows, 0 to 1"),
    "used_fraction": Figure("ratio", "share of main memory in use, 0 to 1"),
    "threshold": Figure("ratio", "share of main memory above which processes are ended, 0 to 1"),
    "device": Figure("index", "number of the device, counted from 0"),
    "pid": Figure("index", "number of the process"),
    "exit_code": Figure("index", "with which the process ended"),
    "signal": Figure("index", "that ended the process"),
    "error_code": Figure("text", "as the library writes it"),
    "call": Figure("text", "the library call that failed"),
    "buffer": Figure("text", "name of the buffer or its device, e.g. CUDA0"),
    "shape": Figure("text", "of the tensor that was wanted"),
    "dtype": Figure("text", "of the tensor that was wanted"),
    "allocator": Figure("text", "which one failed"),
    "memory_space": Figure("text", "which memory ran out, e.g. hbm, vmem, shared memory"),
    "name": Figure("text", "of the card, process, operator or variable"),
    "reason": Figure("text", "as the text words it"),
}
"""Every name a statement's `numbers` may have."""

NUMBER: Final = r"-?[0-9](?:[0-9,]{0,29}[0-9])?(?:\.[0-9]{1,20})?"
INTEGER: Final = r"-?[0-9](?:[0-9,]{0,29}[0-9])?"
SIZE: Final = rf"{NUMBER} ?(?:bytes|byte|[KMGTPE]i?B?|B)(?![0-9A-Za-z])"
WORD: Final = r"[^\s,;()`'\"]{1,120}"

UNITS: Final[dict[str, int]] = {
    "": 1, "B": 1, "BYTES": 1, "BYTE": 1, "K": KIB, "M": MIB, "G": GIB, "T": GIB << 10, "P": GIB << 20, "E": GIB << 30,
}  # fmt: skip
"""Binary, as every library here divides; "KiB", "KB" and "K" are one."""

WRITTEN: Final[dict[str, str]] = {
    "bytes": SIZE, "count": INTEGER, "ratio": NUMBER, "index": r"-?[0-9]{1,18}", "text": WORD,
}  # fmt: skip
PLAIN: Final[dict[str, str]] = {"b": INTEGER, "k": NUMBER, "m": NUMBER, "g": NUMBER, "percent": NUMBER}
"""Numbers whose unit stands elsewhere: `<free_bytes:m>` is a bare number of MiB."""

DECIMAL_COMMA: Final = re.compile(r"(?<=[0-9]),(?=[0-9]{1,2}$|[0-9]{4,}$)", re.ASCII)
"""Thousands are set apart in threes: behind a last comma with fewer or more digits are decimals ("1900,00 MiB")."""

PLACE: Final = re.compile(r"(?<!\?P)<([a-z_]+)(?::([a-z]+))?>")


def with_figures(pattern: str) -> str:
    """A regular expression in which `<name>` and `<name:unit>` are named groups for figures of NUMBERS.

    >>> re.search(with_figures("<free_bytes> free"), "356.00 MiB free")["free_bytes__"]
    '356.00 MiB'
    """
    return PLACE.sub(_group, pattern)


def _group(place: re.Match[str]) -> str:
    name, unit = place[1], place[2] or ""
    return f"(?P<{name}__{unit}>{PLAIN[unit] if unit else WRITTEN[NUMBERS[name].unit]})"


def read_group(group: str, written: str) -> tuple[str, int | float | str | None]:
    """The name and the value of a group that `with_figures` made.

    >>> read_group("free_bytes__", "1.5 GiB"), read_group("free_bytes__m", "12"), read_group("kv_tokens__", "7,344")
    (('free_bytes', 1610612736), ('free_bytes', 12582912), ('kv_tokens', 7344))
    """
    name, _, unit = group.partition("__")
    kind = NUMBERS[name].unit
    if kind == "text":
        return name, written[:200]
    if kind == "bytes":
        return name, size_of(written + {"": "", "b": " B"}.get(unit, f" {unit.upper()}"))
    if kind == "ratio":
        value = _number(written)
        return name, None if value is None else value / (100 if unit == "percent" else 1)
    value = _number(written)
    return name, None if value is None else int(value)


@lru_cache(maxsize=1024)
def size_of(written: str) -> int | None:
    """Bytes of a size as texts write it; None for what is no size or beyond any machine.

    >>> size_of("9.28 GiB"), size_of("0 bytes"), size_of("15.48G"), size_of("1,024 KB"), size_of("much")
    (9964324127, 0, 16621523436, 1048576, None)
    >>> size_of("1900,00 MiB") == 1900 * MIB
    True
    """
    written = written.strip()
    letters = written.lstrip("-0123456789,. ")
    unit = letters.upper()
    factor = UNITS.get(unit) or UNITS.get(unit.removesuffix("B").removesuffix("I"))
    value = _number(written[: len(written) - len(letters)].rstrip())
    if factor is None or value is None or abs(value) > MOST_BYTES / factor:
        return None
    return value * factor if isinstance(value, int) else round(value * factor)


def _number(written: str) -> int | float | None:
    digits = DECIMAL_COMMA.sub(".", written).replace(",", "")
    if len(digits) > MOST_DIGITS + 14:
        return None
    try:
        return float(digits) if "." in digits else int(digits)
    except ValueError:
        return None
