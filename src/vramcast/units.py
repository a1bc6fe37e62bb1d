"""Bytes, and nothing else: the only module that knows GiB and GB."""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
MB: Final = 10**6
GB: Final = 10**9

FP64: Final = 8
INT64: Final = 8
FP32: Final = 4
HALF: Final = 2
"""Of one element; both types of 16 bits are half of fp32 [bytes]."""

DTYPE_BITS: Final[dict[str, int]] = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8": 8,
    "int8": 8,
    "int4": 4,
    "nf4": 4,
    "int64": 64,
    "int32": 32,
    "bool": 8,
}
"""Storage bits of one element; tf32 is a compute mode that stores fp32."""


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below numerator / denominator."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple of `multiple`."""
    return ceil_div(value, multiple) * multiple


def tensor_bytes(elements: int, dtype: str) -> int:
    """Bytes of `elements` densely packed elements of `dtype`, rounded up to whole bytes."""
    return ceil_div(elements * DTYPE_BITS[dtype], 8)


def format_bytes(num_bytes: int) -> str:
    """Binary units with two decimals, as PyTorch prints them: '61.20 GiB'."""
    sign, size = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{sign}{size / factor:.2f} {unit}"
    return f"{sign}{size} bytes"


def format_seconds(seconds: float) -> str:
    """Three digits: '2.31 s', '84.5 ms', '2 h'.

    >>> format_seconds(2.314), format_seconds(0.0845), format_seconds(7200)
    ('2.31 s', '84.5 ms', '2 h')
    """
    for unit, factor in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}" if seconds / factor < 1000 else f"{seconds / factor:,.0f} {unit}"
    return f"{seconds * 1e6:.3g} us"
