"""The loop of `vramcast watch`: read, follow, put out, wait."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from vramcast.domain.observation import Event, EventKind, Reading
from vramcast.watch.following import Following
from vramcast.watch.outputs import Output
from vramcast.watch.readers import Patient

RAISED = frozenset({EventKind.LEAK, EventKind.HEADROOM, EventKind.GPU_LOST})
"""Events that are alerts."""
MOST_ALERTS = 5
"""So many are told when the watch is over."""


class Pace(NamedTuple):
    """How often, and when it ends."""

    interval_s: float
    duration_s: float | None = None  # None: until interrupted
    rounds: int | None = None  # readings after which it ends
    until_alert: bool = False  # ends with the first alert


def run(readers: Sequence[Patient], following: Following, outputs: Sequence[Output], pace: Pace) -> list[Event]:
    """Watch until the time is over or somebody interrupts it; the last alerts."""
    alerts: list[Event] = []
    begun = time.monotonic()
    rounds = 0
    with _termination_as_interrupt():
        try:
            while True:
                reading = following.follow(_read(readers))
                for output in outputs:
                    output.write(reading, following)
                alerts = [*alerts, *(event for event in reading.events if event.kind in RAISED)][-MOST_ALERTS:]
                rounds += 1
                if rounds == pace.rounds or (alerts and pace.until_alert) or _wait(begun, rounds, pace):
                    return alerts
        except KeyboardInterrupt:
            return alerts  # the usual way to end a watch
        finally:
            for output in outputs:
                output.close()
            for reader in readers:
                reader.close()


def _read(readers: Sequence[Patient]) -> Reading:
    now = time.time()
    readings = [reader.read(now) for reader in readers]
    return Reading(
        time_s=now, gpus=tuple(sample for reading in readings for sample in reading.gpus),
        events=tuple(event for reading in readings for event in reading.events),
    )


def _wait(begun: float, rounds: int, pace: Pace) -> bool:
    """Until the next reading is due; a late one moves none that follow. Whether the time is over."""
    now = time.monotonic()
    due = begun + rounds * pace.interval_s
    if due < now:
        due += -(-(now - due) // pace.interval_s) * pace.interval_s
    if pace.duration_s is not None and due - begun > pace.duration_s:
        return True
    time.sleep(max(0.0, due - now))
    return False


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end a watch as Ctrl-C does: files are closed and the terminal is given back."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
