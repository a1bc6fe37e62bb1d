"""The live screen, and `--once`: the same picture, printed.

rich draws it, which the package needs anyway; its alternate screen leaves the terminal as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.live import Live

from vramcast.domain.observation import Reading
from vramcast.report.messages import Words
from vramcast.watch.expected import Expected
from vramcast.watch.following import Following
from vramcast.watch.view import View


class Screen:
    """Draws each reading over the last one."""

    name = "screen"

    def __init__(self, head: Sequence[str], words: Words, expected: dict[str, Expected]) -> None:
        self._view = View(head, words, expected)
        self._live = Live(console=self._view.console, screen=True, auto_refresh=False, transient=True)
        self._live.start()

    def write(self, reading: Reading, following: Following) -> None:
        """The screen of one reading."""
        self._view.note(reading, following)
        self._live.update(self._view.drawn(reading, following, self._view.console.height), refresh=True)

    def say(self, text: str) -> None:
        """A sentence among the events: written over the screen it would be lost."""
        self._view.events.append(text)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


class Once:
    """Prints each reading."""

    name = "-"

    def __init__(self, head: Sequence[str], words: Words, expected: dict[str, Expected]) -> None:
        self._view = View(head, words, expected)

    def write(self, reading: Reading, following: Following) -> None:
        """The picture of one reading."""
        self._view.note(reading, following)
        self._view.console.print(self._view.drawn(reading, following, None))

    def close(self) -> None:
        """It is printed already."""
