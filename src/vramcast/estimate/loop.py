"""When a process has answered enough questions for the compiled loop of the allocator to pay.

numba takes a third of a second to import, and once a machine some seconds to compile: more than one question costs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from vramcast.allocator.gaps import Run

PATIENCE: Final = 8_000_000
"""Events that a process plays interpreted first, four seconds of work: no single question has so many [count]."""


class Loop:
    """The compiled loop, from where it is loaded."""

    def __init__(self) -> None:
        """Not loaded."""
        self.marks: Callable[..., list[tuple[int, int]]] | None = None
        self._patience = PATIENCE

    def load(self) -> bool:
        """Load it now; whether numba is there (the extra `fast`)."""
        if self.marks is None and find_spec("numba") is not None:
            marks = import_module("vramcast.allocator.compiled").marks
            marks(Run([(1, "")], [(0,)], [0]), expands=False, capacity_bytes=None)  # the first run compiles it
            self.marks = marks
        return self.marks is not None

    def waited(self, num_events: int) -> None:
        """So many events were played without it, which may have been the last ones."""
        if self._patience > 0:
            self._patience -= num_events
            if self._patience <= 0:
                self.load()


LOOP: Final = Loop()
"""Of this process."""
