"""Tables of memory that people paste beside a failure: `torch.cuda.memory_summary()`, nvidia-smi, rocm-smi, npu-smi.

They are read from the text with line ends as spaces, like everything else. One statement a device; what a table rounds
stays rounded (memory_summary cuts to whole KiB, MiB or GiB).

[summary] pytorch/pytorch torch/cuda/memory.py `memory_summary`; "MB" up to torch 1.13 are 2^20 bytes as "MiB" later are
[smi] nvidia-smi of drivers 384 to 580; NVML counts in MiB
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vramcast.lazy import lazy_pattern
from vramcast.sources.failures.wording import SIZE, Family, Match, Numbers, Reader, Table, Wording, size_of
from vramcast.units import MIB

MOST_DEVICES: Final = 256
"""Devices read of one table."""

ROW: Final = r" ?\| ?"
SUMMARY: Final = Wording(
    "summary",
    "memory summary, device ID ",
    "<device>",
    (
        r"OOMs: <num_ooms>",
        r"(?:cuda|npu|mlu|musa|xpu|hip)?Malloc retries: <num_alloc_retries>",
        rf"Allocated memory{ROW}<allocated_bytes>{ROW}<allocated_peak_bytes>",
        rf"Active memory{ROW}<active_bytes>{ROW}<active_peak_bytes>",
        rf"Requested memory{ROW}<requested_bytes>{ROW}<requested_peak_bytes>",
        rf"[A-Z]{{2,5}} reserved memory{ROW}<reserved_bytes>{ROW}<reserved_peak_bytes>",
        rf"Non-releasable memory{ROW}<inactive_split_bytes>",
        rf"Oversize [A-Z]{{2,5}} segments{ROW}INTEGER{ROW}INTEGER{ROW}INTEGER{ROW}INTEGER",
    ),
    reach=5_000,
    versions="1.4 - 2.13",
)

USAGE: Final = lazy_pattern(r"(?P<used>[0-9]{1,8}) ?MiB / ?(?P<total>[0-9]{1,8}) ?MiB", re.ASCII)
CARD: Final = lazy_pattern(
    r"(?<![0-9])(?P<device>[0-9]{1,3}) (?P<name>[A-Za-z][^|]{2,60}) (?:On|Off|N/A|TCC|WDDM|MCDM) ?\|? ?"
    r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]",
    re.ASCII,
)
SLICE: Final = lazy_pattern(
    r"(?<![0-9])(?P<device>[0-9]{1,3}) (?P<gi>[0-9]{1,3}) (?P<ci>[0-9]{1,3}) (?P<mig>[0-9]{1,3}) ?\| ?$", re.ASCII
)
LEAD: Final = 300
"""How far before its usage a card's name stands [characters]."""

PROCESS: Final = lazy_pattern(
    r"(?<![0-9])(?P<device>[0-9]{1,3}) (?:(?:N/A|[0-9]{1,3}) (?:N/A|[0-9]{1,3}) )?(?P<pid>[0-9]{1,8}) "
    r"(?:C|G|C\+G|M\+C) (?P<name>[^|]{1,120}?) (?P<used>[0-9]{1,8}) ?MiB",
    re.ASCII,
)


def nvidia_smi(text: str, start: int, stop: int) -> Iterator[Match]:
    """The cards of the boxed table, each with the processes listed below it."""
    held: dict[int, list[int]] = {}
    for match in PROCESS.finditer(text, start, stop):
        held.setdefault(int(match["device"]), []).append(int(match["used"]) * MIB)
    last = start
    for _, usage in zip(range(MOST_DEVICES), USAGE.finditer(text, start, stop), strict=False):
        since, last = max(last, usage.start() - LEAD), usage.end()
        numbers: Numbers = {"used_bytes": int(usage["used"]) * MIB, "total_bytes": int(usage["total"]) * MIB}
        if card := CARD.search(text, since, usage.start()):
            numbers |= {"device": int(card["device"]), "name": card["name"].strip()}
            if processes := held.get(int(card["device"])):
                numbers |= {"other_processes_bytes": sum(processes), "other_processes": len(processes)}
            yield Match("table", usage.end(), numbers, card.start())
        elif part := SLICE.search(text, since, usage.start()):
            numbers |= {"device": int(part["device"]), "name": f"MIG {part['gi']}/{part['ci']}/{part['mig']}"}
            yield Match("mig", usage.end(), numbers, part.start())


COLUMNS: Final[dict[str, str]] = {
    "index": "device",
    "gpu_name": "name",
    "name": "name",
    "memory.total": "total_bytes",
    "memory.used": "used_bytes",
    "memory.free": "free_bytes",
    "pid": "pid",
    "process_name": "name",
    "used_memory": "process_bytes",
    "used_gpu_memory": "process_bytes",
}
"""Of `nvidia-smi --query-gpu=... --format=csv` -> names of figures."""

HEADER: Final = lazy_pattern(
    r"(?:[a-z_][\w.]{1,40}(?: \[[A-Za-z/%]{1,8}\])?, ?){0,20}[a-z_][\w.]{1,40}(?: \[[A-Za-z/%]{1,8}\])?", re.ASCII
)


def query(text: str, start: int, stop: int) -> Iterator[Match]:
    """The rows of a CSV: as many fields as its header names, and no figure where a field is none."""
    begin = text.rfind(", ", max(0, start - 200), start)
    while begin >= 0 and (earlier := text.rfind(", ", max(0, start - 200), begin)) >= 0:
        begin = earlier
    first = text.rfind(" ", 0, begin) + 1 if begin >= 0 else start
    header = HEADER.match(text, max(0, first), stop)
    if header is None:
        return
    columns = [re.sub(r" \[.*", "", column.strip()) for column in header[0].split(",")]
    units = [re.search(r"\[(\w+)\]", column) for column in header[0].split(",")]
    fields = r" ?, ?".join(rf"(?:{SIZE}|[0-9]{{1,12}}|\[N/A\]|[^,]{{1,60}}?)" for _ in columns)
    row = re.compile(f" ({fields})(?=[ ]|$)", re.ASCII)
    place = header.end()
    for _ in range(MOST_DEVICES):
        match = row.match(text, place, min(stop, place + 600))
        if match is None:
            return
        numbers = _row(columns, [unit[1] if unit else "" for unit in units], match[1].split(","))
        if not any(isinstance(value, int) and name != "device" for name, value in numbers.items()):
            return
        yield Match("query", match.end(), numbers, place)
        place = match.end()


def _row(columns: list[str], units: list[str], fields: list[str]) -> Numbers:
    numbers: Numbers = {}
    for column, unit, field in zip(columns, units, fields, strict=False):
        name, field = COLUMNS.get(column, ""), field.strip()
        if name == "name":
            numbers[name] = field
        elif name in ("device", "pid"):
            numbers |= {name: int(field)} if field.isascii() and field.isdigit() and len(field) < 18 else {}
        elif name:
            size = size_of(f"{field} {unit}" if field.isascii() and field.isdigit() else field)
            numbers |= {name: size} if size is not None else {}
    return numbers


def rows(name: str, pattern: str, unit: int) -> Reader:
    """A reader of rows that a pattern finds, with groups device, used and total."""
    row = re.compile(pattern, re.ASCII)

    def read(text: str, start: int, stop: int) -> Iterator[Match]:
        for _, match in zip(range(MOST_DEVICES), row.finditer(text, start, stop), strict=False):
            numbers: Numbers = {"device": int(match["device"])}
            numbers |= {
                f"{what}_bytes": int(written) * unit
                for what, written in match.groupdict().items()
                if what != "device" and written
            }
            yield Match(name, match.end(), numbers, match.start())

    return read


def _rocm(text: str, start: int, stop: int) -> Iterator[Match]:
    """rocm-smi --showmeminfo vram: the words stand behind the number of the card."""
    yield from rows("vram", ROCM_ROW, 1)(text, max(0, start - 12), stop)


NPU_ROW: Final = (
    r"(?<![0-9])(?P<device>[0-9]{1,3}) (?:[0-9]{1,3} )?\| ?[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9] ?\| ?"
    r"[0-9]{1,3} [^|]{0,40}?(?P<used>[0-9]{1,7}) ?/ ?(?P<total>[0-9]{1,7}) ?\|"
)
ROCM_ROW: Final = (
    r"GPU\[(?P<device>[0-9]{1,3})\] ?: VRAM Total Memory \(B\): (?P<total>[0-9]{1,18}) "
    r"GPU\[[0-9]{1,3}\] ?: VRAM Total Used Memory \(B\): (?P<used>[0-9]{1,18})"
)
GPUSTAT_ROW: Final = (
    r"\[(?P<device>[0-9]{1,3})\] [^|]{3,60}\|[^|]{3,40}\| ?(?P<used>[0-9]{1,7}) ?/ ?(?P<total>[0-9]{1,7}) MB"
)

TABLES: Final[dict[str, Family]] = {
    "memory-summary": Family(
        "PyTorch, memory_summary()", (SUMMARY,), "support", "pytorch/pytorch torch/cuda/memory.py"
    ),
    "nvidia-smi": Family(
        "nvidia-smi, gpustat",
        (
            Wording(
                "full",
                "FB Memory Usage ",
                r"Total ?: <total_bytes>",
                (r"(?<!Reserved : )Used ?: <used_bytes>", r"Free ?: <free_bytes>"),
                reach=160,
            ),
        ),
        "support",
        "nvidia-smi of drivers 384 to 580",
        (
            Table(("table", "mig"), "NVIDIA-SMI ", nvidia_smi),
            Table(("query",), "memory.used [", query, 20_000),
            Table(("query",), "memory.free [", query, 20_000),
            Table(("query",), "memory.total [", query, 20_000),
            Table(("query",), "used_gpu_memory [", query, 20_000),
            Table(("gpustat",), "[0] ", rows("gpustat", GPUSTAT_ROW, MIB), 8_000),
        ),
    ),
    "rocm-smi": Family(
        "rocm-smi", (), "support", "ROCm/rocm_smi_lib", (Table(("vram",), "VRAM Total Memory (B)", _rocm, 20_000),)
    ),
    "npu-smi": Family(
        "npu-smi", (), "support", "Ascend npu-smi", (Table(("table",), "npu-smi ", rows("table", NPU_ROW, MIB)),)
    ),
}
"""They support other statements; alone they are no failure."""
