"""The answer as the documented JSON: `"schema": 1`, integers in bytes, what is unknown is absent."""

from __future__ import annotations

import json
from typing import Any, Final

from vramcast.domain.answer import Answer, LedgerEntry, Peak, RankAnswer

SCHEMA: Final = 1


def document(answer: Answer) -> dict[str, Any]:
    """Plain data of the answer."""
    return {
        "schema": SCHEMA,
        "question": answer.question,
        "fits": answer.fits,
        "peak": _peak(answer.peak) | {"interval_bytes": list(answer.interval_bytes)},
        "needed_bytes": answer.fullest.needed_bytes,
        "capacity_bytes": answer.capacity_bytes,
        "parameters": answer.num_parameters,
        "ranks": [_rank(rank) for rank in answer.ranks],
        "assumptions": list(answer.assumptions),
        "warnings": list(answer.warnings),
        "changes": [
            {"change": change.change, "device_bytes": change.device_bytes, "fits": change.fits, "cost": change.cost}
            for change in answer.changes
        ],
    }


def to_json(answer: Answer) -> str:
    """The document as text."""
    return json.dumps(document(answer), indent=1, ensure_ascii=False)


def _peak(peak: Peak) -> dict[str, int]:
    return {
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "device_bytes": peak.device_bytes,
    }


def _rank(rank: RankAnswer) -> dict[str, Any]:
    return {
        "role": rank.role,
        "count": rank.count,
        "peak": _peak(rank.peak) | {"interval_bytes": list(rank.interval_bytes)},
        "phases": {name: _peak(peak) for name, peak in rank.phases.items()},
        "ledger": [_entry(entry) for entry in rank.ledger],
    }


def _entry(entry: LedgerEntry) -> dict[str, Any]:
    plain: dict[str, Any] = {"path": entry.path, "bytes": entry.num_bytes, "basis": str(entry.basis)}
    if entry.count != 1:
        plain["count"] = entry.count
    if entry.formula:
        plain["formula"] = entry.formula
    if entry.source:
        plain["source"] = entry.source
    return plain
