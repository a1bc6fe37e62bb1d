"""Cards whose tools print a table for people: Ascend NPUs, and Moore Threads cards beside their JSON.

[npu-smi] Huawei "npu-smi Command Reference", `npu-smi info`, which has no other output of everything at once; tables
          printed by 23.0, 24.1 and 26.0 on 910, 910B and 910_93 (two chips a card, the second without power) are in
          tests/watch/tools/.
[mthreads-gmi] Moore Threads documentation of the tool; JSON as 2.x prints it with driver 3.3 (keys with blanks at their
          end among them), tables as 1.14, 2.0 and 2.4 print them, are in tests/watch/tools/. Tools without `-j` are
          read by their table alone.

AMD cards through amd-smi, or where it is missing through rocm-smi.

[amdsmi] https://github.com/ROCm/amdsmi at 0ceca28 (24.7), amdsmi_cli/amdsmi_commands.py: `static`, `metric`, `process`
         with --json. Figures are {"value", "unit"}, unknown ones "N/A"; newer releases put the list under "gpu_data".
[rocm-smi] https://github.com/ROCm/rocm_smi_lib python_smi_tools/rocm_smi.py: --json gives "cardN" -> figures by their
         printed names. Of processes it knows only sums over cards, so none are named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.observation import Card, GpuSample, ProcessSample, Vendor
from vramcast.errors import SourceError
from vramcast.units import MIB
from vramcast.watch import tool
from vramcast.watch.holders import Holders
from vramcast.watch.readers import ToolReader

AMD_SMI: Final = "amd-smi"
ROCM_SMI: Final = "rocm-smi"
STATIC: Final = ("static", "--asic", "--bus", "--limit", "--driver", "--json")
METRIC: Final = ("metric", "--json")
PROCESS_COMMAND: Final = ("process", "--json")
ROCM_FIGURES: Final = (
    "--showproductname", "--showbus", "--showuniqueid", "--showmeminfo", "vram", "--showuse", "--showmemuse",
    "--showpower", "--showmaxpower", "--showtemp", "--showclocks", "--json",
)

THROTTLES: Final[dict[str, str]] = {
    "prochot_violation_status": "hardware hot", "ppt_violation_status": "power cap",
    "socket_thermal_violation_status": "hot", "vr_thermal_violation_status": "hot regulators",
    "hbm_thermal_violation_status": "hot memory",
}
"""Keys of amd-smi's "throttle" -> why clocks are held back, where they say ACTIVE."""


class RocmReader(ToolReader):
    """Every AMD card."""

    vendor: Vendor = "amd"
    brand = "AMD"
    tools = (AMD_SMI, ROCM_SMI)

    def __init__(self, name: str, holders: Holders) -> None:
        self._static = _by_gpu(tool.json_of([name, *STATIC])) if name == AMD_SMI else {}
        super().__init__(name, holders)
        for known in self._static.values():
            self.versions |= {"driver": tool.text(tool.under(known, "driver", "version"))}

    def samples(self, time_s: float) -> list[GpuSample]:
        """As amd-smi or rocm-smi describes them."""
        return self._by_amd_smi(time_s) if self.name == AMD_SMI else self._by_rocm_smi(time_s)

    def _by_amd_smi(self, time_s: float) -> list[GpuSample]:
        metrics = _by_gpu(tool.json_of([self.name, *METRIC]))
        try:
            running: dict[int, Any] | None = _by_gpu(tool.json_of([self.name, *PROCESS_COMMAND]))
        except SourceError:
            running = None
        return [
            amd_smi_sample(
                time_s, index, self._static.get(index), metric,
                None if running is None else self._processes(running.get(index)),
            )
            for index, metric in sorted(metrics.items())
        ]

    def _processes(self, entry: Any) -> tuple[ProcessSample, ...]:
        listed = tool.under(entry, "process_list")
        found: list[ProcessSample] = []
        for item in listed if isinstance(listed, list) else ():
            info = tool.under(item, "process_info")
            pid = tool.number(tool.under(info, "pid"))
            if pid is None:
                continue  # "No running processes detected", "N/A"
            memory = tool.under(info, "memory_usage", "vram_mem")
            size = tool.size(memory if memory is not None else tool.under(info, "mem_usage"), "B")
            who = {"name": tool.text(tool.under(info, "name"))} | self._holders.of(int(pid))
            found.append(ProcessSample(pid=int(pid), memory_bytes=size, **who))
        return tuple(sorted(found, key=lambda process: -(process.memory_bytes or 0)))

    def _by_rocm_smi(self, time_s: float) -> list[GpuSample]:
        figures = tool.json_of([self.name, *ROCM_FIGURES])
        if not isinstance(figures, dict):
            raise SourceError("`{} --json` did not print an object", self.name)
        samples = [
            rocm_smi_sample(time_s, int(name[4:]), figures[name])
            for name in figures if name[:4] == "card" and name[4:].isdecimal() and len(name) < 8
        ]
        return sorted(samples, key=lambda sample: sample.card.index)


def amd_smi_sample(
    time_s: float, index: int, static: Any, metric: Any, processes: Iterable[ProcessSample] | None
) -> GpuSample:
    """One card as amd-smi's `static` and `metric` describe it."""
    clock, heat = tool.under(metric, "clock"), tool.under(metric, "temperature")
    total, used = (tool.size(tool.under(metric, "mem_usage", key), "MB") for key in ("total_vram", "used_vram"))
    throttle = tool.under(metric, "throttle")
    bus = tool.text(tool.under(static, "bus", "bdf"))
    card = Card(
        index=index, uuid=tool.text(tool.under(static, "asic", "asic_serial")) or f"amd-{bus or index}", vendor="amd",
        model=tool.text(tool.under(static, "asic", "market_name")) or "AMD GPU", bus=bus, memory_total_bytes=total,
    )
    return GpuSample(
        time_s=time_s, card=card, memory_used_bytes=used,
        memory_free_bytes=tool.size(tool.under(metric, "mem_usage", "free_vram"), "MB"),
        sm_share=tool.share(tool.under(metric, "usage", "gfx_activity")),
        memory_share=tool.share(tool.under(metric, "usage", "umc_activity")),
        power_w=tool.number(tool.under(metric, "power", "socket_power")),
        power_limit_w=tool.number(tool.under(static, "limit", "socket_power")),
        energy_j=tool.number(tool.under(metric, "energy", "total_energy_consumption")),
        sm_clock_hz=tool.hertz(tool.under(clock, "gfx_0", "clk")),
        memory_clock_hz=tool.hertz(tool.under(clock, "mem_0", "clk")),
        temperature_c=_first(tool.under(heat, "hotspot"), tool.under(heat, "edge")),
        memory_temperature_c=tool.number(tool.under(heat, "mem")),
        throttled=tuple(why for key, why in THROTTLES.items() if tool.under(throttle, key) == "ACTIVE"),
        pcie_sent_bytes_per_s=_traffic(metric, "current_bandwidth_sent"),
        pcie_received_bytes_per_s=_traffic(metric, "current_bandwidth_received"),
        ecc_corrected=_count(tool.under(metric, "ecc", "total_correctable_count")),
        ecc_uncorrected=_count(tool.under(metric, "ecc", "total_uncorrectable_count")),
        processes=tuple(processes or ()), processes_known=processes is not None,
    )


def rocm_smi_sample(time_s: float, index: int, figures: Any) -> GpuSample:
    """One card as rocm-smi --json describes it; it does not say which process holds how much of which card."""

    def said(*names: str) -> Any:
        return next((figures[name] for name in names if isinstance(figures, dict) and name in figures), None)

    total, used = tool.size(said("VRAM Total Memory (B)")), tool.size(said("VRAM Total Used Memory (B)"))
    bus = tool.text(said("PCI Bus"))
    card = Card(
        index=index, uuid=tool.text(said("Unique ID")) or f"amd-{bus or index}", vendor="amd", bus=bus,
        model=tool.text(said("Card Series", "Card series", "Card Model", "Card model")) or "AMD GPU",
        memory_total_bytes=total,
    )
    return GpuSample(
        time_s=time_s, card=card, memory_used_bytes=used,
        memory_free_bytes=None if total is None or used is None else max(0, total - used),
        sm_share=tool.share(said("GPU use (%)")), memory_share=tool.share(said("GPU Memory Read/Write Activity (%)")),
        power_w=_first(said("Current Socket Graphics Package Power (W)"), said("Average Graphics Package Power (W)")),
        power_limit_w=tool.number(said("Max Graphics Package Power (W)")),
        sm_clock_hz=_bracketed(said("sclk clock speed:")), memory_clock_hz=_bracketed(said("mclk clock speed:")),
        temperature_c=_first(said("Temperature (Sensor junction) (C)"), said("Temperature (Sensor edge) (C)")),
        memory_temperature_c=tool.number(said("Temperature (Sensor memory) (C)")), processes_known=False,
    )


def _by_gpu(answer: Any) -> dict[int, Any]:
    """Entries of a list by their "gpu"."""
    listed = answer.get("gpu_data") if isinstance(answer, dict) else answer
    if not isinstance(listed, list):
        raise SourceError("amd-smi did not print a list of cards")
    numbered = ((tool.number(tool.under(entry, "gpu")), entry) for entry in listed)
    return {int(index): entry for index, entry in numbered if index is not None and 0 <= index < 4096}


def _first(*values: Any) -> float | None:
    return next((amount for amount in map(tool.number, values) if amount is not None), None)


def _bracketed(value: Any) -> int | None:
    """`(1700Mhz)`."""
    return tool.hertz(value.strip("() ")) if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    amount = tool.number(value)
    return None if amount is None else int(amount)


def _traffic(metric: Any, key: str) -> float | None:
    """What amd-smi calls Mb/s and computes by dividing bytes by 2^20."""
    amount = tool.number(tool.under(metric, "pcie", key))
    return None if amount is None else amount * 2**20


MOST_LINES: Final = 4096

NPU: Final = re.compile(
    r"^\|\s*(?P<npu>\d{1,4})\s+(?P<model>\S{1,40})\s*\|\s*\S{1,20}\s*\|\s*(?P<power>\S{1,12})\s+(?P<heat>\S{1,8})"
)
CHIP: Final = re.compile(
    r"^\|\s*(?P<chip>\d{1,4})(?:\s+\d{1,4})?\s*\|\s*(?P<bus>[0-9A-Fa-f:.]{7,20}|NA)\s*"
    r"\|\s*(?P<busy>\S{1,8})\s+(?P<sizes>.{1,80})"
)
PAIR: Final = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")
CHIP_PROCESS: Final = re.compile(
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


class AscendReader(ToolReader):
    """Every chip that npu-smi lists; numbered as CANN and torch_npu do, in the order of the table."""

    vendor: Vendor = "huawei"
    brand = "Ascend"
    tools = ("npu-smi",)

    def samples(self, time_s: float) -> list[GpuSample]:
        """The chips of the table."""
        text = tool.output_of([self.name, "info"])
        version = version_of(text)
        self.versions = {"driver": version} if version else {}
        return ascend_table(text, time_s, self._holders)


def version_of(text: str) -> str:
    """The version that the table's head names."""
    matches = (VERSION.match(line) for line in text.splitlines()[:8])
    return next((match["version"] for match in matches if match), "")


def ascend_table(text: str, time_s: float, holders: Holders) -> list[GpuSample]:
    """The samples that a table shows.

    Raises: SourceError where it shows no chip.
    """
    lines = text.splitlines()[:MOST_LINES]
    chips = _chips(lines)
    if not chips:
        raise SourceError("`npu-smi info` shows no chip in a form that is known (known: 23.0 to 26.0)")
    processes = _ascend_processes(lines, holders)
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
            above = NPU.match(line)
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


def _ascend_processes(lines: list[str], holders: Holders) -> dict[tuple[int, int], list[ProcessSample]]:
    found: dict[tuple[int, int], list[ProcessSample]] = defaultdict(list)
    begun = False
    for line in lines:
        begun = begun or "Process id" in line
        row = CHIP_PROCESS.match(line) if begun else None
        if row is None:
            continue
        inside = row["inside"] or ""
        pid = int(inside) if inside.isdecimal() and not holders.sees_machine else int(row["pid"])
        who = {"name": tool.text(row["name"])} | holders.of(pid)
        found[int(row["npu"]), int(row["chip"])].append(
            ProcessSample(pid=pid, memory_bytes=int(row["size"]) * MIB, **who)
        )
    return found


ROW: Final = re.compile(
    r"^(?P<index>\d{1,4})\s+(?P<model>\S.{0,40}?)\s*\|\s*(?P<bus>[0-9A-Fa-f:.]{7,20})\s*\|\s*(?P<busy>\d{1,3})%\s+"
    r"(?P<used>\d{1,9})MiB\s*\((?P<total>\d{1,9})MiB\)"
)
BELOW: Final = re.compile(r"^\s+.*?\|[^|]*\|\s*(?P<heat>\d{1,3})C\b")
PROCESS: Final = re.compile(
    r"^(?P<index>\d{1,4})\s+(?P<pid>\d{1,10})\s+(?P<name>\S.{0,200}?)\s+(?P<size>\d{1,9})MiB\s*$"
)


class MusaReader(ToolReader):
    """Every Moore Threads card: figures from `-q -j`, processes from the table."""

    vendor: Vendor = "mthreads"
    brand = "Moore Threads"
    tools = ("mthreads-gmi",)
    _has_json = True

    def samples(self, time_s: float) -> list[GpuSample]:
        """The cards of the JSON, or where there is none of the table."""
        shown = tool.output_of([self.name])
        samples: list[GpuSample] = []
        if self._has_json:
            try:
                samples = self._from_json(time_s)
            except SourceError:
                self._has_json = False
        samples = samples or musa_table(shown, time_s)
        if not samples:
            raise SourceError("`mthreads-gmi` shows no card in a form that is known (known: 1.14 to 2.4)")
        holding = _musa_processes(shown, self._holders)
        known = "Processes:" in shown
        return [
            replace(sample, processes=tuple(holding[sample.card.index]), processes_known=known) for sample in samples
        ]

    def _from_json(self, time_s: float) -> list[GpuSample]:
        answer = tidy(tool.json_of([self.name, "-q", "-j"]))
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
        sm_clock_hz=tool.hertz(tool.under(clocks, "Graphics")),
        memory_clock_hz=tool.hertz(tool.under(clocks, "Memory")),
        temperature_c=tool.number(tool.under(heat, "GPU Current Temp")),
    )


def musa_table(shown: str, time_s: float) -> list[GpuSample]:
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


def _musa_processes(shown: str, holders: Holders) -> dict[int, list[ProcessSample]]:
    found: dict[int, list[ProcessSample]] = defaultdict(list)
    begun = False
    for line in shown.splitlines()[:MOST_LINES]:
        begun = begun or line.startswith("Processes:")
        if begun and (row := PROCESS.match(line)):
            pid = int(row["pid"])
            who = {"name": tool.text(row["name"]).rpartition("/")[2]} | holders.of(pid)
            found[int(row["index"])].append(ProcessSample(pid=pid, memory_bytes=tool.size(row["size"], "MiB"), **who))
    return found
