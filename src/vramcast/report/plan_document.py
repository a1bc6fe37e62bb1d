"""The answer of a search as the documented JSON; what is unknown is absent."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import msgspec

from vramcast.domain.planning import PlanAnswer
from vramcast.report.document import SCHEMA, change_document, document
from vramcast.report.messages import Words
from vramcast.report.plan_words import reason_words


def plan_document(answer: PlanAnswer, *, today: date | None = None) -> dict[str, Any]:
    """Plain data: `"plans"` are answers as `vramcast train --json` prints them, best first."""
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "question": answer.question,
        "plans": [_part(document(plan, today=today)) for plan in answer.plans],
        "labels": list(answer.labels),
        "num_plans": answer.num_plans,
        "num_fitting": answer.num_fitting,
        "reasons": [reason_words(reason, str(answer.question["goal"]), Words("en")) for reason in answer.reasons],
    }
    if answer.command:
        plain["command"] = answer.command
    if answer.nearest_failing is not None:
        plain["nearest_failing"] = _part(document(answer.nearest_failing, today=today))
        plain["nearest_label"] = answer.nearest_label
    if answer.change is not None:
        plain["change"] = change_document(answer.change)
    if answer.num_in_memory is not None:
        plain["num_in_memory"] = answer.num_in_memory
        plain["missed"] = [_present(noun) for noun in answer.missed]
    for name in ("front", "decisions", "techniques"):
        plain[name] = [_present(noun) for noun in getattr(answer, name)]
    return plain | {"assumptions": list(answer.assumptions), "warnings": list(answer.warnings)}


def to_json(answer: PlanAnswer, *, today: date | None = None) -> str:
    """The document as text."""
    return json.dumps(plan_document(answer, today=today), indent=1, ensure_ascii=False)


def _part(plain: dict[str, Any]) -> dict[str, Any]:
    """One answer inside a document that has the schema already."""
    return {name: value for name, value in plain.items() if name != "schema"}


def _present(noun: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(noun).items() if value not in (None, "")}
