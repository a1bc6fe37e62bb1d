"""NVIDIA cards through NVML, by nvidia-ml-py: NVIDIA's own binding, one pure Python file.

NVML is what nvidia-smi itself asks. Every figure but memory is optional: what a card or driver does not know stays
None, and is not asked for again.
[nvml] https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.observation import Card, Event, EventKind, GpuSample, Reading, Vendor
from vramcast.errors import SourceError
from vramcast.watch.holders import Holders
from vramcast.watch.nvml_card import CardLost, NvmlCard
from vramcast.watch.reader import Absent

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
    sentence = f"NVIDIA: {FAILURES.get(name) or f'NVML does not start: {error}'}"
    return (Absent if name == ABSENT else SourceError)(sentence)
