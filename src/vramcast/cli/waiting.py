"""How far a search is, on a terminal; nothing where the error stream is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from vramcast.report.messages import Words

EVERY_S: Final = 0.2
"""How often the line is written anew."""

ERASE: Final = "\r\x1b[K"


class Waiting:
    """A line with the number of plans looked at so far."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.begun = self.written = monotonic()

    def __call__(self, num_plans: int) -> None:
        now = monotonic()
        if now - self.written >= EVERY_S:
            self.written = now
            text = self.words("plan.looking", plans=f"{num_plans:,}", seconds=f"{now - self.begun:.0f}")
            sys.stderr.write(ERASE + text)
            sys.stderr.flush()


@contextmanager
def waiting(words: Words) -> Iterator[Waiting | None]:
    """A counter while a search runs, erased behind it; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield Waiting(words)
    finally:
        sys.stderr.write(ERASE)
        sys.stderr.flush()
