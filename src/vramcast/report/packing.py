"""The answer to `vramcast pack`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from vramcast.domain.packing import PackedCard, Packing
from vramcast.report.columns import table_lines
from vramcast.report.messages import Words
from vramcast.report.text import likely
from vramcast.units import format_bytes


def render(found: Packing, words: Words) -> str:
    """What stands on each card, then what found none."""
    placed = {job.name for card in found.cards for job in card.jobs}
    total = len(placed) + len(found.unplaced)
    whole = "pack.one" if total == 1 else "pack.whole"
    key = whole if found.is_whole else "pack.part" if placed else "pack.none"
    lines = [words(key, placed=len(placed), total=total, used=found.used, cards=len(found.cards),
                   risk=f"{found.risk:.3g}" if found.risk < 0.001 else f"{100 * found.risk:.3g} %")]
    if placed and not found.is_least:
        lines.append(f"  {words('pack.not_least')}")
    rows = [row for card in found.cards if card.jobs for row in _rows(card, words)]
    if rows:
        head = ("", *(words(f"pack.{key}") for key in ("needs", "claims", "usable", "runs_out")))
        lines += ["", *table_lines([head, *rows], right=frozenset({1, 2, 3, 4}))]
    lines += [f"  {words('pack.free', gpus=gpus)}" for gpus in _free(found.cards)]
    told = (("pack.unplaced", (f"{one.name}: {words.said(one.why)}" for one in found.unplaced)),
            ("assumed", map(words.said, found.assumptions)), ("warnings", map(words.said, found.warnings)))
    for title, texts in told:
        if body := [f"  - {text}" for text in texts]:
            lines += ["", words(title), *body]
    return "\n".join(lines) + "\n"


def _rows(card: PackedCard, words: Words) -> Iterator[tuple[str, ...]]:
    """A card, then its jobs."""
    assert card.chance_to_run_out is not None
    yield (words("pack.card", index=card.index, gpu=card.gpu), format_bytes(card.needed_bytes),
           format_bytes(card.claimed_bytes), format_bytes(card.capacity_bytes), likely(card.chance_to_run_out))
    for job in card.jobs:
        yield f"  {job.name}", format_bytes(job.needed_bytes), format_bytes(job.claimed_bytes), "", ""


def _free(cards: tuple[PackedCard, ...]) -> Iterator[str]:
    """Cards without a job, those in a row together."""
    free = [card for card in cards if not card.jobs]
    for _, group in groupby(enumerate(free), key=lambda pair: pair[1].index - pair[0]):
        run = [card.index for _, card in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
