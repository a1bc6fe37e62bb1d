"""The shared tables of a snapshot while it is read: stacks, pools and labels, each value kept once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vramcast.domain.snapshot import DEFAULT_POOL, Action, Annotation, Frame, PoolId, Trace
from vramcast.errors import Note
from vramcast.sources.snapshots.streams import (
    LARGEST_ADDRESS,
    LARGEST_SIZE,
    LONGEST_TEXT,
    MOST_EVENTS,
    MOST_VALUES,
    Damaged,
)

ACTIONS: Final[Mapping[str, Action]] = {action.name.lower(): action for action in Action}
NO_CONTEXT: Final = "N/A"  # what torch writes as compile_context outside compiled regions
USER_DEFINED: Final = "user_defined"
_LARGEST_LINE: Final = 2**31


class StackIndex(int):
    """A stack that was read already, as a value among plain ones."""


class Tables:
    """Stacks, pools and labels of one recording, and what had to be left out of it."""

    def __init__(self, most_values: int = MOST_VALUES) -> None:
        """Empty tables: index 0 is the empty stack, the default pool and no label.

        Args:
            most_values: that may be held at once beside the events
        """
        self.stacks: list[tuple[Frame, ...]] = [()]
        self.pools: list[PoolId] = [DEFAULT_POOL]
        self.labels: list[str] = [""]
        self.left_out: dict[str, int] = {}
        self.marks: list[Annotation] = []  # what the program recorded itself; `device` is the number of the trace
        self.events = 0
        self.most_values = self.room = most_values
        self._frames: dict[Frame, Frame] = {}
        self._stack_of: dict[tuple[Frame, ...], StackIndex] = {(): StackIndex(0)}
        self._pool_of: dict[PoolId, int] = {DEFAULT_POOL: 0}
        self._label_of: dict[str, int] = {"": 0}

    def spend(self, amount: int) -> None:
        """Take from what may be held at once."""
        self.room -= amount
        if self.room < 0:
            most = f"{self.most_values:,}"
            raise Damaged("it holds more than {} values beside its events; no allocator writes that many", most)

    def count_events(self, count: int) -> None:
        """So many events were added to columns."""
        self.events += count
        if self.events > MOST_EVENTS:
            raise Damaged("it holds more than {:,} events; record with a smaller max_entries", MOST_EVENTS)

    def stack(self, frames: object) -> StackIndex:
        """The index of a list of frame dicts."""
        if isinstance(frames, StackIndex):
            return frames
        if frames is None:
            return StackIndex(0)
        if not isinstance(frames, list | tuple):
            raise Damaged("frames must be a list, not {}", _kind(frames))
        return self.stack_of(tuple(self.frame(frame) for frame in frames))

    def stack_of(self, frames: tuple[Frame, ...]) -> StackIndex:
        """The index of a stack, innermost frame first."""
        found = self._stack_of.get(frames)
        if found is None:
            self.spend(8 + len(frames))
            found = self._stack_of[frames] = StackIndex(len(self.stacks))
            self.stacks.append(frames)
        return found

    def frame(self, value: object) -> Frame:
        """A frame dict as the one Frame of its content."""
        if not isinstance(value, dict):
            raise Damaged("a frame must be a dict, not {}", _kind(value))
        name, filename, line = value.get("name", ""), value.get("filename", ""), value.get("line", 0)
        if not (isinstance(name, str) and isinstance(filename, str)):
            raise Damaged("name and filename of a frame must be texts")
        if line is None or type(line) is not int or not 0 <= line < _LARGEST_LINE:
            line = 0  # code without lines
        frame = Frame(name, filename, line)
        found = self._frames.get(frame)
        if found is None:
            self.spend(16)
            self._frames[frame] = found = frame
        return found

    def pool(self, value: object) -> int:
        """The index of a pool id."""
        if value is None:
            return 0
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise Damaged("a pool id must be a pair of integers")
        pool = (integer(value[0], "a pool id"), integer(value[1], "a pool id"))
        found = self._pool_of.get(pool)
        if found is None:
            self.spend(8)
            found = self._pool_of[pool] = len(self.pools)
            self.pools.append(pool)
        return found

    def label(self, texts: Iterable[object]) -> int:
        """The index of the first of these that says something: category, metadata, compile context."""
        for text in texts:
            if text is None or text in ("", NO_CONTEXT):
                continue
            if not isinstance(text, str):
                raise Damaged("category, user_metadata and compile_context must be texts, not {}", _kind(text))
            found = self._label_of.get(text)
            if found is None:
                self.spend(8 + len(text) // 8)
                found = self._label_of[text] = len(self.labels)
                self.labels.append(text)
            return found
        return 0

    def add(self, trace: Trace, event: Mapping[str, Any], *, number: int = 0) -> None:
        """One event as the dict that torch writes."""
        name = event.get("action")
        action = ACTIONS.get(name) if isinstance(name, str) else None
        if action is None:
            self._leave_out(name, event, number)
            return
        place = event.get("device_free", 0) if action is Action.OOM else event.get("addr", 0)
        address = integer(place, "addr", most=LARGEST_ADDRESS)
        size = integer(event.get("size", 0), "size")
        trace.add(
            action, address, size, stream=integer(event.get("stream", 0), "stream", most=LARGEST_ADDRESS),
            time_us=integer(event.get("time_us", 0), "time_us", least=-LARGEST_SIZE),
            stack=self.stack(event.get("frames")), pool=self.pool(event.get("pool_id")),
            label=self.label((event.get("category"), event.get("user_metadata"), event.get("compile_context"))),
        )
        self.count_events(1)

    def _leave_out(self, name: object, event: Mapping[str, Any], number: int) -> None:
        if not isinstance(name, str):
            raise Damaged("an event has no action")
        if name == USER_DEFINED:
            text = event.get("user_metadata")
            time_us = integer(event.get("time_us", 0), "time_us", least=-LARGEST_SIZE)
            self.spend(8)
            name = text if isinstance(text, str) and text else USER_DEFINED
            self.marks.append(Annotation(name, number, time_us, time_us))
            return
        shown = name[:40]
        if shown not in self.left_out:
            self.spend(8)
        self.left_out[shown] = self.left_out.get(shown, 0) + 1

    def remarks(self) -> tuple[str, ...]:
        """What was left out, a sentence each."""
        known = sorted(self.left_out.items())[:20]
        return tuple(Note("{:,} events of the unknown action {!r} were left out", count, name) for name, count in known)


def integer(value: object, name: str, *, least: int = 0, most: int = LARGEST_SIZE) -> int:
    """The value, held against its range.

    Raises: Damaged
    """
    if type(value) is not int:
        raise Damaged("{} must be an integer, not {}", name, _kind(value))
    if not least <= value <= most:
        raise Damaged("{} is out of range: {}; it must be from {} to {}", name, _shown(value), least, most)
    return value


def text(value: object, name: str) -> str:
    """The value, if it is a text of bearable length.

    Raises: Damaged
    """
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise Damaged(Note("{} must be a text, not {}", name, _kind(value)))
    return value


def rows(value: object, name: str) -> Sequence[Any]:
    """The value, if it is a list.

    Raises: Damaged
    """
    if not isinstance(value, list | tuple):
        raise Damaged("{} must be a list, not {}", name, _kind(value))
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _shown(value: int) -> str:
    return str(value) if value.bit_length() <= 80 else f"a number of {value.bit_length():,} bits"
