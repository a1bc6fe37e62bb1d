"""What a job costs, as lines of a report; the age of a price is shown wherever the price is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Final

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.device import Cost, Price
from vramcast.report.messages import Words

FEW_DAYS: Final = 2
"""Runs shorter than that are given in hours [days]."""

MANY_DAYS: Final = 10
"""Runs of at least that are given in whole days [days]."""


def cost_lines(
    cost: Cost | None, words: Words, *, instance: str, today: date | None, generated: bool = False, copies: int = 1
) -> Iterator[str]:
    """Money per hour, then per million tokens (trained, or generated) and per run as far as they are known."""
    if cost is None:
        return
    price = cost.price
    instance = f"{copies} x {instance}" if copies > 1 else instance
    parts = (instance, price.region, words(f"tariff.{price.tariff}"), dated(price, words, today))
    yield words("cost_per_hour", amount=money(cost.per_hour, price.currency), of=", ".join(filter(None, parts)))
    if cost.per_million_tokens is not None:
        key = "cost_per_generated" if generated else "cost_per_tokens"
        yield words(key, amount=money(cost.per_million_tokens, price.currency))
    if cost.per_run is not None and cost.run_hours is not None:
        yield words("cost_per_run", amount=money(cost.per_run, price.currency))


def copies_of(answer: Answer) -> int:
    """Deployments like the answered one that its cost is of."""
    return answer.served.replicas if isinstance(answer, ServeAnswer) and answer.served is not None else 1


def run_length(hours: float, words: Words) -> str:
    """Hours, with days where there are many.

    >>> run_length(3.25, Words("en")), run_length(3240.0, Words("en"))
    ('3.2 hours', '135 days (3,240 hours)')
    """
    days = hours / 24
    if days < FEW_DAYS:
        return words("hours", hours=f"{hours:,.1f}")
    return words("days", days=f"{days:,.0f}" if days >= MANY_DAYS else f"{days:.1f}", hours=f"{hours:,.0f}")


def dated(price: Price, words: Words, today: date | None) -> str:
    """The day a price was read, and how long ago that is."""
    days = age_days(price, today)
    if not price.date:
        return words("price_given")
    return words("price_of", date=price.date) if days is None else words("price_age", date=price.date, days=days)


def age_days(price: Price, today: date | None) -> int | None:
    """Days since a price was read; None where either day is not known."""
    if today is None or not price.date:
        return None
    return max(0, (today - date.fromisoformat(price.date)).days)


def money(amount: float, currency: str) -> str:
    """Two decimals, or four significant digits of small amounts.

    >>> money(1234.5, "USD"), money(0.01234567, "CNY")
    ('1,234.50 USD', '0.01235 CNY')
    """
    return f"{amount:,.2f} {currency}" if amount >= 1 else f"{amount:.4g} {currency}"
