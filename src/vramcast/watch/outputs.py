"""Where readings go: documents, plain lines, tables, recordings. What fails is said once, and the watch goes on.

Figures of the watch as short texts, for lines and for the screen alike.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from vramcast.domain.observation import GpuSample, Holder, ProcessSample, Reading, RunInfo
from vramcast.errors import SourceError, text_of
from vramcast.report.messages import Words
from vramcast.units import GIB, format_bytes
from vramcast.watch.following import Expected, Followed, Following, called
from vramcast.watch.recording import Recorder


class Output:
    """One place that readings go to; as it stands here, standard output."""

    name = "-"

    def write(self, reading: Reading, following: Following) -> None:
        """One reading with its events. Raises OSError or sqlite3.Error where it cannot be written."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what is not written already. Never raises."""


class Recording(Output):
    """`--record`: into a SQLite file."""

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.name = str(path)
        self._recorder = Recorder.open(path, info)

    def write(self, reading: Reading, following: Following) -> None:
        """One transaction."""
        self._recorder.write(reading)

    def close(self) -> None:
        """Fold the log into the file, where there is room."""
        self._recorder.close()


class Kept(Output):
    """An output that may fail: what it missed is counted, and it is tried again with every reading."""

    def __init__(self, output: Output, words: Words, say: Callable[[str], None]) -> None:
        self.name = output.name
        self.failed = False
        self._output = output
        self._words = words
        self._say = say
        self._missed = 0

    def write(self, reading: Reading, following: Following) -> None:
        """One reading; a failure is said the first time, and so is its end."""
        when = clock(reading.time_s)
        try:
            self._output.write(reading, following)
        except BrokenPipeError:
            raise
        except (OSError, sqlite3.Error, SourceError) as error:
            self._missed += 1
            if not self.failed:
                why = getattr(error, "strerror", None) or str(error)
                self._say(self._words("watch.output_failed", name=self.name, when=when, why=why))
            self.failed = True
            return
        if self.failed:
            self._say(self._words("watch.output_back", name=self.name, when=when, missed=f"{self._missed:,}"))
        self.failed, self._missed = False, 0

    def close(self) -> None:
        """Finish."""
        self._output.close()


def clock(time_s: float) -> str:
    """The local time of day."""
    return datetime.fromtimestamp(time_s).strftime("%H:%M:%S")


class JsonLines(Output):
    """Documents onto standard output."""

    def __init__(self, expected: dict[str, Expected], *, pretty: bool) -> None:
        self._expected = expected
        self._pretty = pretty

    def write(self, reading: Reading, following: Following) -> None:
        """One document."""
        found = document(reading, following, self._expected)
        sys.stdout.write(json.dumps(found, indent=1 if self._pretty else None, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def document(reading: Reading, following: Following, expected: dict[str, Expected]) -> dict[str, Any]:
    """One reading with what came of it."""
    return {
        "schema": 1, "time_s": reading.time_s,
        "gpus": [_gpu(sample, following, expected.get(sample.card.uuid)) for sample in reading.gpus],
        "events": [msgspec.to_builtins(event, enc_hook=text_of) for event in reading.events],
    }


def _gpu(sample: GpuSample, following: Following, expected: Expected | None) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(sample, enc_hook=text_of)
    followed = following.cards[sample.card.uuid]
    found: dict[str, Any] = plain.pop("card") | {name: value for name, value in plain.items() if name != "time_s"}
    found["processes"] = [_process(sample.card.uuid, process, following) for process in plain.get("processes", ())]
    found["processes_known"] = sample.processes_known
    extra = {
        "unaccounted_bytes": sample.unaccounted_bytes, "peak_bytes": followed.peak_bytes,
        "growth_bytes_per_s": followed.slope.per_s if followed.slope else None, "runs_out_in_s": followed.runs_out_in_s,
        "expected": msgspec.to_builtins(expected, enc_hook=text_of) if expected else None,
    }
    return found | {name: value for name, value in extra.items() if value is not None}


def _process(uuid: str, process: dict[str, Any], following: Following) -> dict[str, Any]:
    slope = following.growth.get((uuid, process["pid"]))
    found = {"holder": "alive"} | process
    return found if slope is None else found | {"growth_bytes_per_s": slope.per_s}


MOST_NAMED: Final = 3


class Lines(Output):
    """Lines onto standard output."""

    def __init__(self, words: Words, expected: dict[str, Expected]) -> None:
        self._words = words
        self._expected = expected

    def write(self, reading: Reading, following: Following) -> None:
        """The lines of one reading."""
        when = clock(reading.time_s)
        lines = [f"{when}  {following.said(event, self._words)}" for event in reading.events]
        lines += [f"{when}  {self._line(sample, following)}" for sample in reading.gpus]
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

    def _line(self, sample: GpuSample, following: Following) -> str:
        words = self._words
        shown = [
            f"GPU {sample.card.index}", memory(sample, words),
            "SM " + share(sample.sm_share) if sample.sm_share is not None else "", power(sample),
            heat(sample),
        ]
        named = [f"{holder(process, words)} {held(process)}" for process in sample.processes[:MOST_NAMED]]
        rest = len(sample.processes) - len(named)
        said = remarks(following.cards[sample.card.uuid], self._expected.get(sample.card.uuid), words)
        more = [f"+{rest}"] if rest > 0 else []
        return "  ".join(text for text in (*shown, ", ".join([*named, *more]), "; ".join(said)) if text)


APART: Final = ("time_s", "card", "throttled", "partitions", "processes", "processes_known")
FIELDS: Final = tuple(name for name in GpuSample.__struct_fields__ if name not in APART)
COLUMNS: Final = (
    "time_s", "gpu", "uuid", "model", "memory_total_bytes", *FIELDS, "throttled", "unaccounted_bytes", "processes",
)
"""`processes`: `PID=bytes` of each, the largest first, with blanks between them."""

HEADER: Final = f"{','.join(COLUMNS)}\n".encode()


class CsvTable(Output):
    """Rows into a file, or onto standard output for "-". A file that is there is gone on with."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._number: int | None = None  # of the open file; None: standard output
        self._begun = False
        if path != "-":
            try:
                self._number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            except OSError as error:
                raise SourceError("cannot write {}: {}", path, error.strerror) from None
            self._begun = self._goes_on()

    def _goes_on(self) -> bool:
        """Whether the file has rows already: those of a file of something else would be spoiled by ours.

        Raises: SourceError where it holds anything but these columns
        """
        path = Path(self.name)
        if not path.is_file() or not path.stat().st_size:  # a pipe or a device has no beginning
            return False
        try:
            with path.open("rb") as file:
                first = file.read(len(HEADER))
        except OSError as error:
            raise SourceError("cannot write {}: {}", self.name, error.strerror) from None
        if first != HEADER:
            self.close()
            raise SourceError(
                "{} does not begin with the columns of this CSV, and is left as it is; give another file", self.name
            )
        return True

    def write(self, reading: Reading, following: Following) -> None:
        """A row for each card; a row that was cut short by a failure is taken back."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if not self._begun:
            rows.writerow(COLUMNS)
        rows.writerows(row_of(sample) for sample in reading.gpus)
        if self._number is None:
            sys.stdout.write(text.getvalue())
            sys.stdout.flush()
        else:
            _append(self._number, text.getvalue().encode())
        self._begun = True

    def close(self) -> None:
        """Every row is written already."""
        if self._number is not None:
            os.close(self._number)


def _append(number: int, data: bytes) -> None:
    """All of it or nothing."""
    before, written = os.fstat(number).st_size, 0
    try:
        while written < len(data):
            written += os.write(number, data[written:])
    except OSError:
        if written:
            os.ftruncate(number, before)
        raise


def row_of(sample: GpuSample) -> list[Any]:
    """The columns of one card."""
    known = {name: getattr(sample, name) for name in FIELDS}
    held = " ".join(
        f"{process.pid}={'' if process.memory_bytes is None else process.memory_bytes}" for process in sample.processes
    )
    card = sample.card
    return [
        f"{sample.time_s:.3f}", card.index, card.uuid, card.model, _cell(card.memory_total_bytes),
        *map(_cell, known.values()), ", ".join(sample.throttled), _cell(sample.unaccounted_bytes), held,
    ]


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else round(value)


BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*%#"
WORTH_SAYING = 0.01
"""Part of a card beyond which what no process in sight holds is more than the driver's own for its processes."""


def memory(sample: GpuSample, words: Words) -> str:
    """`37.60 of 79.65 GiB`."""
    used, total = sample.memory_used_bytes, sample.card.memory_total_bytes
    shown = "?" if used is None else f"{used / GIB:.2f}"
    return words("watch.of", used=shown, total="?" if total is None else f"{total / GIB:.2f} GiB")


def share(value: float | None) -> str:
    """`93%`, "" where unknown."""
    return "" if value is None else f"{value:.0%}"


def power(sample: GpuSample) -> str:
    """`612/700 W`."""
    if sample.power_w is None:
        return ""
    limit = "" if sample.power_limit_w is None else f"/{sample.power_limit_w:.0f}"
    return f"{sample.power_w:.0f}{limit} W"


def heat(sample: GpuSample) -> str:
    """`61 °C`."""
    return "" if sample.temperature_c is None else f"{sample.temperature_c:.0f} °C"


def clock_rate(sample: GpuSample) -> str:
    """`1755 MHz`."""
    return "" if sample.sm_clock_hz is None else f"{sample.sm_clock_hz / 1e6:.0f} MHz"


def traffic(sent: float | None, received: float | None) -> str:
    """`1.0/2.1 GB/s`."""
    if sent is None or received is None:
        return ""
    return f"{sent / 1e9:.1f}/{received / 1e9:.1f} GB/s"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`, `9 days`."""
    for unit, length in (("days", 172_800.0), ("h", 7200.0), ("min", 100.0)):
        if seconds >= length:
            value = seconds / {"days": 86_400, "h": 3600, "min": 60}[unit]
            return f"{value:.1f} {unit}" if unit == "h" and value < 10 else f"{value:,.0f} {unit}"
    return f"{seconds:.0f} s"


def growth(per_s: float) -> str:
    """`+1.20 GiB/h`, "" where nothing grows or shrinks."""
    if round(per_s * 3600) == 0:
        return ""
    return f"{'+' if per_s >= 0 else ''}{format_bytes(round(per_s * 3600))}/h"


def sparkline(values: Sequence[int], most: int | None, columns: int, *, plain: bool = False) -> str:
    """The last values as bars, from nothing to `most`.

    >>> sparkline([0, 40, 80], 80, 3)
    '▁▅█'
    """
    bars = PLAIN_BARS if plain else BARS
    top = max(most or 0, max(values, default=0), 1)
    return "".join(bars[min(len(bars) - 1, value * len(bars) // top)] for value in list(values)[-columns:])


def bar(used: int, total: int, predicted: int | None, columns: int, *, plain: bool = False) -> str:
    """How full a card is, with a mark where it was predicted to be.

    >>> bar(40, 80, 60, 8), bar(40, 80, None, 8, plain=True)
    ('████░░|░', '####----')
    """
    full, empty = ("#", "-") if plain else ("█", "░")
    filled = min(columns, round(columns * used / total)) if total else 0
    cells = [full] * filled + [empty] * (columns - filled)
    if predicted is not None and total:
        cells[min(columns - 1, round(columns * predicted / total))] = "|"
    return "".join(cells)


def remarks(followed: Followed, expected: Expected | None, words: Words) -> Iterator[str]:
    """What stands out on a card: prediction, growth, when it will be full, what holds it back, who cannot be seen."""
    sample = followed.last
    if sample is None:
        return
    if expected is not None:
        yield from _beside(followed, expected, words)
    left = followed.runs_out_in_s
    if followed.slope is not None and left is not None:
        yield words("watch.grows", rate=format_bytes(round(followed.slope.per_s * 3600)))
        yield words("watch.runs_out", left=duration(left))
    if sample.throttled:
        reasons = ", ".join(words(f"watch.reason.{reason}") for reason in sample.throttled)
        yield words("watch.throttled", reasons=reasons)
    if sample.ecc_uncorrected:
        yield words("watch.ecc", count=f"{sample.ecc_uncorrected:,}")
    if not sample.processes_known:
        yield words("watch.hidden")
    elif (sample.unaccounted_bytes or 0) > WORTH_SAYING * (sample.card.memory_total_bytes or 0):
        yield words("watch.unaccounted", size=format_bytes(sample.unaccounted_bytes or 0))


def _beside(followed: Followed, expected: Expected, words: Words) -> Iterator[str]:
    """Prediction beside reality: what the job holds where the driver tells processes apart, else the whole card."""
    sample = followed.last
    used = None if sample is None else _largest_process(sample) or sample.memory_used_bytes
    steady = format_bytes(expected.steady_bytes)
    if expected.steady_bytes > expected.capacity_bytes:
        yield words("watch.expected_does_not_fit", steady=steady, capacity=format_bytes(expected.capacity_bytes))
    elif used is not None and used > expected.steady_bytes:
        yield words("watch.expected_over", over=format_bytes(used - expected.steady_bytes), steady=steady)
    else:
        part = "?" if used is None else f"{used / max(1, expected.steady_bytes):.0%}"
        yield words("watch.expected", steady=steady, share=part)
        yield from _short(followed, expected, words)
    if expected.first_step_bytes is not None and expected.first_step_bytes != expected.steady_bytes:
        yield words("watch.expected_first", first=format_bytes(expected.first_step_bytes))


def _short(followed: Followed, expected: Expected, words: Words) -> Iterator[str]:
    """Where the rest of the predicted peak will not fit beside the others."""
    sample = followed.last
    if sample is None:
        return
    free, to_come = sample.memory_free_bytes, expected.steady_bytes - _largest_process(sample)
    if free is not None and to_come > free:
        yield words("watch.expected_short", rest=format_bytes(to_come), free=format_bytes(free))


def _largest_process(sample: GpuSample) -> int:
    """What the process holds that is taken for the job: the largest one; 0 where none is told [bytes]."""
    return max((process.memory_bytes or 0 for process in sample.processes), default=0)


def holder(process: ProcessSample, words: Words) -> str:
    """`python3[4242]`, `PID 3111 (dead)`."""
    if process.holder is Holder.ALIVE:
        return called(process)
    name = f"{process.name}[{process.pid}]" if process.name else f"PID {process.pid}"
    return f"{name} ({words(f'watch.holder.{process.holder}')})"


def held(process: ProcessSample) -> str:
    """Its memory."""
    return "?" if process.memory_bytes is None else format_bytes(process.memory_bytes)
