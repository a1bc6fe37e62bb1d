"""Plain lines where there is no terminal: one a card and reading, and one for everything that happens."""

from __future__ import annotations

import sys
from typing import Final

from vramcast.domain.observation import GpuSample, Reading
from vramcast.report.messages import Words
from vramcast.watch import parts
from vramcast.watch.expected import Expected
from vramcast.watch.following import Following
from vramcast.watch.outputs import clock

MOST_NAMED: Final = 3


class Lines:
    """Lines onto standard output."""

    name = "-"

    def __init__(self, words: Words, expected: dict[str, Expected]) -> None:
        self._words = words
        self._expected = expected

    def write(self, reading: Reading, following: Following) -> None:
        """The lines of one reading."""
        when = clock(reading.time_s)
        lines = [f"{when}  {following.said(event, self._words)}" for event in reading.events]
        lines += [f"{when}  {self._line(sample, following)}" for sample in reading.gpus]
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        """Every line is written already."""

    def _line(self, sample: GpuSample, following: Following) -> str:
        words = self._words
        shown = [
            f"GPU {sample.card.index}", parts.memory(sample, words),
            "SM " + parts.share(sample.sm_share) if sample.sm_share is not None else "", parts.power(sample),
            parts.heat(sample),
        ]
        named = [f"{parts.holder(process, words)} {parts.held(process)}" for process in sample.processes[:MOST_NAMED]]
        rest = len(sample.processes) - len(named)
        remarks = parts.remarks(following.cards[sample.card.uuid], self._expected.get(sample.card.uuid), words)
        more = [f"+{rest}"] if rest > 0 else []
        return "  ".join(text for text in (*shown, ", ".join([*named, *more]), "; ".join(remarks)) if text)
