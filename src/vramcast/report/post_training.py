"""The stages of a step of post-training: the card's sum, and what torch counts in each of its processes."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.domain.answer import PostTrainingAnswer
from vramcast.report.columns import table_lines
from vramcast.report.messages import Words
from vramcast.units import format_bytes, format_seconds


def stage_lines(answer: PostTrainingAnswer, words: Words) -> Iterator[str]:
    """A row for every stage, in the order in which they first run."""
    card, *processes = answer.ranks
    seconds = answer.time.seconds if answer.time is not None else {}
    head = ("", words("process.card"), *(words(f"process.{one.role}") for one in processes), "")
    rows = [head]
    for name, peak in card.phases.items():
        counted = (one.phases.get(name) for one in processes)
        rows.append((
            words(f"phase.{name}"), format_bytes(peak.device_bytes),
            *("" if own is None else f"{format_bytes(own.allocated_bytes)} / {format_bytes(own.reserved_bytes)}"
              for own in counted),
            format_seconds(seconds[name]) if name in seconds else "",
        ))
    yield from table_lines(rows, right=frozenset(range(1, len(head))))
