"""Answers with what they say in the language of a report: the layers that make them speak English alone.

Figures, options and names of modules stay as they are, and an English report is about the answer itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

from msgspec.structs import replace

from vramcast.domain.answer import Answer, Change, Found, RankAnswer, ServeAnswer, Tried
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.traced import TraceAnswer
from vramcast.report.chinese import name_in_chinese, terms
from vramcast.report.messages import Words

AnswerT = TypeVar("AnswerT", bound=Answer | PlanAnswer)
OneT = TypeVar("OneT", bound=Answer)
PlanT = TypeVar("PlanT", bound=PlanAnswer)


def spoken(answer: AnswerT, words: Words) -> AnswerT:
    """An answer, or that of a search, in the language of a report that is not English."""
    if isinstance(answer, PlanAnswer):
        return cast(AnswerT, _plans(answer, words))
    return cast(AnswerT, _one(answer, words))


def _one(answer: OneT, words: Words) -> OneT:
    """What was assumed and warned of, why it does not fit, names, formulas and sources."""
    found = replace(
        answer,
        ranks=tuple(_rank(rank, words) for rank in answer.ranks),
        ignored=_said(answer.ignored, words),
        cautions=_said(answer.cautions, words),
        assumptions=_said(answer.assumptions, words),
        warnings=_said(answer.warnings, words),
        changes=tuple(_change(change, words) for change in answer.changes),
        found=None if answer.found is None else _found(answer.found, words),
    )
    time = answer.time
    if time is not None:
        said = replace(time, sources=_said(time.sources, words), assumptions=_said(time.assumptions, words))
        found = replace(found, time=said)
    if isinstance(found, ServeAnswer):
        return cast(OneT, _serving(found, words))
    if isinstance(found, TraceAnswer):
        said_so = {"stopped": words.said(found.stopped), "interval_basis": words.said(found.interval_basis)}
        return cast(OneT, replace(found, **said_so))
    return found


def _plans(answer: PlanT, words: Words) -> PlanT:
    """Decisions and techniques have words of their own."""
    nearest, change = answer.nearest_failing, answer.change
    return replace(
        answer,
        plans=tuple(_one(plan, words) for plan in answer.plans),
        nearest_failing=None if nearest is None else _one(nearest, words),
        change=None if change is None else _change(change, words),
        reasons=tuple(replace(reason, text=words.said(reason.text)) for reason in answer.reasons),
        techniques=tuple(replace(row, lacks=words.said(row.lacks)) for row in answer.techniques),
        ignored=_said(answer.ignored, words),
        assumptions=_said(answer.assumptions, words),
        warnings=_said(answer.warnings, words),
    )


def _change(change: Change, words: Words) -> Change:
    """With what it costs; what it takes of main memory stands behind that."""
    head, mark, beside = change.cost.partition("; ")
    costs = terms("cost")
    said = costs.get(change.cost) or costs.get(head, words.said(head)) + mark.replace("; ", "；") + (
        costs.get(beside) or words.said(beside)
    )
    return replace(change, cost=said)


def _said(sentences: Iterable[str], words: Words) -> tuple[str, ...]:
    return tuple(words.said(sentence) for sentence in sentences)


def _rank(rank: RankAnswer, words: Words) -> RankAnswer:
    """Categories stay: they are keys, and reports have words for them."""
    ledger = []
    for entry in rank.ledger:
        category, mark, name = entry.path.partition("/")
        ledger.append(replace(
            entry, path=category + mark + name_in_chinese(name), formula=words.said(entry.formula),
            source=words.said(entry.source),
        ))
    return replace(rank, role=words.said(rank.role), ledger=tuple(ledger))


def _found(found: Found, words: Words) -> Found:
    nearest = found.nearest_failing
    return replace(
        found, what=None if found.what is None else words.said(found.what),
        tried=tuple(_tried(one, words) for one in found.tried),
        nearest_failing=None if nearest is None else _tried(nearest, words),
    )


def _tried(one: Tried, words: Words) -> Tried:
    return replace(one, what=words.said(one.what), reason=words.said(one.reason))


def _serving(answer: ServeAnswer, words: Words) -> ServeAnswer:
    """What an engine counts and prints, too."""
    capacity, speed = answer.capacity, answer.speed
    if capacity is not None:
        counts = {words.said(name): count for name, count in capacity.tokens_by_count.items()}
        capacity = replace(capacity, tokens_by_count=counts)
    if speed is not None:
        speed = replace(speed, sources=_said(speed.sources, words))
    return replace(
        answer, capacity=capacity, speed=speed, shortfall=words.said(answer.shortfall),
        startup={words.said(name): size for name, size in answer.startup.items()},
    )
