"""What each number of a message means, for somebody who sees it for the first time."""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.doctor.failures.card_rules import enough_free
from vramcast.doctor.failures.case import HOST, TORCH, Case, size
from vramcast.doctor.failures.rule import Holds
from vramcast.domain.reconciliation import Remark
from vramcast.units import MIB

SMALL_SEGMENT: Final = 2 * MIB
"""The allocator asks the driver for this much for a request up to 1 MiB [allocator] kSmallBuffer."""

LARGE_SEGMENT: Final = 20 * MIB
"""... and this much for one of 1 to 10 MiB [allocator] kLargeBuffer."""

ORDER: Final[tuple[str, ...]] = (
    "tried_bytes", "buffer_bytes", "shape", "tried_tokens", "free_tokens", "needed_bytes", "used_bytes", "limit_bytes",
    "exceeded_bytes", "total_bytes", "desired_bytes", "free_bytes", "largest_free_bytes", "weights_bytes",
    "arguments_bytes", "program_bytes", "output_bytes", "requested_bytes", "requested_peak_bytes", "allocated_bytes",
    "allocated_peak_bytes", "active_bytes", "active_peak_bytes", "reserved_bytes", "reserved_peak_bytes",
    "unallocated_bytes", "inactive_split_bytes", "private_pools_bytes", "allowed_bytes", "process_bytes",
    "other_processes_bytes", "other_allocations_bytes", "resident_bytes", "virtual_bytes",
    "used_fraction", "threshold", "max_model_len", "kv_tokens", "kv_needed_bytes", "kv_available_bytes",
    "estimated_max_len", "sequences", "blocks", "memory_fraction", "num_alloc_retries", "num_ooms", "exit_code",
    "device",
)
"""Numbers in the order they are explained."""

FOLLOWING: Final = {
    "tried_bytes": "tried",
    "reserved_bytes": "reserved", "unallocated_bytes": "unallocated", "beside_bytes": "beside",
    "others_bytes": "others", "outside_bytes": "outside",
}
"""What follows from the stated numbers -> the figure that holds it."""


class Variant(NamedTuple):
    """Another sentence for a number; the first row that holds gives it."""

    name: str
    key: str
    holds: Holds


VARIANTS: Final[tuple[Variant, ...]] = (
    Variant("tried_bytes", "means.tried.exact", lambda case: case.family not in TORCH),
    Variant("buffer_bytes", "means.tried.exact", lambda case: "tried_bytes" not in case.statement.numbers),
    Variant("total_bytes", "means.total.host", lambda case: case.family in HOST),
    Variant("free_bytes", "means.free.host", lambda case: case.family in HOST),
    Variant("free_bytes", "means.free.start", lambda case: case.number("desired_bytes") is not None),
    Variant("free_bytes", "means.free.enough", enough_free),
    Variant("free_bytes", "means.free.stated", lambda case: case.family not in TORCH),
    Variant("reserved_bytes", "means.reserved.system", lambda case: case.family == "jax"),
    Variant("sequences", "means.sequences.preempted", lambda case: "preempt" in case.statement.wording),
    Variant("sequences", "means.sequences.retracted", lambda case: case.statement.wording in ("retract", "decode")),
    Variant("allowed_bytes", "means.allowed.none", lambda case: case.figures.allowed is None),
    Variant("other_processes_bytes", "means.other_processes.own", lambda case: case.figures.own),
)


def meaning_of(case: Case) -> tuple[tuple[str, Remark], ...]:
    """Every number of a statement, then those that follow from them, each with its sentence."""
    numbers = case.statement.numbers
    told = [(name, Remark(key=_key(name, case), values=_values(name, case))) for name in ORDER if name in numbers]
    for name, figure in FOLLOWING.items():
        found = getattr(case.figures, figure)
        hidden = name in numbers or not found or _said_otherwise(name, case)
        if not hidden:
            key = "means.tried.shape" if name == "tried_bytes" else f"means.{name}"
            told.append((name, Remark(key=key, values={"value": size(found)})))
    return tuple(told)


def _said_otherwise(name: str, case: Case) -> bool:
    """What another line of the explanation says already."""
    figures = case.figures
    if name == "tried_bytes":
        return "buffer_bytes" in case.statement.numbers
    if name == "others_bytes":
        return "other_processes_bytes" in case.statement.numbers
    if name == "outside_bytes":
        return figures.process is not None
    return name == "beside_bytes" and "other_allocations_bytes" in case.statement.numbers


def _key(name: str, case: Case) -> str:
    """The sentence of a number; of some it depends on its value and on who speaks."""
    if name == "tried_bytes" and case.family in TORCH and case.figures.total is not None:
        segments = {SMALL_SEGMENT: "means.tried.small", LARGE_SEGMENT: "means.tried.large"}
        return segments.get(case.figures.tried or 0, "means.tried_bytes")
    return next((row.key for row in VARIANTS if row.name == name and row.holds(case)), f"means.{name}")


def _values(name: str, case: Case) -> dict[str, str]:
    value = case.statement.numbers[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return {"value": str(value)[:40]}
    if name == "buffer_bytes" and "tried_bytes" in case.statement.numbers and 0 <= value < 1 << 63:
        return {"value": f"{value:,} B"}
    if name.endswith("_bytes"):
        return {"value": size(value)} if abs(value) < 1 << 63 else {"value": str(value)[:40]}
    return {"value": f"{value:,}" if abs(value) < 1 << 63 else str(value)[:40]}
