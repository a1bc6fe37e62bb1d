"""The answer to a question without cards, as a table and as JSON."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.choices import Choice, Choices
from vramcast.report.columns import table_lines
from vramcast.report.messages import Words
from vramcast.report.plain import known
from vramcast.report.price import age_days, money
from vramcast.report.verdicts import word_of
from vramcast.units import format_bytes


def render(found: Choices, words: Words) -> str:
    """One line per kind of card, the least memory first."""
    fits = found.choices[0].answer.fits
    first = found.choices[0]
    key = "choices.fit" if fits else "choices.none"
    lines = [words(key, model=found.model, gpus=first.gpus), ""]
    titles = ("choices.needs", "choices.usable", "choices.speed", "choices.price")
    head = ("--gpus", "", *map(words, titles), "")
    rows = [head, *(_row(choice, words) for choice in found.choices)]
    lines += table_lines(rows, right=frozenset({2, 3, 4, 5}), folded=len(rows[0]) - 1)
    lines += ["", words("choices.more", gpus=first.gpus)]
    return "\n".join(lines) + "\n"


def _row(choice: Choice, words: Words) -> tuple[str, ...]:
    answer, price = choice.answer, choice.price
    rate = _tokens_per_s(answer)
    return (
        choice.gpus, word_of(answer.verdict, words), format_bytes(answer.fullest.needed_bytes),
        format_bytes(answer.capacity_bytes), "" if rate is None else words("plan.speed", rate=f"{rate:,.0f}"),
        "" if price is None else money(price.per_hour, price.currency),
        "" if price is None else f"{choice.instance} {price.date}",
    )


def to_json(found: Choices, *, today: date) -> str:
    """The same as a document: what is not known is absent."""
    rows: list[dict[str, Any]] = []
    for choice in found.choices:
        answer, price = choice.answer, choice.price
        rows.append(known({
            "gpus": choice.gpus, "fits": answer.fits, "verdict": str(answer.verdict),
            "needed_bytes": answer.fullest.needed_bytes,
            "capacity_bytes": answer.capacity_bytes, "tokens_per_s": _tokens_per_s(answer),
            "price": None if price is None else known({
                "per_hour": price.per_hour, "currency": price.currency, "instance": choice.instance,
                "region": price.region, "date": price.date, "age_days": age_days(price, today),
            }),
        }))
    fits = found.choices[0].answer.fits
    return json.dumps({"schema": 1, "model": found.model, "fits": fits, "cards": rows}, indent=1, ensure_ascii=False)


def _tokens_per_s(answer: Answer) -> float | None:
    if isinstance(answer, ServeAnswer):
        return answer.speed.tokens_per_s if answer.speed is not None else None
    return answer.time.tokens_per_s if answer.time is not None else None


__all__ = ["render", "to_json"]
