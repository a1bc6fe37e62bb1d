"""The driver as a recording shows it: it gives the addresses that it gave, and has no memory where it had none."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Final

from vramcast.domain.snapshot import Action
from vramcast.errors import OutOfMemory

SegmentEvent = tuple[Action, int, int]
"""(action, address, size [bytes])"""

_GIVEN_BACK: Final = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})
_NOWHERE: Final = 1 << 60
"""Addresses from here on stand for segments that the recording does not have."""


class RecordedDriver:
    """What is left of the segment events between two other events; the allocator's own are held against them."""

    def __init__(self) -> None:
        """No events yet."""
        self.pending: deque[SegmentEvent] = deque()
        self.is_full = False  # nothing beyond what is pending succeeds: the request ran out of memory
        self.matched = 0
        self.surplus = 0
        self._unknown_address = _NOWHERE

    @property
    def gives_back(self) -> bool:
        """Whether memory is returned next."""
        return bool(self.pending) and self.pending[0][0] in _GIVEN_BACK

    @property
    def only_gives_back(self) -> bool:
        """Whether nothing new follows what is returned."""
        return self.gives_back and self.pending[-1][0] in _GIVEN_BACK

    @property
    def given_back(self) -> list[int]:
        """Addresses of the segments that are returned before anything else happens, in order."""
        return [address for _, address, _ in takewhile(lambda event: event[0] == Action.SEGMENT_FREE, self.pending)]

    def skip_given_back(self) -> None:
        """Pass over what the recording returned and the simulation does not hold."""
        while self.gives_back:
            self.pending.popleft()

    def allocate(self, size_bytes: int) -> int:
        """The recorded address of a segment of this size."""
        self._check()
        if self.pending and self.pending[0][::2] == (Action.SEGMENT_ALLOC, size_bytes):
            return self.pending[0][1]
        return self._elsewhere(size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """Where the recording maps the first page of a new range."""
        self._check()
        if self.pending and self.pending[0][0] == Action.SEGMENT_MAP:
            return self.pending[0][1]
        return self._elsewhere(size_bytes)

    def map(self, address: int, size_bytes: int) -> None:
        """Pages exist where the recording mapped any."""
        self._check()

    def _check(self) -> None:
        # The real device was full here: the cache was given back first.
        if self.gives_back or (self.is_full and not self.pending):
            raise OutOfMemory("the device was full at this point of the recording")

    def _elsewhere(self, size_bytes: int) -> int:
        self._unknown_address += size_bytes
        return self._unknown_address

    def compare(self, action: str, address: int, size_bytes: int) -> None:
        """Hold an event of the simulated allocator against the next recorded one."""
        if self.pending and self.pending[0] == (Action[action.upper()], address, size_bytes):
            self.pending.popleft()
            self.matched += 1
        else:
            self.surplus += 1
