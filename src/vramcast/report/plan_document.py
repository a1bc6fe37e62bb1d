"""The answer of a search as the documented JSON; what is unknown is absent."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.planning import PlanAnswer
from vramcast.question.options import OPTIONS, options_in
from vramcast.question.plan_options import PLAN_OPTIONS
from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS
from vramcast.report.document import applied, filled_in
from vramcast.report.messages import Words
from vramcast.report.plain import SCHEMA, as_text, plain
from vramcast.report.plan_words import decision_words, reason_words, technique_words

ENGLISH: Final = Words("en")


def plan_document(answer: PlanAnswer, words: Words = ENGLISH, *, today: date | None = None) -> dict[str, Any]:
    """Plain data: `"plans"` are answers as `vramcast train --json` prints them, best first; `"options"` their labels
    as options of `train` or `serve`; reasons, decisions and techniques in a language."""
    serves, nearest, goal = "requests" in answer.question, answer.nearest_failing, answer.question["goal"]
    table, search_table = (SERVE_OPTIONS, PLAN_SERVE_OPTIONS) if serves else (OPTIONS, PLAN_OPTIONS)
    return {"schema": SCHEMA, **plain(replace(
        answer,
        plans=tuple(filled_in(plan, today) for plan in answer.plans),
        options=tuple(options_in(label, table) or {} for label in answer.labels),
        reason_sentences=tuple(reason_words(reason, str(goal), words) for reason in answer.reasons),
        nearest_failing=nearest and filled_in(nearest, today),
        change=answer.change and applied(answer.change, search_table),
        decisions=tuple(decision_words(decision, words) for decision in answer.decisions),
        techniques=tuple(technique_words(technique, words) for technique in answer.techniques),
    ))}


def to_json(answer: PlanAnswer, *, today: date | None = None) -> str:
    return as_text(plan_document(answer, today=today))
