"""Ascend NPUs through the table that `npu-smi info` prints: the tool has no other output of everything at once.

[npu-smi] Huawei "npu-smi Command Reference", `npu-smi info`; tables printed by 23.0, 24.1 and 26.0 on 910, 910B and
          910_93 (two chips a card, the second without power) are in tests/watch/tools/.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, Final, NamedTuple

from vramcast.domain.observation import Card, GpuSample, ProcessSample, Reading, Vendor
from vramcast.errors import SourceError
from vramcast.units import MIB
from vramcast.watch import tool
from vramcast.watch.holders import Holders
from vramcast.watch.readers import Absent

COMMAND: Final = ("npu-smi", "info")
MOST_LINES: Final = 4096

CARD: Final = re.compile(
    r"^\|\s*(?P<npu>\d{1,4})\s+(?P<model>\S{1,40})\s*\|\s*\S{1,20}\s*\|\s*(?P<power>\S{1,12})\s+(?P<heat>\S{1,8})"
)
CHIP: Final = re.compile(
    r"^\|\s*(?P<chip>\d{1,4})(?:\s+\d{1,4})?\s*\|\s*(?P<bus>[0-9A-Fa-f:.]{7,20}|NA)\s*"
    r"\|\s*(?P<busy>\S{1,8})\s+(?P<sizes>.{1,80})"
)
PAIR: Final = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")
PROCESS: Final = re.compile(
    r"^\|\s*(?P<npu>\d{1,4})\s+(?P<chip>\d{1,4})\s*\|\s*(?P<pid>\d{1,10})\s*\|(?P<name>[^|]{0,80})"
    r"\|\s*(?P<size>\d{1,9})\s*\|(?:\s*(?P<inside>\S{1,10})\s*\|)?"
)
VERSION: Final = re.compile(r"^\|\s*npu-smi\s+(?P<version>\S{1,40})")


class _Chip(NamedTuple):
    """One row pair of the table."""

    npu: int
    chip: int
    card: Card
    figures: dict[str, Any]


class AscendReader:
    """Every chip that npu-smi lists; numbered as CANN and torch_npu do, in the order of the table."""

    vendor: Vendor = "huawei"

    def __init__(self, holders: Holders) -> None:
        self._holders = holders
        text = tool.output_of([*COMMAND])
        self.versions = {"driver": version_of(text)} if version_of(text) else {}
        self.cards: tuple[Card, ...] = tuple(sample.card for sample in table(text, 0.0, holders))
        self.watched = frozenset(card.uuid for card in self.cards)

    @classmethod
    def open(cls, holders: Holders) -> AscendReader:
        """Raises: Absent where there is no npu-smi, SourceError where it does not work."""
        if not tool.found(COMMAND[0]):
            raise Absent("Ascend: npu-smi is not installed")
        try:
            return cls(holders)
        except SourceError as error:
            raise SourceError(f"Ascend: {error}") from None

    def read(self, time_s: float) -> Reading:
        """The chips now. Raises SourceError where the tool fails."""
        return Reading(time_s=time_s, gpus=tuple(table(tool.output_of([*COMMAND]), time_s, self._holders)))

    def close(self) -> None:
        """Nothing is held between readings."""


def version_of(text: str) -> str:
    """The version that the table's head names."""
    matches = (VERSION.match(line) for line in text.splitlines()[:8])
    return next((match["version"] for match in matches if match), "")


def table(text: str, time_s: float, holders: Holders) -> list[GpuSample]:
    """The samples that a table shows.

    Raises: SourceError where it shows no chip.
    """
    lines = text.splitlines()[:MOST_LINES]
    chips = _chips(lines)
    if not chips:
        raise SourceError("`npu-smi info` shows no chip in a form that is known (known: 23.0 to 26.0)")
    processes = _processes(lines, holders)
    known = any("Process id" in line for line in lines)
    return [
        GpuSample(
            time_s=time_s, card=chip.card, processes=tuple(processes[chip.npu, chip.chip]), processes_known=known,
            **chip.figures,
        )
        for chip in chips
    ]


def _chips(lines: list[str]) -> list[_Chip]:
    chips: list[_Chip] = []
    above: re.Match[str] | None = None
    for line in lines:
        if "Process id" in line:
            break
        row = CHIP.match(line) if above else None
        if row is None or above is None:
            above = CARD.match(line)
            continue
        chips.append(_chip(len(chips), above, row))
        above = None
    return chips


def _chip(index: int, above: re.Match[str], row: re.Match[str]) -> _Chip:
    # the last pair is high-bandwidth memory where the chip has it, else the only memory there is
    pairs = [(int(used) * MIB, int(total) * MIB) for used, total in PAIR.findall(row["sizes"]) if int(total)]
    used, total = pairs[-1] if pairs else (None, None)
    npu, chip, bus = int(above["npu"]), int(row["chip"]), row["bus"]
    card = Card(
        index=index, uuid=f"npu-{npu}-{chip}" if bus == "NA" else f"npu-{bus.lower()}", vendor="huawei",
        model=f"Ascend {tool.text(above['model']).removeprefix('Ascend')}", bus="" if bus == "NA" else bus,
        memory_total_bytes=total,
    )
    return _Chip(npu, chip, card, {
        "memory_used_bytes": used, "memory_free_bytes": None if used is None or total is None else max(0, total - used),
        "sm_share": tool.share(row["busy"]), "power_w": tool.number(above["power"]),
        "temperature_c": tool.number(above["heat"]),
    })


def _processes(lines: list[str], holders: Holders) -> dict[tuple[int, int], list[ProcessSample]]:
    found: dict[tuple[int, int], list[ProcessSample]] = defaultdict(list)
    begun = False
    for line in lines:
        begun = begun or "Process id" in line
        row = PROCESS.match(line) if begun else None
        if row is None:
            continue
        inside = row["inside"] or ""
        pid = int(inside) if inside.isdecimal() and not holders.sees_machine else int(row["pid"])
        who = {"name": tool.text(row["name"])} | holders.of(pid)
        found[int(row["npu"]), int(row["chip"])].append(
            ProcessSample(pid=pid, memory_bytes=int(row["size"]) * MIB, **who)
        )
    return found
