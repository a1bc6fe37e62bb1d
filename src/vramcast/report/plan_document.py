"""The answer of a search as the documented JSON; what is unknown is absent."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

from vramcast.domain.answer import Answer
from vramcast.domain.model import Noun
from vramcast.domain.planning import PlanAnswer
from vramcast.errors import text_of
from vramcast.question.options import OPTIONS, options_in
from vramcast.question.plan_options import PLAN_OPTIONS
from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS
from vramcast.report.document import change_document, document
from vramcast.report.messages import Words
from vramcast.report.plain import SCHEMA, as_text, known
from vramcast.report.plan_words import decision_words, reason_words, technique_words

ENGLISH: Final = Words("en")


def plan_document(answer: PlanAnswer, words: Words = ENGLISH, *, today: date | None = None) -> dict[str, Any]:
    """Plain data: `"plans"` are answers as `vramcast train --json` prints them, best first; `"options"` their labels
    as options of `train` or `serve`; reasons, decisions and techniques in a language."""
    serves, nearest = "requests" in answer.question, answer.nearest_failing
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "question": answer.question,
        "plans": [_part(plan, today) for plan in answer.plans],
        "labels": list(answer.labels),
        "options": [options_in(label, SERVE_OPTIONS if serves else OPTIONS) or {} for label in answer.labels],
        "num_plans": answer.num_plans,
        "num_fitting": answer.num_fitting,
        "reasons": [reason_words(reason, str(answer.question["goal"]), words) for reason in answer.reasons],
    }
    if answer.command:
        plain["command"] = answer.command
    if nearest is not None:
        plain |= {"nearest_failing": _part(nearest, today), "nearest_label": answer.nearest_label}
    if answer.change is not None:
        table = PLAN_SERVE_OPTIONS if serves else PLAN_OPTIONS
        plain["change"] = change_document(answer.change, table, None if nearest is None else nearest.capacity_bytes)
    if answer.num_in_memory is not None:
        plain |= {"num_in_memory": answer.num_in_memory, "missed": list(map(_known, answer.missed))}
    plain |= {
        "front": list(map(_known, answer.front)),
        "decisions": [
            _known(decision, zip(("question", "finding", "action"), decision_words(decision, words), strict=True))
            for decision in answer.decisions
        ],
        "techniques": [
            _known(technique, zip(("name", "when", "needs"), technique_words(technique, words), strict=True))
            for technique in answer.techniques
        ],
    }
    if answer.ignored:
        plain["ignored"] = list(answer.ignored)
    return plain | {"assumptions": list(answer.assumptions), "warnings": list(answer.warnings)}


def to_json(answer: PlanAnswer, *, today: date | None = None) -> str:
    return as_text(plan_document(answer, today=today))


def _part(answer: Answer, today: date | None) -> dict[str, Any]:
    """One answer inside a document that has the schema already."""
    return {name: value for name, value in document(answer, today=today).items() if name != "schema"}


def _known(noun: Noun, said: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
    """What is known of a noun, with some of its texts in a language."""
    return known(to_builtins(replace(noun, **dict(said)), enc_hook=text_of))
