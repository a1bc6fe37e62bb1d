"""The answer as the documented JSON: `"schema": 1`, integers in bytes, what is unknown is absent.

What every document of JSON is made with: nouns write themselves, by the keys that they declare.

The answer of a search as the documented JSON; what is unknown is absent.

Techniques, decisions and fleets in the language of a report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import cache
from typing import Any, Final

from msgspec import NODEFAULT, Struct, to_builtins
from msgspec.json import encode
from msgspec.json import format as format_json
from msgspec.structs import fields, replace

from vramcast.domain.answer import Answer, Change, Fleet
from vramcast.domain.model import Noun
from vramcast.domain.planning import Decision, PlanAnswer, Reason, Technique
from vramcast.domain.verdict import Fit
from vramcast.errors import text_of
from vramcast.question.option import Option, table_of
from vramcast.question.options import applied_in, options_in
from vramcast.report.messages import Words
from vramcast.report.sentences import age_days
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


def plan_json(answer: PlanAnswer, *, today: date | None = None) -> str:
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


def document(answer: Answer, *, today: date | None = None) -> dict[str, Any]:
    """Plain data of the answer; `today` is what the age of a price counts from."""
    return {"schema": SCHEMA, **plain(filled_in(answer, today))}


def filled_in(answer: Answer, today: date | None) -> Answer:
    """An answer with what depends on the day and on the tables of options.

    Where a search found the plan its changes are no options: asked again with one it would find another plan.
    """
    table = table_of(answer.COMMAND)
    changes = answer.changes if answer.found else tuple(applied(change, table) for change in answer.changes)
    cost = answer.cost and replace(answer.cost, age_days=age_days(answer.cost.price, today))
    return replace(answer, changes=changes, cost=cost)


def applied(change: Change, table: Mapping[str, Option]) -> Change:
    """A change with the options to put into a question, where it is made of such."""
    return replace(change, apply=applied_in(change.change, table))


def to_json(answer: Answer, *, today: date | None = None) -> str:
    """The document as text; twenty times as fast as json.dumps writes it with an indent."""
    return format_json(encode(document(answer, today=today)), indent=1).decode()


SCHEMA: Final = 1
SCALARS: Final = frozenset({int, float, bool, str})
"""What stands in JSON as it is."""


class Key(Struct, frozen=True):
    """One key of a noun's JSON."""

    name: str
    path: tuple[str, ...]  # of attributes, to what it shows
    is_shown: bool  # where it is a default, too
    default: Any  # of the first of them


@cache
def keys_of(kind: type[Noun]) -> tuple[Key, ...]:
    """The keys of a noun in order."""
    names = {field.name: field.encode_name for field in fields(kind)}
    declared = (one for name in kind.KEYS or (...,) for one in (names if name is ... else (name,)))
    pairs = ((names.get(one, one), one) if isinstance(one, str) else one for one in declared)
    return tuple(_key(kind, name, *path.split(".")) for name, path in pairs)


def _key(kind: type[Noun], name: str, *path: str) -> Key:
    return Key(name, path, name in kind.SHOWN, defaults_of(kind).get(path[0], NODEFAULT))


@cache
def defaults_of(kind: type[object]) -> dict[str, Any]:
    """What fields of a noun hold where nothing else is said."""
    return {
        field.name: field.default if field.default_factory is NODEFAULT else field.default_factory()
        for field in (fields(kind) if issubclass(kind, Noun) else ())
    }


def plain(value: Any, say: Callable[[Noun], Any] | None = None) -> Any:
    """What stands in JSON for a noun, or for what holds nouns; what is not known is absent.

    `say`: what stands for nouns that are worded, None for the others.
    """
    if isinstance(value, Noun):
        said = say(value) if say else None
        if said is None and (value.KEYS or say):
            return {name: one if type(one) in SCALARS else plain(one, say) for name, one in _present(value)}
        return to_builtins(value, enc_hook=text_of) if said is None else said
    if isinstance(value, dict) and say:
        return {name: plain(one, say) for name, one in value.items()}
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], Noun) and (say or value[0].KEYS):
        return [plain(one, say) for one in value]
    return to_builtins(value, enc_hook=text_of)


def _present(noun: Noun) -> Iterator[tuple[str, Any]]:
    for key in keys_of(type(noun)):
        shown, default = getattr(noun, key.path[0]), key.default
        for name in key.path[1:]:
            if shown is not None:
                shown, default = getattr(shown, name), defaults_of(shown.__class__).get(name, NODEFAULT)
        if shown is not None and (key.is_shown or shown != default):
            yield key.name, shown


def noun_json(noun: Noun) -> str:
    """A noun's own document; what is not known is absent."""
    return as_text({"schema": SCHEMA, **plain(noun)})


def as_text(document: Any) -> str:
    """A document as it is printed; nouns in it write themselves."""
    return json.dumps(document, indent=1, ensure_ascii=False, default=plain)
