"""The answer to a question without cards, as a table and as JSON."""

from __future__ import annotations

from datetime import date

from msgspec.structs import replace

from vramcast.domain.planning import Choice, Choices
from vramcast.report.columns import table_lines
from vramcast.report.document import noun_json
from vramcast.report.messages import Words
from vramcast.report.sentences import age_days, money, word_of
from vramcast.units import format_bytes


def render(found: Choices, words: Words) -> str:
    """One line per kind of card, the least memory first."""
    first = found.choices[0]
    key = "choices.fit" if found.fits else "choices.none"
    lines = [words(key, model=found.model, gpus=first.gpus), ""]
    titles = ("choices.needs", "choices.usable", "choices.speed", "choices.price")
    head = ("--gpus", "", *map(words, titles), "")
    rows = [head, *(_row(choice, words) for choice in found.choices)]
    lines += table_lines(rows, right=frozenset({2, 3, 4, 5}), folded=len(rows[0]) - 1)
    lines += ["", words("choices.more", gpus=first.gpus)]
    return "\n".join(lines) + "\n"


def _row(choice: Choice, words: Words) -> tuple[str, ...]:
    answer, offer = choice.answer, choice.offer
    rate = answer.tokens_per_s
    return (
        choice.gpus, word_of(answer.verdict, words), format_bytes(answer.fullest.needed_bytes),
        format_bytes(answer.capacity_bytes), "" if rate is None else words("plan.speed", rate=f"{rate:,.0f}"),
        "" if offer is None else money(offer.price.per_hour, offer.price.currency),
        "" if offer is None else f"{offer.instance} {offer.price.date}",
    )


def to_json(found: Choices, *, today: date) -> str:
    """The same as a document: what is not known is absent."""
    choices = tuple(
        replace(one, offer=one.offer and replace(one.offer, age_days=age_days(one.offer.price, today)))
        for one in found.choices
    )
    return noun_json(replace(found, choices=choices))
