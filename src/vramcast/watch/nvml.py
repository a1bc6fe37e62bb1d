"""NVIDIA cards through NVML, by nvidia-ml-py: NVIDIA's own binding, one pure Python file.

NVML is what nvidia-smi itself asks. Every figure but memory is optional: what a card or driver does not know stays
None, and is not asked for again.
[nvml] https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.observation import Card, Event, EventKind, GpuSample, Partition, ProcessSample, Reading, Vendor
from vramcast.errors import Note, SourceError
from vramcast.watch.holders import Holders
from vramcast.watch.readers import Absent
from vramcast.watch.tool import printable

ALL_LINKS: Final = 0xFFFF_FFFF
"""Scope of a field that sums over every NVLink [nvml] nvmlFieldValue_t."""
LOST: Final = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "DRIVER_NOT_LOADED", "UNKNOWN", "NO_PERMISSION")
"""Errors after which a card does not answer at all."""
NEVER: Final = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED")
"""Errors that the same question would get again."""


Instances = dict[tuple[int, int | None], tuple[str, Any]]
"""(GPU instance, compute instance within it, None where the library does not say) -> uuid and handle. Several compute
instances can share the memory of one GPU instance."""


class CardLost(Exception):
    """The card does not answer; the text says why."""

    def __init__(self, why: str, *, forbidden: bool = False) -> None:
        super().__init__(why)
        self.forbidden = forbidden  # it answers others


class Query(NamedTuple):
    """One function of NVML with one number as its answer."""

    function: str
    arguments: tuple[int, ...] = ()
    scale: float = 1.0


QUERIES: Final[dict[str, Query]] = {
    "power_w": Query("nvmlDeviceGetPowerUsage", scale=1e-3),  # milliwatts
    "power_limit_w": Query("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
    "energy_j": Query("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3),
    "sm_clock_hz": Query("nvmlDeviceGetClockInfo", (1,), 1e6),  # NVML_CLOCK_SM, MHz
    "memory_clock_hz": Query("nvmlDeviceGetClockInfo", (2,), 1e6),  # NVML_CLOCK_MEM
    "ecc_corrected": Query("nvmlDeviceGetTotalEccErrors", (0, 0)),  # since the driver was loaded
    "ecc_uncorrected": Query("nvmlDeviceGetTotalEccErrors", (1, 0)),
}
"""Field of GpuSample -> what answers it."""
WHOLE: Final = frozenset({"sm_clock_hz", "memory_clock_hz", "ecc_corrected", "ecc_uncorrected"})

TEMPERATURES: Final = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
"""The second goes with CUDA 14."""
REASONS: Final = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The second is what drivers before 535 have."""
THROTTLED: Final[dict[int, str]] = {
    0x04: "power cap", 0x08: "hardware slowdown", 0x10: "sync boost", 0x20: "hot", 0x40: "hardware hot",
    0x80: "power brake",
}
"""Bits of the reasons that slow a card down; idling and clocks that somebody set do not count [nvml]."""

MEMORY_TEMPERATURE: Final = 82  # NVML_FI_DEV_MEMORY_TEMP
PCIE: Final = {"pcie_sent_bytes_per_s": 197, "pcie_received_bytes_per_s": 198}  # NVML_FI_DEV_PCIE_COUNT_*_BYTES
LINKS: Final = {"link_sent_bytes_per_s": 138, "link_received_bytes_per_s": 139}  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*
WIDE: Final = (2, 3)  # NVML_VALUE_TYPE_UNSIGNED_LONG, _LONG_LONG: counters that do not wrap within a reading


class Rates:
    """Remembers each counter's last value."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def of(self, name: str, value: float, time_s: float) -> float | None:
        """What a counter grew by a second since it was last seen; None the first time, and where it began anew.

        >>> rates = Rates()
        >>> rates.of("sent", 100, 1.0), rates.of("sent", 300, 2.0), rates.of("sent", 5, 3.0)
        (None, 200.0, None)
        """
        before = self._before.get(name)
        self._before[name] = (value, time_s)
        if before is None or value < before[0] or time_s <= before[1]:
            return None
        return (value - before[0]) / (time_s - before[1])


class NvmlCard:
    """One card. `read` raises CardLost where it does not answer."""

    def __init__(self, nvml: ModuleType, handle: Any, card: Card, holders: Holders) -> None:
        self.nvml = nvml
        self.handle = handle
        self.card = card
        self._holders = holders
        self._rates = Rates()
        self._unknown: set[tuple[Any, ...]] = set()  # questions that this card never answers
        self._seen_us = 0  # newest sample of processes' utilisation
        # a library older than an error has no name for it
        self._lost = {getattr(nvml, f"NVML_ERROR_{name}", None) for name in LOST}
        self._never = {getattr(nvml, f"NVML_ERROR_{name}", None) for name in NEVER}

    @classmethod
    def open(cls, nvml: ModuleType, index: int, holders: Holders) -> NvmlCard:
        """The card of an index. Raises CardLost where it does not answer."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            total: int | None = None
            try:
                total = nvml.nvmlDeviceGetMemoryInfo(handle).total
            except nvml.NVMLError_NotSupported:  # shares the machine's memory
                total = None
            card = Card(
                index=index, uuid=printable(nvml.nvmlDeviceGetUUID(handle)),
                model=printable(nvml.nvmlDeviceGetName(handle)),
                bus=_bus(nvml, handle), memory_total_bytes=total,
            )
        except nvml.NVMLError as error:
            raise CardLost(str(error), forbidden=error.value == nvml.NVML_ERROR_NO_PERMISSION) from None
        return cls(nvml, handle, card, holders)

    def read(self, time_s: float) -> GpuSample:
        """Everything that the card says of itself now."""
        figures: dict[str, Any] = self._memory()
        for field, query in QUERIES.items():
            value = self._ask(query.function, *query.arguments)
            if value is not None:
                figures[field] = round(value * query.scale) if field in WHOLE else value * query.scale
        busy = self._ask("nvmlDeviceGetUtilizationRates")
        if busy is not None:
            figures |= {"sm_share": _share(busy.gpu), "memory_share": _share(busy.memory)}
        figures |= self._traffic(time_s)
        partitions, instances = self._partitions()
        processes = self._processes(instances)
        return GpuSample(
            time_s=time_s, card=self.card, **figures, throttled=self._throttled(),
            temperature_c=self._first(TEMPERATURES, 0), partitions=partitions,
            processes=() if processes is None else processes, processes_known=processes is not None,
        )

    def _ask(self, function: str, *arguments: Any, of: Any = None) -> Any:
        """The answer of the card, or of one of its instances, or None. Raises CardLost where the card is gone.

        Without privileges a card in MIG mode refuses what its instances answer: only its own refusals are remembered.
        """
        key = (function, *arguments)
        if of is None and key in self._unknown:
            return None
        try:
            return getattr(self.nvml, function)(self.handle if of is None else of, *arguments)
        except (self.nvml.NVMLError, AttributeError) as error:
            code = getattr(error, "value", self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            if code == self.nvml.NVML_ERROR_GPU_IS_LOST:
                raise CardLost(str(error)) from None
            if code in self._never and of is None:
                self._unknown.add(key)
            return None

    def _first(self, functions: tuple[str, ...], *arguments: int) -> Any:
        answers = (self._ask(function, *arguments) for function in functions)
        return next((answer for answer in answers if answer is not None), None)

    def _memory(self) -> dict[str, int]:
        """Used, free and reserved bytes; a driver before 510 counts what is reserved as used."""
        try:
            try:
                memory = self.nvml.nvmlDeviceGetMemoryInfo(self.handle, self.nvml.nvmlMemory_v2)
            except (self.nvml.NVMLError_FunctionNotFound, self.nvml.NVMLError_ArgumentVersionMismatch):
                memory = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        except self.nvml.NVMLError as error:
            if error.value in self._lost:
                raise CardLost(str(error)) from None
            return {}
        found = {"memory_used_bytes": memory.used, "memory_free_bytes": memory.free}
        reserved = getattr(memory, "reserved", None)
        return found if reserved is None else found | {"memory_reserved_bytes": reserved}

    def _throttled(self) -> tuple[str, ...]:
        reasons = self._first(REASONS) or 0
        return tuple(name for bit, name in THROTTLED.items() if reasons & bit)

    def _traffic(self, time_s: float) -> dict[str, Any]:
        """Rates of PCIe and NVLink, and the memory's temperature, of which NVML has fields."""
        fields = ((number, 0) for number in (*PCIE.values(), MEMORY_TEMPERATURE))
        links = ((number, ALL_LINKS) for number in LINKS.values())
        values = self._ask("nvmlDeviceGetFieldValues", (*fields, *links))
        found: dict[str, Any] = {}
        counted = {value.fieldId: value for value in values or () if value.nvmlReturn == 0}
        if MEMORY_TEMPERATURE in counted:
            found["memory_temperature_c"] = float(counted[MEMORY_TEMPERATURE].value.uiVal)
        for scale, names in ((1, PCIE), (1024, LINKS)):  # bytes; KiB
            for name, number in names.items():
                if number in counted and counted[number].valueType in WIDE:
                    found[name] = self._rates.of(name, counted[number].value.ullVal * scale, time_s)
        for direction, name in enumerate(PCIE):  # 0: NVML_PCIE_UTIL_TX_BYTES, of the last 20 ms, KB/s
            if name not in found:
                rate = self._ask("nvmlDeviceGetPcieThroughput", direction)
                found[name] = None if rate is None else rate * 1000.0
        return found

    def _partitions(self) -> tuple[tuple[Partition, ...], Instances]:
        """MIG instances, and their uuid and handle by the numbers under which processes name them."""
        mode = self._ask("nvmlDeviceGetMigMode")
        partitions: list[Partition] = []
        instances: Instances = {}
        for index in range((self._ask("nvmlDeviceGetMaxMigDeviceCount") or 0) if mode and mode[0] else 0):
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
            uuid = None if handle is None else self._ask("nvmlDeviceGetUUID", of=handle)
            if uuid is None:
                continue
            memory = self._ask("nvmlDeviceGetMemoryInfo", of=handle)
            partitions.append(Partition(
                uuid=uuid, index=index,
                profile=printable(self._ask("nvmlDeviceGetName", of=handle) or "").rpartition("MIG ")[2],
                memory_total_bytes=getattr(memory, "total", None), memory_used_bytes=getattr(memory, "used", None),
                memory_free_bytes=getattr(memory, "free", None),
            ))
            instance = self._ask("nvmlDeviceGetGpuInstanceId", of=handle)
            if instance is not None:
                instances[instance, self._ask("nvmlDeviceGetComputeInstanceId", of=handle)] = (uuid, handle)
        return tuple(partitions), instances

    def _processes(self, instances: Instances) -> tuple[ProcessSample, ...] | None:
        """Who is on the card, largest first; None where the driver does not say."""
        shares = self._shares()
        found: dict[tuple[int, str], ProcessSample] = {}
        known = False
        for graphics, asked, entry in self._entries(instances):
            known = True
            if entry is None:
                continue
            uuid = asked or _named_by(entry, instances)
            before = found.get((entry.pid, uuid))
            found[entry.pid, uuid] = ProcessSample(
                pid=entry.pid, memory_bytes=entry.usedGpuMemory if before is None else before.memory_bytes,
                sm_share=shares.get(entry.pid), graphics=graphics, partition=uuid, **self._holders.of(entry.pid),
            )
        largest = sorted(found.values(), key=lambda process: -(process.memory_bytes or 0))
        return tuple(largest) if known else None

    def _entries(self, instances: Instances) -> Iterator[tuple[bool, str, Any]]:
        """(draws, partition where asked of one, entry) of every process; an entry of None begins each list."""
        for graphics, function in enumerate(
            ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        ):
            for uuid, handle in (("", None), *instances.values()):
                entries = self._ask(function, of=handle)
                if entries is not None:
                    yield bool(graphics), uuid, None
                    yield from ((bool(graphics), uuid, entry) for entry in entries)

    def _shares(self) -> dict[int, float]:
        """Share of the time in which kernels of each PID ran, since the last reading."""
        samples = self._ask("nvmlDeviceGetProcessUtilization", self._seen_us) or ()
        shares: dict[int, float] = {}
        for sample in sorted(samples, key=attrgetter("timeStamp")):
            share = _share(sample.smUtil)
            if share is not None:
                shares[sample.pid] = share
            self._seen_us = max(self._seen_us, sample.timeStamp)
        return shares


def _named_by(entry: Any, instances: Instances) -> str:
    """The uuid of the MIG instance that an entry of the whole card names; "" outside of them."""
    exact = instances.get((entry.gpuInstanceId, getattr(entry, "computeInstanceId", None)))
    uuid, _ = exact or instances.get((entry.gpuInstanceId, None), ("", None))
    return uuid


def _share(percent: int) -> float | None:
    """A percentage as a share; drivers are seen to say more than 100 where they do not know."""
    return percent / 100 if 0 <= percent <= 100 else None


def _bus(nvml: ModuleType, handle: Any) -> str:
    try:
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
    except nvml.NVMLError:
        return ""
    return bus.decode(errors="replace") if isinstance(bus, bytes) else str(bus)


NEEDS: Final = "NVIDIA: reading these cards needs nvidia-ml-py: pip install 'vramcast[watch]'"

LOADED: Final = Path("/proc/driver/nvidia/version")
"""There while the driver is loaded."""
ABSENT: Final = "LIBRARY_NOT_FOUND"
FAILURES: Final[dict[str, str]] = {
    ABSENT: "no libnvidia-ml.so.1: no NVIDIA driver is installed, or this container was started without it "
            "(docker run --gpus all)",
    "DRIVER_NOT_LOADED": "the driver is installed and not loaded; `modprobe nvidia` loads it",
    "NO_PERMISSION": "no permission to talk to the driver; open /dev/nvidiactl and /dev/nvidia* to this user, or "
                     "give the container the device",
    "LIB_RM_VERSION_MISMATCH": "libnvidia-ml and the loaded driver have different versions: the driver was updated "
                               "and the old one is still loaded; restart, or reload the modules",
    "INSUFFICIENT_POWER": "a card's external power cables are not attached",
    "IRQ_ISSUE": "the kernel has a problem with a card's interrupts",
    "GPU_NOT_FOUND": "the driver finds no card",
}
"""Errors of nvmlInit, by their NVML_ERROR_ name, as sentences."""


class NvmlReader:
    """Every card that NVML lists."""

    vendor: Vendor = "nvidia"

    def __init__(self, nvml: ModuleType, holders: Holders) -> None:
        self.nvml = nvml
        self.versions = _versions(nvml)
        self.watched: frozenset[str] = frozenset()
        self._holders = holders
        self._opened: dict[int, NvmlCard] = {}
        self._silent: set[int] = set()  # indices of cards that do not answer, which was said
        self._events: list[Event] = []  # not reported yet
        self._count: int = nvml.nvmlDeviceGetCount()
        for index in range(self._count):
            try:
                self._open(index)
            except CardLost as lost:
                self._lose(index, lost, 0.0)
        self.cards: tuple[Card, ...] = tuple(opened.card for opened in self._opened.values())
        self._everything = self.watched

    @classmethod
    def open(cls, holders: Holders) -> NvmlReader:
        """Raises: Absent where there is no driver, SourceError where it cannot be used, each with the way out."""
        try:
            import pynvml
        except ImportError:
            raise (SourceError if LOADED.exists() else Absent)(NEEDS) from None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, holders)
        except pynvml.NVMLError as error:
            raise _failure(pynvml, error) from None

    def read(self, time_s: float) -> Reading:
        """The watched cards; one that is lost is an event, once, and the others go on."""
        samples = [sample for index in range(self._count) if (sample := self._sample(index, time_s))]
        # where only some cards were asked for, those that were not there to be chosen are nobody's concern
        concern = [event for event in self._events if event.gpu_uuid or self.watched == self._everything]
        events, self._events = [replace(event, time_s=time_s) for event in concern], []
        return Reading(time_s=time_s, gpus=tuple(samples), events=tuple(events))

    def close(self) -> None:
        """Shut NVML down; a driver that refuses is left alone."""
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError:
            return

    def _sample(self, index: int, time_s: float) -> GpuSample | None:
        opened = self._opened.get(index)
        if opened is None and self.watched != self._everything:
            return None
        if opened is not None and opened.card.uuid not in self.watched:
            return None
        try:
            if opened is None or index in self._silent:
                opened = self._open(index)
            sample = opened.read(time_s)
        except CardLost as lost:
            self._lose(index, lost, time_s)
            return None
        if index in self._silent:
            self._silent.discard(index)
            self._happened(EventKind.GPU_BACK, index, "answers again", time_s)
        return sample

    def _open(self, index: int) -> NvmlCard:
        opened = NvmlCard.open(self.nvml, index, self._holders)
        if index not in self._opened:
            self.watched |= {opened.card.uuid}
            self._everything = self.watched
        self._opened[index] = opened
        return opened

    def _lose(self, index: int, lost: CardLost, time_s: float) -> None:
        """Say that a card does not answer, unless that was said."""
        if index not in self._silent:
            self._silent.add(index)
            # a card that this user may not read is none that broke
            kind = EventKind.READER_FAILED if lost.forbidden else EventKind.GPU_LOST
            self._happened(kind, index, f"cannot be read: {lost}", time_s)

    def _happened(self, kind: EventKind, index: int, what: str, time_s: float) -> None:
        opened = self._opened.get(index)
        name = f"GPU {index} ({opened.card.model})" if opened else f"GPU {index}"
        uuid = opened.card.uuid if opened else ""
        self._events.append(Event(time_s=time_s, kind=kind, gpu_uuid=uuid, text=f"{name} {what}"))


def _versions(nvml: ModuleType) -> dict[str, str]:
    asked: tuple[tuple[str, str], ...] = (
        ("driver", "nvmlSystemGetDriverVersion"), ("nvml", "nvmlSystemGetNVMLVersion"),
        ("cuda", "nvmlSystemGetCudaDriverVersion_v2"),
    )
    found: dict[str, str] = {}
    for name, function in asked:
        try:
            value: Any = getattr(nvml, function)()
        except nvml.NVMLError:
            continue
        found[name] = f"{value // 1000}.{value % 1000 // 10}" if name == "cuda" else str(value)
    return found


def _failure(nvml: ModuleType, error: Any) -> SourceError:
    names = {getattr(nvml, f"NVML_ERROR_{name}", None): name for name in FAILURES}
    name = names.get(error.value, "")
    why = FAILURES.get(name) or Note("NVML does not start: {}", error)
    return (Absent if name == ABSENT else SourceError)("NVIDIA: {}", why)
