"""What `torch.cuda.memory._record_memory_history` was told: whether events are kept, which, and with which stacks.

[history] pytorch c10/cuda/CUDACachingAllocator.cpp, recordHistory and record_trace; torch/csrc/cuda/memory_snapshot.cpp
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from vramcast.tracing.memory import Device

Context = Literal["state", "alloc", "all"]

WITHOUT_END: Final = 1 << 62
LEVELS: Final[dict[Context | None, int]] = {None: 0, "state": 1, "alloc": 2, "all": 3}
"""Which stacks are kept: of live blocks, of allocations among the events, of frees as well."""


class History:
    """Of all cards of a process; switched on and off by its script. Positions count events of a card's tape."""

    def __init__(self, devices: Iterable[Device]) -> None:
        """Off, as torch starts."""
        self._devices = tuple(devices)
        self._since: list[int] | None = None  # of each card; None while it is off
        self._framed: list[list[tuple[int, int]]] = [[] for _ in self._devices]  # spans in which stacks were kept
        self.level = 0
        self.most_entries = WITHOUT_END
        self.skipped: frozenset[str] = frozenset()
        self.is_awaited = False  # it is on, and no snapshot has been taken since

    @property
    def is_on(self) -> bool:
        """Whether events are kept."""
        return self._since is not None

    def record(
        self, enabled: str | None, context: Context | None, _stacks: str, most_entries: int, clear: bool = False,
        _compile_context: bool = False, _annotations: bool = False, skipped: Collection[str] = (),
    ) -> None:
        """`torch._C._cuda_record_memory_history`."""
        self._set(enabled is not None, LEVELS[context], most_entries if enabled == "all" else 1, clear, skipped)

    def record_legacy(
        self, enabled: bool, with_stacks: bool, most_entries: int, with_stacks_of_events: bool, _cpp: bool = False,
        clear: bool = False, _compile_context: bool = False, _annotations: bool = False,
        skipped: Collection[str] = (),
    ) -> None:
        """`torch._C._cuda_record_memory_history_legacy`."""
        level = 3 if with_stacks_of_events else int(with_stacks)
        self._set(enabled, level, most_entries, clear, skipped)

    def _set(self, on: bool, level: int, most_entries: int, clear: bool, skipped: Collection[str]) -> None:
        now = [len(device.tape.events) for device in self._devices]
        if self.is_on and self.level:
            for spans, position in zip(self._framed, now, strict=True):
                spans[-1] = (spans[-1][0], position)
        if on and level:
            for spans, position in zip(self._framed, now, strict=True):
                spans.append((position, WITHOUT_END))
        if not on:
            self._since = None  # and what was kept is gone
        elif self._since is None or clear:
            self._since = now
        self.level, self.most_entries, self.skipped = level if on else 0, most_entries, frozenset(skipped)
        self.is_awaited = on
        for device in self._devices:
            device.keeps_frees = self.level == LEVELS["all"]

    def first(self, device: int) -> int:
        """Position of the first event that is kept; without end where none is."""
        return WITHOUT_END if self._since is None else self._since[device]

    def has_stack(self, device: int, position: int) -> bool:
        """Whether the stack of an allocation there was kept."""
        return any(start <= position < end for start, end in self._framed[device])
