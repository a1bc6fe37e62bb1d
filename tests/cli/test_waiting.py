"""A search on a terminal says how far it is, and leaves nothing behind."""

import io
import sys

import pytest

from vramcast.cli import shared as module
from vramcast.cli.shared import ERASE, waiting
from vramcast.report.messages import Words


class Terminal(io.StringIO):
    """An error stream that somebody watches."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_the_count_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    with waiting(Words("en")) as progress:
        assert progress is not None
        progress(1234567)
    assert "1,234,567 plans" in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASE)
