"""AMD cards through amd-smi, or where it is missing through rocm-smi.

[amdsmi] https://github.com/ROCm/amdsmi at 0ceca28 (24.7), amdsmi_cli/amdsmi_commands.py: `static`, `metric`, `process`
         with --json. Figures are {"value", "unit"}, unknown ones "N/A"; newer releases put the list under "gpu_data".
[rocm-smi] https://github.com/ROCm/rocm_smi_lib python_smi_tools/rocm_smi.py: --json gives "cardN" -> figures by their
         printed names. Of processes it knows only sums over cards, so none are named.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from vramcast.domain.observation import Card, GpuSample, ProcessSample, Vendor
from vramcast.errors import SourceError
from vramcast.watch import tool
from vramcast.watch.holders import Holders
from vramcast.watch.readers import ToolReader

AMD_SMI: Final = "amd-smi"
ROCM_SMI: Final = "rocm-smi"
STATIC: Final = ("static", "--asic", "--bus", "--limit", "--driver", "--json")
METRIC: Final = ("metric", "--json")
PROCESS: Final = ("process", "--json")
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
            running: dict[int, Any] | None = _by_gpu(tool.json_of([self.name, *PROCESS]))
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
