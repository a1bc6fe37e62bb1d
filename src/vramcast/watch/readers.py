"""Which readers there are, and which of them this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Final

from vramcast.domain.observation import Card
from vramcast.errors import SourceError, UnknownName
from vramcast.watch.holders import Holders
from vramcast.watch.reader import Absent, Reader

READERS: Final[dict[str, tuple[str, str]]] = {
    "nvidia": ("vramcast.watch.nvml", "NvmlReader"),
    "amd": ("vramcast.watch.rocm", "RocmReader"),
    "huawei": ("vramcast.watch.ascend", "AscendReader"),
    "mthreads": ("vramcast.watch.musa", "MusaReader"),
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
        raise SourceError("no GPU can be read here. " + "; ".join(broken or absent))
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
        raise UnknownName(f"no GPU {name[:60]!r} is here; there is: {there}")
    if len(found) > 1:
        raise SourceError(f"{len(found)} GPUs are called {name[:60]!r}; name one by its uuid, or choose --vendor")
    return found[0]


def _opener(vendor: str) -> Callable[[Holders], Reader]:
    module, name = READERS[vendor]
    opener: Callable[[Holders], Reader] = getattr(import_module(module), name).open
    return opener
