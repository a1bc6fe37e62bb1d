"""The answer of a search as the documented JSON; what is unknown is absent."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.planning import PlanAnswer
from vramcast.question.commands import table_of
from vramcast.question.options import options_in
from vramcast.report.document import applied, filled_in
from vramcast.report.messages import Words
from vramcast.report.plain import SCHEMA, as_text, plain
from vramcast.report.plan_words import decision_words, reason_words, technique_words

ENGLISH: Final = Words("en")


def plan_document(answer: PlanAnswer, words: Words = ENGLISH, *, today: date | None = None) -> dict[str, Any]:
    """Plain data: `"plans"` are answers as `vramcast train --json` prints them, best first; `"options"` their labels
    as options of `train` or `serve`; reasons, decisions and techniques in a language."""
    nearest, goal = answer.nearest_failing, answer.question["goal"]
    command = "serve" if "requests" in answer.question else "train"
    return {"schema": SCHEMA, **plain(replace(
        answer,
        plans=tuple(filled_in(plan, today) for plan in answer.plans),
        options=tuple(options_in(label, table_of(command)) or {} for label in answer.labels),
        reason_sentences=tuple(reason_words(reason, str(goal), words) for reason in answer.reasons),
        nearest_failing=nearest and filled_in(nearest, today),
        change=answer.change and applied(answer.change, table_of(f"plan {command}")),
        decisions=tuple(decision_words(decision, words) for decision in answer.decisions),
        techniques=tuple(technique_words(technique, words) for technique in answer.techniques),
    ))}


def to_json(answer: PlanAnswer, *, today: date | None = None) -> str:
    return as_text(plan_document(answer, today=today))
