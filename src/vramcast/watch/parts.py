"""Figures of the watch as short texts, for lines and for the screen alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.domain.observation import GpuSample, Holder, ProcessSample
from vramcast.report.messages import Words
from vramcast.units import GIB, format_bytes
from vramcast.watch.following import Expected, Followed, called

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
