"""What was running on each thread of a profiler trace, and so the stack of anything that happened there."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final

from vramcast.domain.snapshot import Frame
from vramcast.sources.snapshots.limits import MOST_EVENTS
from vramcast.sources.snapshots.tables import Damaged, Tables

DEEPEST_STACK: Final = 512
_PYTHON: Final = re.compile(r"(.{1,1000}?)\((\d{1,9})\): (.*)", re.DOTALL)


class Spans:
    """Spans of all threads, a column a field."""

    def __init__(self, tables: Tables) -> None:
        """None yet."""
        self._tables = tables
        self._threads: dict[tuple[object, object], int] = {}
        self._starts: list[array[float]] = []
        self._ends: list[array[float]] = []
        self._frames: list[array[int]] = []
        self._names: dict[str, int] = {}
        self._frame_of: list[Frame] = []
        self._count = 0

    def thread(self, process: object, thread: object) -> int:
        """The index of a thread."""
        found = self._threads.get((process, thread))
        if found is None:
            self._tables.spend(64)
            found = self._threads[process, thread] = len(self._threads)
            self._starts.append(array("d"))
            self._ends.append(array("d"))
            self._frames.append(array("I"))
        return found

    def add(self, thread: int, name: str, start_us: float, end_us: float) -> None:
        """Something ran on a thread from start to end."""
        self._count += 1
        if self._count > MOST_EVENTS:
            raise Damaged(f"the trace has more than {MOST_EVENTS:,} operators; profile fewer steps")
        index = self._names.get(name)
        if index is None:
            self._tables.spend(16 + len(name) // 4)
            index = self._names[name] = len(self._names)
            self._frame_of.append(_frame(name))
        self._starts[thread].append(start_us)
        self._ends[thread].append(end_us)
        self._frames[thread].append(index)

    def stacks(self, order: Sequence[int], times: Sequence[float], threads: Sequence[int]) -> array[int]:
        """The stack that each event happened in, innermost first.

        Args:
            order: indices of the events by time
            times: of the events [us]
            threads: of the events
        """
        found = array("I", bytes(4 * len(times)))
        by_thread: dict[int, list[int]] = {}
        for index in order:
            by_thread.setdefault(threads[index], []).append(index)
        for thread, indices in by_thread.items():
            self._sweep(thread, indices, times, found)
        return found

    def _sweep(self, thread: int, indices: list[int], times: Sequence[float], found: array[int]) -> None:
        starts, ends, frames = self._starts[thread], self._ends[thread], self._frames[thread]
        spans = sorted(range(len(starts)), key=lambda span: (starts[span], -ends[span]))
        running: list[int] = []
        reached, stack = 0, 0
        for index in indices:
            time, changed = times[index], False
            while reached < len(spans) and starts[spans[reached]] <= time:
                span = spans[reached]
                while running and ends[running[-1]] <= starts[span]:
                    running.pop()
                running.append(span)
                reached, changed = reached + 1, True
            while running and ends[running[-1]] < time:
                running.pop()
                changed = True
            if changed:
                inner = running[: -DEEPEST_STACK - 1 : -1]
                stack = self._tables.stack_of(tuple(self._frame_of[frames[span]] for span in inner))
            found[index] = stack


def _frame(name: str) -> Frame:
    """Python functions are named "train.py(12): forward"."""
    python = _PYTHON.fullmatch(name)
    return Frame(python[3], python[1], min(int(python[2]), 2**31 - 1)) if python else Frame(name, "", 0)
