"""The stages of a step of post-training: the card's sum, and what torch counts in each of its processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.answer import PostTrainingAnswer
from vramcast.report.columns import table_lines
from vramcast.report.messages import Words
from vramcast.units import format_bytes, format_seconds

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
