"""Moore Threads cards through mthreads-gmi: figures from `-q -j`, processes from its table.

[mthreads-gmi] Moore Threads documentation of the tool; JSON as 2.x prints it with driver 3.3 (keys with blanks at their
               end among them), tables as 1.14, 2.0 and 2.4 print them, are in tests/watch/tools/. Tools without
               `-j` are read by their table alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.observation import Card, GpuSample, ProcessSample, Reading, Vendor
from vramcast.errors import SourceError
from vramcast.watch import tool
from vramcast.watch.holders import Holders
from vramcast.watch.readers import Absent

TOOL: Final = "mthreads-gmi"
MOST_LINES: Final = 4096

ROW: Final = re.compile(
    r"^(?P<index>\d{1,4})\s+(?P<model>\S.{0,40}?)\s*\|\s*(?P<bus>[0-9A-Fa-f:.]{7,20})\s*\|\s*(?P<busy>\d{1,3})%\s+"
    r"(?P<used>\d{1,9})MiB\s*\((?P<total>\d{1,9})MiB\)"
)
BELOW: Final = re.compile(r"^\s+.*?\|[^|]*\|\s*(?P<heat>\d{1,3})C\b")
PROCESS: Final = re.compile(
    r"^(?P<index>\d{1,4})\s+(?P<pid>\d{1,10})\s+(?P<name>\S.{0,200}?)\s+(?P<size>\d{1,9})MiB\s*$"
)


class MusaReader:
    """Every Moore Threads card."""

    vendor: Vendor = "mthreads"

    def __init__(self, holders: Holders) -> None:
        self._holders = holders
        self._has_json = True
        self.versions: dict[str, str] = {}
        self.cards: tuple[Card, ...] = tuple(sample.card for sample in self.read(0.0).gpus)
        self.watched = frozenset(card.uuid for card in self.cards)

    @classmethod
    def open(cls, holders: Holders) -> MusaReader:
        """Raises: Absent where there is no mthreads-gmi, SourceError where it does not work."""
        if not tool.found(TOOL):
            raise Absent("Moore Threads: mthreads-gmi is not installed")
        try:
            return cls(holders)
        except SourceError as error:
            raise SourceError(f"Moore Threads: {error}") from None

    def read(self, time_s: float) -> Reading:
        """The cards now. Raises SourceError where the tool fails."""
        shown = tool.output_of([TOOL])
        samples: list[GpuSample] = []
        if self._has_json:
            try:
                samples = self._from_json(time_s)
            except SourceError:
                self._has_json = False
        samples = samples or table(shown, time_s)
        if not samples:
            raise SourceError("`mthreads-gmi` shows no card in a form that is known (known: 1.14 to 2.4)")
        holding = _processes(shown, self._holders)
        known = "Processes:" in shown
        return Reading(time_s=time_s, gpus=tuple(
            replace(sample, processes=tuple(holding[sample.card.index]), processes_known=known) for sample in samples
        ))

    def close(self) -> None:
        """Nothing is held between readings."""

    def _from_json(self, time_s: float) -> list[GpuSample]:
        answer = tidy(tool.json_of([TOOL, "-q", "-j"]))
        driver = tool.text(tool.under(answer, "Driver Version"))
        self.versions = {"driver": driver} if driver else {}
        listed = tool.under(answer, "GPU")
        entries = listed if isinstance(listed, list) else ()
        return [sample_of(time_s, position, entry) for position, entry in enumerate(entries)]


def tidy(value: Any, depth: int = 0) -> Any:
    """The same with keys stripped of blanks; deeper than any real answer is cut off."""
    if isinstance(value, dict):
        return {} if depth > 8 else {str(key).strip(): tidy(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [] if depth > 8 else [tidy(item, depth + 1) for item in value]
    return value


def sample_of(time_s: float, position: int, entry: Any) -> GpuSample:
    """One card of the JSON answer."""
    memory, power, heat = (tool.under(entry, name) for name in ("FB Memory Usage", "Power Readings", "Temperature"))
    clocks, busy = tool.under(entry, "Clocks"), tool.under(entry, "Utilization")
    index = tool.number(tool.under(entry, "Index"))
    bus = tool.text(tool.under(entry, "PCI", "Bus ID"))
    card = Card(
        index=position if index is None else int(index), vendor="mthreads", bus=bus,
        uuid=tool.text(tool.under(entry, "GPU UUID")) or f"musa-{bus or position}",
        model=tool.text(tool.under(entry, "Product Name")) or "Moore Threads GPU",
        memory_total_bytes=tool.size(tool.under(memory, "Total")),
    )
    return GpuSample(
        time_s=time_s, card=card, memory_used_bytes=tool.size(tool.under(memory, "Used")),
        memory_free_bytes=tool.size(tool.under(memory, "Free")), sm_share=tool.share(tool.under(busy, "Gpu")),
        memory_share=tool.share(tool.under(busy, "Memory")), power_w=tool.number(tool.under(power, "Power Draw")),
        power_limit_w=tool.number(tool.under(power, "Current Power Limit")),
        sm_clock_hz=_hertz(tool.under(clocks, "Graphics")), memory_clock_hz=_hertz(tool.under(clocks, "Memory")),
        temperature_c=tool.number(tool.under(heat, "GPU Current Temp")),
    )


def table(shown: str, time_s: float) -> list[GpuSample]:
    """The cards of the table, for tools without JSON."""
    lines = shown.splitlines()[:MOST_LINES]
    return [
        _row(time_s, row, BELOW.match(below))
        for line, below in pairwise([*lines, ""]) if (row := ROW.match(line))
    ]


def _row(time_s: float, row: re.Match[str], below: re.Match[str] | None) -> GpuSample:
    used, total = (tool.size(row[name], "MiB") or 0 for name in ("used", "total"))
    card = Card(
        index=int(row["index"]), uuid=f"musa-{row['bus'].lower()}", model=tool.text(row["model"]), vendor="mthreads",
        bus=row["bus"], memory_total_bytes=total,
    )
    return GpuSample(
        time_s=time_s, card=card, memory_used_bytes=used, memory_free_bytes=max(0, total - used),
        sm_share=tool.share(row["busy"]), temperature_c=tool.number(below["heat"]) if below else None,
    )


def _processes(shown: str, holders: Holders) -> dict[int, list[ProcessSample]]:
    found: dict[int, list[ProcessSample]] = defaultdict(list)
    for row in _rows_of_processes(shown.splitlines()[:MOST_LINES]):
        pid = int(row["pid"])
        who = {"name": tool.text(row["name"]).rpartition("/")[2]} | holders.of(pid)
        found[int(row["index"])].append(ProcessSample(pid=pid, memory_bytes=tool.size(row["size"], "MiB"), **who))
    return found


def _rows_of_processes(lines: list[str]) -> Iterable[re.Match[str]]:
    begun = False
    for line in lines:
        begun = begun or line.startswith("Processes:")
        if begun and (row := PROCESS.match(line)):
            yield row


def _hertz(value: Any) -> int | None:
    amount = tool.number(value)  # MHz
    return None if amount is None else round(amount * 1e6)
