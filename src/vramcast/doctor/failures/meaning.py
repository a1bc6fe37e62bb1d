"""What each number of a message means, for somebody who sees it for the first time."""

from __future__ import annotations

from typing import Final

from vramcast.doctor.failures.card_rules import enough_free
from vramcast.doctor.failures.case import TORCH, Case, size
from vramcast.domain.reconciliation import Remark
from vramcast.units import MIB

SMALL_SEGMENT: Final = 2 * MIB
"""The allocator asks the driver for this much for a request up to 1 MiB [allocator] kSmallBuffer."""

LARGE_SEGMENT: Final = 20 * MIB
"""... and this much for one of 1 to 10 MiB [allocator] kLargeBuffer."""

ORDER: Final[tuple[str, ...]] = (
    "tried_bytes", "total_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "unallocated_bytes",
    "private_pools_bytes", "allowed_bytes", "process_bytes", "other_processes_bytes", "other_allocations_bytes",
    "max_model_len", "kv_tokens", "kv_needed_bytes", "kv_available_bytes", "estimated_max_len", "memory_fraction",
    "device",
)
"""Numbers in the order they are explained."""

FOLLOWING: Final = {
    "reserved_bytes": "reserved", "unallocated_bytes": "unallocated", "beside_bytes": "beside",
    "others_bytes": "others", "outside_bytes": "outside",
}
"""What follows from the stated numbers -> the figure that holds it."""


def meaning_of(case: Case) -> tuple[tuple[str, Remark], ...]:
    """Every number of a statement, then those that follow from them, each with its sentence."""
    numbers = case.statement.numbers
    told = [(name, Remark(key=_key(name, case), values=_values(name, case))) for name in ORDER if name in numbers]
    for name, figure in FOLLOWING.items():
        found = getattr(case.figures, figure)
        hidden = name in numbers or not found or _said_otherwise(name, case)
        if not hidden:
            told.append((name, Remark(key=f"means.{name}", values={"value": size(found)})))
    return tuple(told)


def _said_otherwise(name: str, case: Case) -> bool:
    """What another line of the explanation says already."""
    figures = case.figures
    if name == "others_bytes":
        return "other_processes_bytes" in case.statement.numbers
    if name == "outside_bytes":
        return figures.process is not None
    return name == "beside_bytes" and "other_allocations_bytes" in case.statement.numbers


def _key(name: str, case: Case) -> str:
    """The sentence of a number; some depend on its value."""
    tried = case.figures.tried
    if name == "tried_bytes" and case.family in TORCH and case.figures.total is not None:
        segments = {SMALL_SEGMENT: "means.tried.small", LARGE_SEGMENT: "means.tried.large"}
        return segments.get(tried or 0, "means.tried_bytes")
    if name == "free_bytes" and enough_free(case):
        return "means.free.enough"
    return f"means.{name}"


def _values(name: str, case: Case) -> dict[str, str]:
    value = case.statement.numbers[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return {"value": str(value)[:40]}
    if name.endswith("_bytes"):
        return {"value": size(value)} if abs(value) < 1 << 63 else {"value": str(value)[:40]}
    return {"value": f"{value:,}" if abs(value) < 1 << 63 else str(value)[:40]}
