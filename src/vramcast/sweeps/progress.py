"""How far a sweep is, on the error stream: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from vramcast.report.messages import Words

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

LINE_SECONDS: Final = 5.0
"""Time between two plain lines."""


class Pace:
    """Answers per second since the start, and what is left at that pace."""

    def __init__(self, done: int, total: int) -> None:
        self.before, self.done, self.total = done, done, total
        self._start = time.monotonic()

    @property
    def rate(self) -> float:
        """Questions per second of this run; 0 before the first."""
        return (self.done - self.before) / max(time.monotonic() - self._start, 1e-9)

    def text(self, words: Words) -> str:
        """One line."""
        rate = self.rate
        left = clock((self.total - self.done) / rate) if rate else "?"
        return words("sweep_progress", done=f"{self.done:,}", total=f"{self.total:,}", rate=f"{rate:,.0f}", left=left)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725)
    '1:02:05'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class PlainProgress:
    """A line at the beginning, at the end and every few seconds."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def begin(self, done: int, total: int) -> None:
        """So many answers were there already."""
        self._pace = Pace(done, total)
        self._said = time.monotonic()
        if done:
            print(self._words("sweep_resumed", done=f"{done:,}", total=f"{total:,}"), file=sys.stderr, flush=True)

    def advance(self, count: int) -> None:
        """More answers have come."""
        self._pace.done += count
        if time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            print(self._pace.text(self._words), file=sys.stderr, flush=True)

    def end(self) -> None:
        """No more will come."""
        print(self._pace.text(self._words), file=sys.stderr, flush=True)


class BarProgress:
    """A bar that is drawn in place."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def begin(self, done: int, total: int) -> None:
        """So many answers were there already."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace = Pace(done, total)
        self._bar: Bar = Progress(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True))
        self._task: TaskID = self._bar.add_task(self._pace.text(self._words), total=total, completed=done)
        self._bar.start()

    def advance(self, count: int) -> None:
        """More answers have come."""
        self._pace.done += count
        self._bar.update(self._task, completed=self._pace.done, description=self._pace.text(self._words))

    def end(self) -> None:
        """No more will come."""
        self._bar.stop()
