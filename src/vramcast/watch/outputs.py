"""Where readings go, and what happens when one of those places fails: it is said once, and the watch goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

from vramcast.domain.observation import Reading, RunInfo
from vramcast.errors import SourceError
from vramcast.report.messages import Words
from vramcast.watch.following import Following
from vramcast.watch.record import Recorder


class Output(Protocol):
    """One place that readings go to."""

    name: str

    def write(self, reading: Reading, following: Following) -> None:
        """One reading with its events. Raises OSError or sqlite3.Error where it cannot be written."""

    def close(self) -> None:
        """Finish. Never raises."""


class Recording:
    """`--record`: into a SQLite file."""

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.name = str(path)
        self._recorder = Recorder.open(path, info)

    def write(self, reading: Reading, following: Following) -> None:
        """One transaction."""
        self._recorder.write(reading)

    def close(self) -> None:
        """Fold the log into the file, where there is room."""
        self._recorder.close()


class Kept:
    """An output that may fail: what it missed is counted, and it is tried again with every reading."""

    def __init__(self, output: Output, words: Words, say: Callable[[str], None]) -> None:
        self.name = output.name
        self.failed = False
        self._output = output
        self._words = words
        self._say = say
        self._missed = 0

    def write(self, reading: Reading, following: Following) -> None:
        """One reading; a failure is said the first time, and so is its end."""
        when = clock(reading.time_s)
        try:
            self._output.write(reading, following)
        except BrokenPipeError:
            raise
        except (OSError, sqlite3.Error, SourceError) as error:
            self._missed += 1
            if not self.failed:
                why = getattr(error, "strerror", None) or str(error)
                self._say(self._words("watch.output_failed", name=self.name, when=when, why=why))
            self.failed = True
            return
        if self.failed:
            self._say(self._words("watch.output_back", name=self.name, when=when, missed=f"{self._missed:,}"))
        self.failed, self._missed = False, 0

    def close(self) -> None:
        """Finish."""
        self._output.close()


def clock(time_s: float) -> str:
    """The local time of day."""
    return datetime.fromtimestamp(time_s).strftime("%H:%M:%S")
