"""What readings amount to over time: history, growth, who came and went, and alerts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from vramcast.domain.observation import Card, Event, EventKind, GpuSample, Holder, ProcessSample, Reading
from vramcast.report.messages import Words, rare_messages
from vramcast.units import format_bytes
from vramcast.watch.alerts import CONFIRMED, OVER, Latch, Rules
from vramcast.watch.trend import Slope, Window

HISTORY: Final = 240
"""Readings that the screen's curves go back."""
MOST_NAMES: Final = 4096
"""Processes whose names are remembered after they ended."""
JUDGED_PER_WINDOW: Final = 60
LEAST_SPAN: Final = 0.9
"""Part of the window that must have been seen before growth is called a leak."""

ENGLISH: Final = Words("en")
"""Recordings say what happened in English."""

TREND_SPAN: Final = 0.1
"""Part of the window over which growth must have been seen before it is drawn out into the future."""

Key = tuple[str, int]
"""(uuid of the card, PID)."""


class Followed:
    """One card over time."""

    def __init__(self, card: Card, window_s: float) -> None:
        self.card = card
        self.window_s = window_s
        self.used: deque[int] = deque(maxlen=HISTORY)
        self.last: GpuSample | None = None
        self.lost = ""  # why it does not answer at present
        self.peak_bytes = 0
        self.slope: Slope | None = None
        self._window = Window(window_s)

    def add(self, sample: GpuSample) -> None:
        """One more reading of the card."""
        self.last, self.lost, self.card = sample, "", sample.card
        if sample.memory_used_bytes is not None:
            self.used.append(sample.memory_used_bytes)
            self.peak_bytes = max(self.peak_bytes, sample.memory_used_bytes)
            self._window.add(sample.time_s, sample.memory_used_bytes)
            self.slope = self._window.slope()

    @property
    def runs_out_in_s(self) -> float | None:
        """When its memory will be full at the present rate; None where it does not grow steadily."""
        free = self.last.memory_free_bytes if self.last else None
        if free is None or self.slope is None or not self.slope.rises:
            return None
        if self.slope.span_s < self.window_s * TREND_SPAN:
            return None
        return free / self.slope.per_s


class Following:
    """All cards over time. `follow` adds to each reading the events that come of it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.cards: dict[str, Followed] = {}
        self.growth: dict[Key, Slope] = {}
        self.called: dict[Key, str] = {}
        self.readings = 0
        self.failures = 0
        self.last_time_s: float | None = None
        self._windows: dict[Key, Window] = {}
        self._processes: dict[Key, ProcessSample] = {}
        self._leaks = Latch(CONFIRMED)
        self._short = Latch()
        self._judged_s = float("-inf")

    @property
    def alerts(self) -> dict[EventKind, int]:
        """How many alerts are on at present."""
        return {EventKind.LEAK: len(self._leaks.on), EventKind.HEADROOM: len(self._short.on)}

    def follow(self, reading: Reading) -> Reading:
        """The reading with its events."""
        self.readings += 1
        self.last_time_s = reading.time_s
        self.failures += sum(event.kind is EventKind.READER_FAILED for event in reading.events)
        for event in reading.events:
            if event.kind is EventKind.GPU_LOST and event.gpu_uuid in self.cards:
                self.cards[event.gpu_uuid].lost = event.text
        for sample in reading.gpus:
            uuid = sample.card.uuid
            self.cards.setdefault(uuid, Followed(sample.card, self.rules.window_s)).add(sample)
        events = (*reading.events, *self._came_and_went(reading), *self._headroom(reading), *self._leaking(reading))
        return replace(reading, events=events)

    def _came_and_went(self, reading: Reading) -> Iterator[Event]:
        """Processes that are new on a card that answers, and those that are gone from it."""
        present = {(sample.card.uuid, process.pid): process for sample in reading.gpus for process in sample.processes}
        answering = {sample.card.uuid for sample in reading.gpus if sample.processes_known}
        for key in [key for key in self._processes if key[0] in answering and key not in present]:
            del self._processes[key]
            self._windows.pop(key, None)
            self.growth.pop(key, None)
            self._leaks.forget(key)
            yield self._event(reading, EventKind.PROCESS_ENDED, key)
        for key, process in present.items():
            if len(self.called) > MOST_NAMES:
                self.called.clear()
            self.called[key] = called(process)
            if key not in self._processes and self.readings > 1:
                yield self._event(reading, EventKind.PROCESS_STARTED, key)
            self._processes[key] = process

    def _headroom(self, reading: Reading) -> Iterator[Event]:
        limit = self.rules.headroom_bytes
        for sample in reading.gpus if limit is not None else ():
            free = sample.memory_free_bytes
            if free is None or limit is None:
                continue
            key = (sample.card.uuid, 0)
            began = self._short.judge(key, raised=free < limit, over=free >= limit * OVER)
            numbers = {"free_bytes": free, "limit_bytes": limit}
            if began is not None:
                yield self._event(reading, EventKind.HEADROOM if began else EventKind.HEADROOM_OVER, key, numbers)

    def _leaking(self, reading: Reading) -> Iterator[Event]:
        for sample in reading.gpus:
            for process in sample.processes:
                if process.memory_bytes is not None:
                    key = (sample.card.uuid, process.pid)
                    window = self._windows.setdefault(key, Window(self.rules.window_s))
                    window.add(reading.time_s, process.memory_bytes)
        if reading.time_s - self._judged_s < self.rules.window_s / JUDGED_PER_WINDOW:
            return
        self._judged_s = reading.time_s
        for key, window in self._windows.items():
            slope = window.slope()
            if slope is not None:
                self.growth[key] = slope
                yield from self._judged(reading, key, slope)

    def _judged(self, reading: Reading, key: Key, slope: Slope) -> Iterator[Event]:
        limit = self.rules.leak_bytes_per_s
        if limit is None:
            return
        raised = slope.rises and slope.per_s >= limit and slope.span_s >= self.rules.window_s * LEAST_SPAN
        began = self._leaks.judge(key, raised=raised, over=slope.per_s < limit / 2)
        if began is not None:
            kind = EventKind.LEAK if began else EventKind.LEAK_OVER
            yield self._event(reading, kind, key, {"bytes_per_s": slope.per_s})

    def _event(
        self, reading: Reading, kind: EventKind, key: Key, numbers: Mapping[str, float] | None = None
    ) -> Event:
        plain = Event(
            time_s=reading.time_s, kind=kind, gpu_uuid=key[0], pid=key[1] or None, numbers=dict(numbers or {})
        )
        return replace(plain, text=self.said(plain, ENGLISH))

    def said(self, event: Event, words: Words) -> str:
        """An event as a sentence in a language."""
        followed = self.cards.get(event.gpu_uuid)
        key = f"watch.event.{event.kind}"
        if key not in rare_messages():
            return event.text
        numbers = event.numbers
        return words(
            key, text=event.text, gpu=followed.card.index if followed else "?",
            who=self.called.get((event.gpu_uuid, event.pid or 0), f"PID {event.pid}"),
            free=format_bytes(round(numbers.get("free_bytes", 0))),
            limit=format_bytes(round(numbers.get("limit_bytes", 0))),
            rate=format_bytes(round(numbers.get("bytes_per_s", 0) * 3600)),
        )


def called(process: ProcessSample) -> str:
    """A process by its name and PID, and whether it is dead or out of sight."""
    state = "" if process.holder is Holder.ALIVE else f" ({process.holder})"
    name = f"{process.name}[{process.pid}]" if process.name else f"PID {process.pid}"
    return f"{name}{state}"
