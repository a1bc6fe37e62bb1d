"""What all readers of cards have in common, and the patience that one of them is given.

A card that has fallen off the bus can make its driver or its tool hang. So each reader works in a thread of its own:
one that does not answer in time is said, and the others go on.
"""

from __future__ import annotations

import queue
import threading
from typing import Final, Protocol

from vramcast.domain.observation import Card, Event, EventKind, Reading, Vendor
from vramcast.errors import SourceError

PATIENCE_S: Final = 10.0
"""How long a reader may take before it is said not to answer."""


class Absent(SourceError):
    """Nothing of this vendor is installed here: no error where another vendor's cards are."""


class Reader(Protocol):
    """One vendor's cards."""

    vendor: Vendor
    cards: tuple[Card, ...]  # all of the machine, those that answer
    versions: dict[str, str]  # "driver", "nvml" ...
    watched: frozenset[str]  # uuids to read

    def read(self, time_s: float) -> Reading:
        """The watched cards now. Raises SourceError where none can be read."""

    def close(self) -> None:
        """Let go of driver or tool."""


class Patient:
    """A reader that is given a limited time."""

    def __init__(self, reader: Reader, limit_s: float = PATIENCE_S) -> None:
        self.reader = reader
        self.limit_s = limit_s
        self.failed = ""  # why it does not answer at present
        self._wanted: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Reading | Exception] = queue.SimpleQueue()
        self._busy = False
        threading.Thread(target=self._work, daemon=True, name=f"{reader.vendor} reader").start()

    def read(self, time_s: float) -> Reading:
        """The cards now; where there is no answer in time, no cards and, the first time, an event that says why."""
        if not self._busy:
            self._wanted.put(time_s)
            self._busy = True
        try:
            answer = self._answers.get(timeout=0.001 if self.failed else self.limit_s)
        except queue.Empty:
            return self._nothing(time_s, f"no answer within {self.limit_s:g} s")
        self._busy = False
        if isinstance(answer, SourceError):
            return self._nothing(time_s, str(answer))
        if isinstance(answer, Exception):
            raise answer
        if not self.failed:
            return answer
        back = Event(time_s=time_s, kind=EventKind.READER_BACK, text=f"{self.reader.vendor}: answers again")
        self.failed = ""
        return Reading(time_s=answer.time_s, gpus=answer.gpus, events=(back, *answer.events))

    def close(self) -> None:
        """Let go of the reader, unless it hangs."""
        if not self._busy:
            self._wanted.put(None)
            self.reader.close()

    def _nothing(self, time_s: float, why: str) -> Reading:
        if self.failed:
            return Reading(time_s=time_s, gpus=())
        self.failed = why
        event = Event(time_s=time_s, kind=EventKind.READER_FAILED, text=f"{self.reader.vendor}: {why}")
        return Reading(time_s=time_s, gpus=(), events=(event,))

    def _work(self) -> None:
        while (time_s := self._wanted.get()) is not None:
            try:
                self._answers.put(self.reader.read(time_s))
            except Exception as error:  # handed over: the watching thread decides
                self._answers.put(error)
