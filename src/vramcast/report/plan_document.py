"""The answer of a search as the documented JSON; what is unknown is absent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from vramcast.domain.planning import Decision, PlanAnswer, Technique
from vramcast.question.option_text import options_in
from vramcast.question.options import OPTIONS, Option
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
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "question": answer.question,
        "plans": [_part(document(plan, today=today)) for plan in answer.plans],
        "labels": list(answer.labels),
        "options": [options_in(label, _one_plan(answer)) or {} for label in answer.labels],
        "num_plans": answer.num_plans,
        "num_fitting": answer.num_fitting,
        "reasons": [reason_words(reason, str(answer.question["goal"]), words) for reason in answer.reasons],
    }
    if answer.command:
        plain["command"] = answer.command
    if answer.nearest_failing is not None:
        plain["nearest_failing"] = _part(document(answer.nearest_failing, today=today))
        plain["nearest_label"] = answer.nearest_label
    if answer.change is not None:
        nearest = answer.nearest_failing
        capacity = None if nearest is None else nearest.capacity_bytes
        plain["change"] = change_document(answer.change, _search(answer), capacity)
    if answer.num_in_memory is not None:
        plain["num_in_memory"] = answer.num_in_memory
        plain["missed"] = [_known(noun) for noun in answer.missed]
    plain["front"] = [_known(point) for point in answer.front]
    plain["decisions"] = [_known(_decision(decision, words)) for decision in answer.decisions]
    plain["techniques"] = [_known(_technique(technique, words)) for technique in answer.techniques]
    if answer.ignored:
        plain["ignored"] = list(answer.ignored)
    return plain | {"assumptions": list(answer.assumptions), "warnings": list(answer.warnings)}


def _decision(decision: Decision, words: Words) -> Decision:
    question, finding, action = decision_words(decision, words)
    return replace(decision, question=question, finding=finding, action=action)


def _technique(technique: Technique, words: Words) -> Technique:
    name, when, needs = technique_words(technique, words)
    return replace(technique, name=name, when=when, needs=needs)


def _serves(answer: PlanAnswer) -> bool:
    return "requests" in answer.question


def _one_plan(answer: PlanAnswer) -> Mapping[str, Option]:
    return SERVE_OPTIONS if _serves(answer) else OPTIONS


def _search(answer: PlanAnswer) -> Mapping[str, Option]:
    return PLAN_SERVE_OPTIONS if _serves(answer) else PLAN_OPTIONS


def to_json(answer: PlanAnswer, *, today: date | None = None) -> str:
    return as_text(plan_document(answer, today=today))


def _part(plain: dict[str, Any]) -> dict[str, Any]:
    """One answer inside a document that has the schema already."""
    return {name: value for name, value in plain.items() if name != "schema"}


def _known(noun: msgspec.Struct) -> dict[str, Any]:
    return known(msgspec.to_builtins(noun))
