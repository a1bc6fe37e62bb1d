"""`vramcast watch`: what is read, followed and put out, and the loop of it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from vramcast import watch
from vramcast.domain.observation import Event, EventKind, Reading, RunInfo
from vramcast.errors import InvalidSpec
from vramcast.question.option import parse_bytes
from vramcast.report.messages import Words
from vramcast.version import __version__
from vramcast.watch.following import Expected, Following, Rules, expected_of
from vramcast.watch.outputs import CsvTable, JsonLines, Kept, Lines, Output, Recording, clock
from vramcast.watch.prometheus import Exporter
from vramcast.watch.readers import Patient, Reader, chosen, opened

if TYPE_CHECKING:
    from vramcast.watch.view import Screen

SHORTEST_S = 0.05
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


def watched(
    words: Words, *, gpus: Sequence[str], vendors: Sequence[str], predict: Path | None, exit_on_alert: bool,
    **options: Any,
) -> int:
    """Watch as the options of `vramcast watch` say; its exit code."""
    interval_s = _seconds("interval", options["interval"])
    duration_s = None if options["duration"] is None else _seconds("duration", options["duration"])
    following = Following(_rules(**options))
    _check_outputs(**options)
    readers, broken = opened(vendors)
    chosen(readers, gpus)
    expected = _expected(predict, readers)
    outputs, say = _outputs(words, readers, expected, interval_s, predict, **options)
    for text in broken:
        say(words("watch.broken_reader", text=text))
    pace = Pace(interval_s, duration_s, 1 if options["once"] else options["count"], until_alert=exit_on_alert)
    try:
        alerts = run([Patient(reader) for reader in readers], following, outputs, pace)
    except BrokenPipeError:
        # the reader of our lines has gone: an end like any other, and what is still buffered must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if _on_a_screen(**options):  # where they stood is gone with the screen
        for event in alerts:
            print(f"{clock(event.time_s)}  {following.said(event, words)}", file=sys.stderr)
    return 1 if alerts and exit_on_alert else 0


def _rules(alert_headroom: str | None, alert_leak: str, window: str, **_: Any) -> Rules:
    leak = None if alert_leak.strip() == "0" else parse_bytes("alert-leak", alert_leak) / 3600
    headroom = None if alert_headroom is None else parse_bytes("alert-headroom", alert_headroom)
    return Rules(headroom_bytes=headroom, leak_bytes_per_s=leak, window_s=_seconds("window", window))


def _check_outputs(*, as_json: bool, csv_file: str | None, **_: Any) -> None:
    if as_json and csv_file == "-":
        raise InvalidSpec("--json and --csv - both write to standard output; give --csv a file")


def _expected(predict: Path | None, readers: Sequence[Reader]) -> dict[str, Expected]:
    if predict is None:
        return {}
    cards = [card for reader in readers for card in reader.cards if card.uuid in reader.watched]
    return {expected.gpu_uuid: expected for expected in expected_of(predict, cards)}


def _outputs(
    words: Words, readers: Sequence[Reader], expected: dict[str, Expected], interval_s: float, predict: Path | None,
    **options: Any,
) -> tuple[list[Output], Callable[[str], None]]:
    """Where readings go, what is shown last, and how a sentence is said beside it."""
    screen: list[Screen] = []

    def say(text: str) -> None:
        if screen:
            screen[0].say(text)
        else:
            print(text, file=sys.stderr, flush=True)

    info = info_of(readers, interval_s, predict)
    head = [info.host]
    if "driver" in info.versions:
        head.append(words("watch.driver", version=info.versions["driver"]))
    # before the file: a run that cannot begin leaves no trace in it
    others = _tables_and_metrics(words, head, expected, say, **options)
    places: list[Output] = []
    if options["record"] is not None:
        places.append(Kept(Recording(options["record"], info), words, say))
        head.append(words("watch.recording", file=options["record"]))
    places += others
    if _on_a_screen(**options):
        screen.append(watch.view.Screen(head, words, expected))
        places += screen
    elif options["csv_file"] != "-":
        places.append(_printed(words, head, expected, as_json=options["as_json"], once=options["once"]))
    return places, say


def _tables_and_metrics(
    words: Words, head: list[str], expected: dict[str, Expected], say: Callable[[str], None], *,
    csv_file: str | None, prometheus: str | None, **_: Any,
) -> list[Output]:
    places: list[Output] = []
    if csv_file is not None:
        table = CsvTable(csv_file)
        places.append(table if csv_file == "-" else Kept(table, words, say))
    if prometheus is not None:
        exporter = Exporter(prometheus, expected)
        places.append(exporter)
        head.append(words("watch.metrics", address=exporter.name))
    return places


def _on_a_screen(*, as_json: bool, once: bool, csv_file: str | None, **_: Any) -> bool:
    """Whether this is a terminal that can be drawn on, and nothing else is wanted of it."""
    wanted = as_json or once or csv_file == "-"
    return not wanted and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def _printed(
    words: Words, head: Sequence[str], expected: dict[str, Expected], *, as_json: bool, once: bool
) -> Output:
    """What goes to standard output where there is no screen."""
    if as_json:
        return JsonLines(expected, pretty=once)
    if once:
        return watch.view.Once(head, words, expected)
    return Lines(words, expected)


def info_of(readers: Sequence[Reader], interval_s: float, predict: Path | None = None) -> RunInfo:
    """What a recording says of itself."""
    versions = {"vramcast": __version__} | {name: text for reader in readers for name, text in reader.versions.items()}
    return RunInfo(
        started_s=time.time(), host=socket.gethostname(), interval_s=interval_s, versions=versions,
        command=shlex.join(["vramcast", *sys.argv[1:]]), job="" if predict is None else predict.read_text(),
    )


def _seconds(name: str, text: str) -> float:
    """A time such as 500ms, 2s, 10m, 8h; a bare number is seconds."""
    factors = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
    number = text.strip().lower().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip().lower()[len(number):].strip()
    try:
        value = float(number) * factors[unit]
    except (ValueError, KeyError):
        raise InvalidSpec("--{} {!r} must be a time such as 500ms, 2s, 10m or 8h", name, text[:40]) from None
    if not SHORTEST_S <= value < 1e9:
        raise InvalidSpec("--{} {!r} must be at least {:.0f}ms", name, text[:40], SHORTEST_S * 1000)
    return value
