"""What a pickle wrote before and refers back to by number."""

from __future__ import annotations

from typing import Any

from vramcast.domain.snapshot import Frame
from vramcast.sources.snapshots.opcodes import memo_indices
from vramcast.sources.snapshots.tables import StackIndex, Tables


class Memo:
    """The entries in order, and the stacks that runs of references stand for."""

    def __init__(self, tables: Tables) -> None:
        """Nothing written yet."""
        self.entries: list[Any] = []
        self._tables = tables
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[bytes, StackIndex | None] = {}

    def stack(self, references: bytes) -> StackIndex | None:
        """The stack of a run of references to frames; None where they refer to something else."""
        if references in self._stacks:
            return self._stacks[references]
        frames = [self._frame(index) for index in memo_indices(references)]
        stack = self._tables.stack_of(tuple(frame for frame in frames if frame)) if all(frames) else None
        self._tables.spend(8 + len(references) // 8)
        self._stacks[references] = stack
        return stack

    def _frame(self, index: int) -> Frame | None:
        known = self._frames.get(index)
        if known is not None:
            return known
        value = self.entries[index]
        if type(value) is not dict or "filename" not in value:
            return None
        known = self._frames[index] = self._tables.frame(value)
        return known
