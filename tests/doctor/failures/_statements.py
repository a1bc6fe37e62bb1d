"""Statements as readers give them, with the figures of a message."""

from vramcast.domain.failure import Statement
from vramcast.units import GIB, MIB

FRAGMENTED = {  # GPU 15.78 GiB, 10.34 allocated, 14.21 reserved, 456.50 MiB free, tried 1.24 GiB
    "tried_bytes": round(1.24 * GIB), "total_bytes": round(15.78 * GIB), "allocated_bytes": round(10.34 * GIB),
    "free_bytes": round(456.5 * MIB), "reserved_bytes": round(14.21 * GIB), "device": 0,
}


def stated(family: str = "torch-cuda", text: str = "", line: int = 1, **numbers: int | float | str) -> Statement:
    """A statement with these numbers."""
    return Statement(family=family, wording="test", text=text, line=line, numbers=numbers)


def sizes(**gib: float) -> dict[str, int]:
    """Numbers in bytes from GiB, by the first part of their names.

    >>> sizes(tried=0.5)
    {'tried_bytes': 536870912}
    """
    return {f"{name}_bytes": round(size * GIB) for name, size in gib.items()}
