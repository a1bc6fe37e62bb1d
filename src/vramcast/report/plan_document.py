"""The answer of a search as the documented JSON; what is unknown is absent.

Techniques, decisions and fleets in the language of a report.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.answer import Fleet
from vramcast.domain.planning import Decision, PlanAnswer, Reason, Technique
from vramcast.domain.verdict import Fit
from vramcast.question.option import table_of
from vramcast.question.options import options_in
from vramcast.report.document import SCHEMA, applied, as_text, filled_in, plain
from vramcast.report.messages import Words
from vramcast.units import format_bytes

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


MULTIPLE: Final = 2
"""From here on "2.3 times as slow" instead of "130 % slower"."""


def reason_words(reason: Reason, goal: str, words: Words) -> str:
    """One reason as a sentence; `goal` says what worse means."""
    if reason.kind == "other":
        return reason.text
    if reason.kind == "respect":
        return _respect_words(reason, goal, words)
    key = f"reason.{reason.kind}{'.several' if reason.kind == 'per-user' and reason.users > 1 else ''}"
    return words(
        key, bound=words(f"bound.{reason.bound}") if reason.bound else "", share=f"{reason.value:.0%}",
        cause=words(f"cause.{reason.cause}") if reason.cause else "", value=f"{reason.value:.3g}", users=reason.users,
        limit=reason.limit,
    )


def _respect_words(reason: Reason, goal: str, words: Words) -> str:
    size = "times" if reason.times >= MULTIPLE else "share"
    places = 0 if goal == "fewest-gpus" else 1
    worse = words(
        f"worse.{goal}.{size}", share=f"{reason.times - 1:.{places}%}",
        times=f"{reason.times:.1f}" if places else f"{reason.times:.3g}",
    )
    other = f"--{reason.option} {reason.other}" if reason.option else _choice(reason.other, words)
    respect = words.term("respect", reason.respect)
    return words("reason.respect", respect=respect, other=other, own=_choice(reason.own, words), worse=worse)


def _choice(text: str, words: Words) -> str:
    return words("reason.as_stored") if text == "as stored" else text


def technique_words(technique: Technique, words: Words) -> Technique:
    """Its name, when to use it and what it needs in words."""
    name, when, needs = words.technique(technique.name, technique.when, technique.needs)
    return replace(technique, name=name, when=when, needs=needs)


def decision_words(decision: Decision, words: Words) -> Decision:
    """Its question, what was found and what follows in words."""
    if words.language == "en":
        return decision
    needed, capacity = format_bytes(decision.device_bytes or 0), format_bytes(decision.capacity_bytes or 0)
    sizes = {"needed": needed, "capacity": capacity}
    if decision.name == "more":
        finding = f"{decision.finding.partition(': ')[0]}{words('decision.more_yes', **sizes)}"
    elif decision.verdict is None:
        finding = words(f"decision.size_{'yes' if decision.yes else 'no'}", **sizes)
    else:
        finding = words("decision.fits", verdict=words(f"verdict.{decision.verdict}"), **sizes)
        if decision.verdict is Fit.MAY_RUN_OUT:
            finding += words("decision.high", high=format_bytes(decision.high_bytes or 0))
    if decision.host_bytes is not None:
        finding += words("decision.host", host=format_bytes(decision.host_bytes))
    question = words.term("decision", decision.name)
    question = decision.question if question == decision.name else question
    return replace(decision, question=question, finding=finding, action=words.term("action", decision.action))


def fleet_words(fleet: Fleet, words: Words) -> str:
    """How many replicas there are, and on what: "(2 replicas on 1 x aws:g7e.12xlarge)"."""
    key = "plan.fleet" if fleet.replicas > 1 else "plan.fleet_of_one"
    return words(key, replicas=fleet.replicas, machines=fleet.machines, machine=fleet.machine)


def split_labels(labels: tuple[str, ...]) -> tuple[str, list[str]]:
    """Options that every label has, and what is left of each.

    >>> split_labels(("--gpus 8xh100 --tp 2", "--gpus 8xh100 --tp 4"))
    ('--gpus 8xh100', ['--tp 2', '--tp 4'])
    """
    parts = [[f"--{part}".strip() for part in label.split("--") if part.strip()] for label in labels]
    shared = [part for part in parts[0] if all(part in other for other in parts)] if len(parts) > 1 else []
    return " ".join(shared), [" ".join(part for part in own if part not in shared) or "-" for own in parts]
