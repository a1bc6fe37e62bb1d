"""The verdict in words and in tones: one line, one word and one colour for every surface.

The words are those of `domain.verdict.Fit`; when each is said stands there. Tones are names of colours in style sheets
of reports, notebooks and the page; a terminal's colours stand in `cli.shared`.

What a job costs, as lines of a report; the age of a price is shown wherever the price is.

The stages of a step of post-training: the card's sum, and what torch counts in each of its processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Final

from vramcast.domain.answer import Answer, LedgerEntry, PostTrainingAnswer, RankAnswer, ServeAnswer
from vramcast.domain.calibration import ALLOCATOR
from vramcast.domain.device import Cost, Price
from vramcast.domain.verdict import Fit
from vramcast.report.columns import table_lines
from vramcast.report.messages import Words
from vramcast.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from vramcast.domain.planning import PlanAnswer

TONES: Final[dict[Fit, str]] = {
    Fit.FITS: "good", Fit.CLOSELY: "good", Fit.MAY_RUN_OUT: "close", Fit.NOT: "bad",
}
"""Verdict -> tone."""

NO_TONE: Final = ""


def word_of(fit: Fit, words: Words) -> str:
    return words(f"verdict.{fit}")


def headline(answer: Answer, words: Words, *, per_gpu: bool = True) -> str:
    """The first line of an answer whose memory or load decides: the verdict, what is needed of what there is.

    `per_gpu`: whether the sizes are those of one of several cards.
    """
    needed, capacity, fit = answer.fullest.needed_bytes, answer.capacity_bytes, answer.verdict
    if answer.shortfall and needed <= capacity:
        return words("verdict.line", verdict=word_of(fit, words), reason=words.said(answer.shortfall))
    key = {Fit.FITS: "within", Fit.NOT: "beyond"}.get(fit, "close")
    reason = words(
        f"verdict.{key}{'.per_gpu' if per_gpu else ''}", needed=format_bytes(needed), capacity=format_bytes(capacity),
        high=format_bytes(answer.high_bytes), excess=format_bytes(needed - capacity),
    )
    return words("verdict.line", verdict=word_of(fit, words), reason=reason)


def tone_of(answer: Answer | PlanAnswer) -> str:
    """The tone of an answer; of a search that of its best plan, none where nothing was searched."""
    if isinstance(answer, Answer):
        return TONES[answer.verdict]
    if not answer.num_plans:
        return NO_TONE
    return TONES[answer.plans[0].verdict if answer.plans else Fit.NOT]


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


STAGES: Final = ("init", "engine_start", "update_weights", "generate", "reward", "old_log_prob", "ref_log_prob",
                 "values", "update_critic", "update_actor")
"""In the order in which they first run."""


def stage_rows(answer: PostTrainingAnswer, words: Words) -> list[tuple[str, ...]]:
    """A head, and a row for every stage. Cards have a ledger, processes none; where trainer and engine have cards of
    their own each stage is on one kind."""
    on_card = {name: peak for rank in answer.ranks if rank.ledger for name, peak in rank.phases.items()}
    processes = [rank for rank in answer.ranks if not rank.ledger]
    seconds = answer.time.seconds if answer.time is not None else {}
    rows = [("", *(words(f"process.{name}") for name in ("card", *(one.role for one in processes))), "")]
    for name in sorted(on_card, key=STAGES.index):
        counted = (one.phases.get(name) for one in processes)
        rows.append((
            words(f"phase.{name}"), format_bytes(on_card[name].device_bytes),
            *("" if own is None else f"{format_bytes(own.allocated_bytes)} / {format_bytes(own.reserved_bytes)}"
              for own in counted),
            format_seconds(seconds[name]) if name in seconds else "",
        ))
    return rows


def stage_lines(answer: PostTrainingAnswer, words: Words) -> Iterator[str]:
    """The same as a table of text."""
    rows = stage_rows(answer, words)
    yield from table_lines(rows, right=frozenset(range(1, len(rows[0]))))


def what_fills(rank: RankAnswer, words: Words) -> str:
    """The largest entry at the peak; or the phase that allocates more, where most of that is what it left reserved."""
    largest = rank.ledger[0]
    most = max(rank.phases, key=lambda name: rank.phases[name].allocated_bytes)
    allocated = rank.phases[most].allocated_bytes
    if largest.path.startswith(f"{ALLOCATOR}/") and allocated > rank.peak.allocated_bytes + largest.num_bytes // 2:
        return words("phase_leaves", phase=words(f"phase.{most}"), size=format_bytes(allocated))
    return words("largest", path=_path_of(largest, words), size=format_bytes(largest.num_bytes))


def _path_of(entry: LedgerEntry, words: Words) -> str:
    if words.language == "en":
        return entry.path
    return entry.path.replace(entry.category, words(f"category.{entry.category}"), 1)
