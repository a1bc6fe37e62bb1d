"""A torch that is not there: the counters that the hook reads, in the hands of the test."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vramcast.watch.hook import writer

GIB = 1 << 30


class FakeTorch(ModuleType):
    """torch as far as the hook asks it."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.__version__ = "2.13.0+fake"
        self.version = SimpleNamespace(cuda="13.0")
        self.compiler = SimpleNamespace(is_compiling=lambda: False)
        self.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
        self.observers: list[Any] = []
        self._C = SimpleNamespace(
            _cuda_attach_out_of_memory_observer=self.observers.append, _cuda_isHistoryEnabled=lambda: False
        )
        self.allocated = self.peak = self.reserved = 0
        self.resets = 0
        self.history: list[Any] = []
        self.is_initialized = True
        self.properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", uuid="aaaa-bbbb")
        self.cuda = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: self.is_initialized, current_device=lambda: 0,
            get_device_properties=lambda index: self.properties,
            memory_stats_as_nested_dict=lambda device: self.stats(),
            mem_get_info=lambda device: (80 * GIB - self.reserved - GIB // 2, 80 * GIB),
            reset_peak_memory_stats=self.reset,
            memory=SimpleNamespace(
                _record_memory_history=lambda **given: self.history.append(given),
                _snapshot=lambda: {"segments": [], "device_traces": [[]]},
            ),
        )

    def hold(self, allocated: int, peak: int | None = None) -> None:
        """So much is allocated now, and was at most."""
        self.allocated, self.peak = allocated, max(self.peak, allocated, peak or 0)
        self.reserved = max(self.reserved, self.peak)

    def reset(self, device: int) -> None:
        self.resets += 1
        self.peak = self.allocated

    def stats(self) -> dict[str, Any]:
        def whole(current: int, peak: int) -> dict[str, dict[str, int]]:
            return {"all": {"current": current, "peak": peak}}

        return {
            "allocated_bytes": whole(self.allocated, self.peak), "reserved_bytes": whole(self.reserved, self.reserved),
            "active_bytes": whole(self.allocated, self.peak), "inactive_split_bytes": whole(7, 7),
            "num_alloc_retries": 2, "num_ooms": 1,
        }


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Instead of torch, whether it is installed or not."""

    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(writer, "_attached", [])
    monkeypatch.setattr(writer, "_hooked", [])
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LC_ALL", "C")
    return fake
