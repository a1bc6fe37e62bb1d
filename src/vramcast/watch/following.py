"""What readings amount to over time: history, growth, who came and went, alerts, and what was predicted instead.

[Theil] Theil, Proc. Kon. Ned. Akad. Wet. 53 (1950); [Sen] Sen, JASA 63 (1968): the median of the slopes of all pairs.
[Kendall] Kendall, Biometrika 30 (1938): tau, pairs that rise less pairs that fall, of all pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from vramcast import estimate
from vramcast.domain.model import Noun
from vramcast.domain.observation import Card, Event, EventKind, GpuSample, Holder, ProcessSample, Reading
from vramcast.errors import VramcastError
from vramcast.report.messages import Words, rare_messages
from vramcast.units import GIB, format_bytes

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer, RankAnswer


MOST_POINTS: Final = 60
"""1,770 pairs: half a millisecond."""
STEADY: Final = 0.6
"""tau above which growth counts as steady: a single jump has 0.6 of five or six points, less of more, ten equal steps
0.92."""
FEWEST_POINTS: Final = 5
"""Of four, a single jump in the middle has 0.67."""


class Slope(NamedTuple):
    """Growth over a window."""

    per_s: float
    steadiness: float  # Kendall's tau: 1 always rises, 0 neither, -1 always falls
    span_s: float  # between the first and the last point

    @property
    def rises(self) -> bool:
        """Whether it grows steadily."""
        return self.per_s > 0 and self.steadiness > STEADY


class Window:
    """The last values of one quantity, thinned out to a bounded number."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._points: deque[tuple[float, float]] = deque(maxlen=MOST_POINTS + 1)

    def add(self, time_s: float, value: float) -> None:
        """A value; one that follows the last too closely replaces none and is left out."""
        if not self._points or time_s - self._points[-1][0] >= self.window_s / MOST_POINTS * 0.999:
            self._points.append((time_s, value))
        while time_s - self._points[0][0] > self.window_s:
            self._points.popleft()

    def slope(self) -> Slope | None:
        """Its slope, None with too few points."""
        return slope_of(self._points) if len(self._points) >= FEWEST_POINTS else None


def slope_of(points: Sequence[tuple[float, float]]) -> Slope:
    """Median slope and steadiness of points in the order of time.

    >>> slope_of([(0.0, 0.0), (1.0, 2.0), (2.0, 400.0), (3.0, 6.0)])
    Slope(per_s=2.0, steadiness=0.6666666666666666, span_s=3.0)
    """
    slopes = [(later - earlier) / (end - start) for (start, earlier), (end, later) in combinations(points, 2)]
    tau = sum((slope > 0) - (slope < 0) for slope in slopes) / len(slopes)
    return Slope(median(slopes), tau, points[-1][0] - points[0][0])


LEAK_BYTES_PER_S: Final = GIB / 3600
"""Growth of one process that counts as a leak where nothing else is asked for: 1 GiB an hour, steadily."""
WINDOW_S: Final = 600.0
"""Over so much time growth is judged: longer than the warm-up of a training step."""
CONFIRMED: Final = 2
"""Judgements in a row that raise a leak or end it."""
OVER: Final = 1.1
"""Free memory above the limit, relative to it, at which want of headroom is over."""


class Rules(NamedTuple):
    """What is worth an alert; None: never."""

    headroom_bytes: int | None = None  # free memory of a card below which it is short
    leak_bytes_per_s: float | None = LEAK_BYTES_PER_S
    window_s: float = WINDOW_S


class Latch:
    """Alerts by what they are about, each on or off."""

    def __init__(self, confirmed: int = 1) -> None:
        self.on: set[Hashable] = set()
        self._confirmed = confirmed
        self._streaks: dict[Hashable, int] = {}

    def judge(self, about: Hashable, *, raised: bool, over: bool) -> bool | None:
        """True where the alert begins with this judgement, False where it ends, None where nothing changes."""
        turning = over if about in self.on else raised
        self._streaks[about] = self._streaks.get(about, 0) + 1 if turning else 0
        if self._streaks[about] < self._confirmed:
            return None
        self._streaks[about] = 0
        self.on ^= {about}
        return about in self.on

    def forget(self, about: Hashable) -> bool:
        """Whether an alert was on about something that is no more."""
        self._streaks.pop(about, None)
        was_on = about in self.on
        self.on.discard(about)
        return was_on


FIRST_STEP = "first step"
"""Phase of an answer that ends with the first optimizer step [domain.job.Phase]."""


class Expected(Noun, frozen=True):
    """The prediction for one card: drawn beside what is observed. Sizes are what the driver shows of the process."""

    gpu_uuid: str
    role: str  # of the rank on it: "all", "first stage"
    steady_bytes: int  # peak of a step once optimizer states exist; of serving at full load
    capacity_bytes: int  # what a process can use of the card
    first_step_bytes: int | None = None  # peak of the first step; None where there is no such phase
    interval_bytes: tuple[int, int] | None = None  # 90 % of `steady_bytes`


def expected_of(job: Path, cards: Sequence[Card]) -> tuple[Expected, ...]:
    """The prediction for each card, in the order of the cards.

    The job's ranks are taken to run on these cards, one each; where ranks differ (pipeline stages), each card is
    given the fullest role, because an answer does not say which rank is which.

    Args:
        job: a job file of `vramcast train` or `vramcast serve`
        cards: those that the job uses on this machine

    Raises: VramcastError where the job cannot be predicted
    """
    answer = _answer(job)
    fullest = answer.fullest
    role = fullest.role if len(answer.ranks) == 1 else f"fullest: {fullest.role}"
    return tuple(_expected(card, role, fullest, answer.capacity_bytes) for card in cards)


def _expected(card: Card, role: str, rank: RankAnswer, capacity_bytes: int) -> Expected:
    first = rank.phases.get(FIRST_STEP)
    return Expected(
        gpu_uuid=card.uuid, role=role, steady_bytes=rank.peak.device_bytes, capacity_bytes=capacity_bytes,
        first_step_bytes=None if first is None else first.device_bytes, interval_bytes=rank.interval_bytes,
    )


def _answer(job: Path) -> Answer:
    """The job's answer, as training where its file reads as such, else as serving."""
    from vramcast.api import job_of, serve_answer

    try:
        return estimate.training.answer(job_of({}, file=job), with_changes=False)
    except VramcastError as as_training:
        try:
            return serve_answer({}, file=job, with_changes=False)
        except VramcastError:
            raise as_training from None


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
