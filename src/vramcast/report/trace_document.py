"""The answer of `trace` as JSON: that of `train` with the timeline and what is not known."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import asdict

from vramcast.domain.traced import Holding, TraceAnswer
from vramcast.report.document import document as plain_document


def document(answer: TraceAnswer) -> dict[str, Any]:
    """Plain data; what is unknown is absent."""
    plain = plain_document(answer)
    if not answer.interval_basis:
        for peak in (plain["peak"], *(rank["peak"] for rank in plain["ranks"])):
            del peak["interval_bytes"]  # nothing says how wide it is
        del plain["high_bytes"]
    else:
        plain["interval_basis"] = answer.interval_basis
    if not answer.num_parameters:
        del plain["parameters"]  # a script's are not known
    plain |= {"steps": answer.steps, "events": answer.events}
    plain["holdings"] = {
        name: [_holding(one) for one in getattr(answer.holdings, f"by_{name}")]
        for name in ("module", "line", "operator")
    }
    plain["unknown_operators"] = [
        {"name": one.name, "calls": one.calls, "bytes": one.num_bytes, "peak_bytes": one.peak_bytes}
        for one in answer.unknown_operators
    ]
    plain["course"] = [[point.allocated_bytes, point.reserved_bytes] for point in answer.course]
    if answer.failure is not None:
        failure = asdict(answer.failure)
        failure |= {"step": answer.failure.step + 1, "stack": list(answer.failure.stack)}  # counted as the text does
        plain["failure"] = {
            "bytes": failure.pop("num_bytes"), **{name: value for name, value in failure.items() if value},
        }
    for name in ("timeline", "stopped"):
        if getattr(answer, name):
            plain[name] = getattr(answer, name)
    return plain


def _holding(one: Holding) -> dict[str, Any]:
    return {"name": one.name, "bytes": one.num_bytes, "blocks": one.count}


def to_json(answer: TraceAnswer) -> str:
    """The document as text."""
    return json.dumps(document(answer), indent=1, ensure_ascii=False)
