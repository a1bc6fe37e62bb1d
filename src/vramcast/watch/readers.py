"""Readers of cards: what they have in common, which of them this machine has, and the patience each is given.

A card that has fallen off the bus can make its driver or its tool hang. So each reader works in a thread of its own:
one that does not answer in time is said, and the others go on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Final, Protocol, Self

from vramcast.domain.observation import Card, Event, EventKind, GpuSample, Reading, Vendor
from vramcast.errors import SourceError, UnknownName, joined
from vramcast.watch import tool
from vramcast.watch.holders import Holders

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


class ToolReader:
    """Cards that a vendor's tool shows; nothing is held between readings."""

    vendor: Vendor
    brand = ""  # as sentences name the cards
    tools: tuple[str, ...] = ()  # the first that is installed is asked

    def __init__(self, name: str, holders: Holders) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._holders = holders
        self.cards: tuple[Card, ...] = tuple(sample.card for sample in self.read(0.0).gpus)
        self.watched = frozenset(card.uuid for card in self.cards)

    @classmethod
    def open(cls, holders: Holders) -> Self:
        """Raises: Absent where there is no tool, SourceError where it does not work."""
        name = next((name for name in cls.tools if tool.found(name)), None)
        if name is None:
            none = f"neither {' nor '.join(cls.tools)} is" if len(cls.tools) > 1 else f"{cls.tools[0]} is not"
            raise Absent("{}: {} installed", cls.brand, none)
        try:
            return cls(name, holders)
        except SourceError as error:
            raise SourceError("{}: {}", cls.brand, error) from None

    def read(self, time_s: float) -> Reading:
        """The cards now. Raises SourceError where the tool fails."""
        return Reading(time_s=time_s, gpus=tuple(self.samples(time_s)))

    def samples(self, time_s: float) -> Iterable[GpuSample]:
        """Each card."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


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


READERS: Final[dict[str, tuple[str, str]]] = {
    "nvidia": ("vramcast.watch.nvml", "NvmlReader"),
    "amd": ("vramcast.watch.tables", "RocmReader"),
    "huawei": ("vramcast.watch.tables", "AscendReader"),
    "mthreads": ("vramcast.watch.tables", "MusaReader"),
}
"""Vendor -> module and class of its reader."""


def opened(vendors: Iterable[str] = (), holders: Holders | None = None) -> tuple[list[Reader], list[str]]:
    """The readers that work here, and what is wrong with those that should.

    Raises: SourceError, one sentence for each vendor, where none works.
    """
    holders = holders or Holders()
    readers: list[Reader] = []
    absent: list[str] = []
    broken: list[str] = []
    for vendor in tuple(vendors) or READERS:
        try:
            readers.append(_opener(vendor)(holders))
        except Absent as error:
            absent.append(str(error))
        except SourceError as error:
            broken.append(str(error))
    if not readers:
        raise SourceError("no GPU can be read here. {}", joined("; ", broken or absent))
    return readers, broken


def chosen(readers: Sequence[Reader], names: Sequence[str]) -> None:
    """Watch only the named cards: by index, or by uuid or its beginning.

    Raises: UnknownName where no card, and SourceError where several, are called so.
    """
    if not names:
        return
    cards = [card for reader in readers for card in reader.cards]
    uuids = {_named(name.strip(), cards).uuid for text in names for name in text.split(",")}
    for reader in readers:
        reader.watched = frozenset(card.uuid for card in reader.cards if card.uuid in uuids)


def _named(name: str, cards: Sequence[Card]) -> Card:
    if name.isdecimal():
        found = [card for card in cards if str(card.index) == name]
    else:
        found = [card for card in cards if name and card.uuid.lower().startswith(name.lower())]
    if not found:
        there = ", ".join(f"{card.index} ({card.model})" for card in cards[:16]) or "none"
        raise UnknownName("no GPU {!r} is here; there is: {}", name[:60], there)
    if len(found) > 1:
        raise SourceError("{} GPUs are called {!r}; name one by its uuid, or choose --vendor", len(found), name[:60])
    return found[0]


def _opener(vendor: str) -> Callable[[Holders], Reader]:
    module, name = READERS[vendor]
    opener: Callable[[Holders], Reader] = getattr(import_module(module), name).open
    return opener
