"""`vramcast watch`: what GPUs and the processes on them do, now and over time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vramcast.cli.shared import language_option
from vramcast.errors import InvalidSpec
from vramcast.report.messages import words_here

if TYPE_CHECKING:
    from vramcast.domain.observation import RunInfo
    from vramcast.report.messages import Words
    from vramcast.watch.following import Expected, Rules
    from vramcast.watch.outputs import Output
    from vramcast.watch.readers import Reader
    from vramcast.watch.view import Screen

VENDORS = ("nvidia", "amd", "huawei", "mthreads")
SHORTEST_S = 0.05


@click.command("watch")
@click.option("--gpu", "gpus", metavar="NAME", multiple=True, help="only this card: index or uuid (repeatable)")
@click.option("--vendor", "vendors", type=click.Choice(VENDORS), multiple=True, help="only cards of this vendor")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="between two readings: 500ms, 2s ...")
@click.option("--duration", metavar="TIME", help="how long: 30s, 10m, 8h; by default until interrupted")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="end after so many readings")
@click.option("--once", is_flag=True, help="one reading as a picture or document, and end")
@click.option("--json", "as_json", is_flag=True, help="one JSON document per reading, each on a line")
@click.option("--csv", "csv_file", metavar="FILE", help="one row per card and reading; - for standard output")
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="append every reading to this SQLite file",
)
@click.option("--prometheus", metavar="[HOST]:PORT", help="serve metrics; without HOST to this machine alone")
@click.option(
    "--predict", type=click.Path(path_type=Path), metavar="JOB",
    help="job file whose prediction is drawn beside reality",
)
@click.option("--alert-headroom", metavar="SIZE", help="alert when less of a card is free, for example 2GiB")
@click.option(
    "--alert-leak", metavar="SIZE", default="1GiB", show_default=True,
    help="alert when a process grows steadily by so much an hour; 0: never",
)
@click.option("--window", default="10m", show_default=True, metavar="TIME", help="over which growth is judged")
@click.option("--exit-on-alert", is_flag=True, help="end with exit code 1 at the first alert or lost card")
@click.option("--grafana", is_flag=True, help="print a Grafana dashboard for these metrics, and end")
@click.option("--rules", is_flag=True, help="print alert rules for Prometheus, and end")
@language_option
def command(lang: str | None, grafana: bool, rules: bool, **options: Any) -> int:
    """Watch GPUs and the processes on them: memory, load, power, traffic, and who holds what.

    On a terminal a live screen, elsewhere plain lines. NVIDIA cards are read through their driver's library, AMD,
    Ascend and Moore Threads cards through amd-smi, npu-smi and mthreads-gmi.

    \b
    vramcast watch
    vramcast watch --record run.sqlite --predict job.toml
    vramcast watch --prometheus :9400 --alert-headroom 2GiB
    vramcast watch --once --json
    """
    if grafana or rules:
        from vramcast.watch import prometheus

        click.echo(prometheus.dashboard() if grafana else prometheus.rules(), nl=grafana)
        return 0
    return _watched(words_here(lang), **options)


def _watched(
    words: Words, *, gpus: Sequence[str], vendors: Sequence[str], predict: Path | None, exit_on_alert: bool,
    **options: Any,
) -> int:
    from vramcast.watch.following import Following
    from vramcast.watch.outputs import clock
    from vramcast.watch.readers import Patient, chosen, opened
    from vramcast.watch.session import Pace, run

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
            click.echo(f"{clock(event.time_s)}  {following.said(event, words)}", err=True)
    return 1 if alerts and exit_on_alert else 0


def _rules(alert_headroom: str | None, alert_leak: str, window: str, **_: Any) -> Rules:
    from vramcast.question.amounts import parse_bytes
    from vramcast.watch.following import Rules

    leak = None if alert_leak.strip() == "0" else parse_bytes("alert-leak", alert_leak) / 3600
    headroom = None if alert_headroom is None else parse_bytes("alert-headroom", alert_headroom)
    return Rules(headroom_bytes=headroom, leak_bytes_per_s=leak, window_s=_seconds("window", window))


def _check_outputs(*, as_json: bool, csv_file: str | None, **_: Any) -> None:
    if as_json and csv_file == "-":
        raise InvalidSpec("--json and --csv - both write to standard output; give --csv a file")


def _expected(predict: Path | None, readers: Sequence[Reader]) -> dict[str, Expected]:
    if predict is None:
        return {}
    from vramcast.watch.following import expected_of

    cards = [card for reader in readers for card in reader.cards if card.uuid in reader.watched]
    return {expected.gpu_uuid: expected for expected in expected_of(predict, cards)}


def _outputs(
    words: Words, readers: Sequence[Reader], expected: dict[str, Expected], interval_s: float, predict: Path | None,
    **options: Any,
) -> tuple[list[Output], Callable[[str], None]]:
    """Where readings go, what is shown last, and how a sentence is said beside it."""
    from vramcast.watch.outputs import Kept, Recording

    screen: list[Screen] = []

    def say(text: str) -> None:
        if screen:
            screen[0].say(text)
        else:
            click.echo(text, err=True)

    info = _info(readers, interval_s, predict)
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
        from vramcast.watch.view import Screen as Live

        screen.append(Live(head, words, expected))
        places += screen
    elif options["csv_file"] != "-":
        places.append(_printed(words, head, expected, as_json=options["as_json"], once=options["once"]))
    return places, say


def _tables_and_metrics(
    words: Words, head: list[str], expected: dict[str, Expected], say: Callable[[str], None], *,
    csv_file: str | None, prometheus: str | None, **_: Any,
) -> list[Output]:
    from vramcast.watch.outputs import Kept

    places: list[Output] = []
    if csv_file is not None:
        from vramcast.watch.outputs import CsvTable

        table = CsvTable(csv_file)
        places.append(table if csv_file == "-" else Kept(table, words, say))
    if prometheus is not None:
        from vramcast.watch.prometheus import Exporter

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
        from vramcast.watch.outputs import JsonLines

        return JsonLines(expected, pretty=once)
    if once:
        from vramcast.watch.view import Once

        return Once(head, words, expected)
    from vramcast.watch.outputs import Lines

    return Lines(words, expected)


def _info(readers: Sequence[Reader], interval_s: float, predict: Path | None) -> RunInfo:
    import shlex
    import socket
    import time

    from vramcast.domain.observation import RunInfo
    from vramcast.version import __version__

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
        raise InvalidSpec(f"--{name} {text[:40]!r} must be a time such as 500ms, 2s, 10m or 8h") from None
    if not SHORTEST_S <= value < 1e9:
        raise InvalidSpec(f"--{name} {text[:40]!r} must be at least {SHORTEST_S * 1000:.0f}ms")
    return value
