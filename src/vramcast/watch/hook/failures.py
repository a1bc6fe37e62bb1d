"""What happens when memory runs out: torch's recorded history goes to a file while everything is still alive.

torch calls its out-of-memory observers before it raises; they cannot be taken off again, so one of ours is attached for
the whole process and knows who listens [torch] c10/cuda/CUDACachingAllocator.cpp, `attachOutOfMemoryObserver`.
"""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from vramcast.watch.hook.counters import the_torch

HISTORY_ENTRIES: Final = 100_000
"""Allocations and frees that torch keeps, each some KB with its stack: a few hundred MB of main memory at most."""


class Listener(Protocol):
    """Who wants to know."""

    def ran_out(self) -> None:
        """The allocator has no memory left for a request and is about to raise."""

    def failed(self, error: BaseException) -> None:
        """The process is about to end by this."""


_listeners: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_attached: Final[list[Any]] = []  # what took our observer: torch's own, or that of a simulated card
_hooked: Final[list[bool]] = []


def listen(listener: Listener) -> None:
    """From now on the listener is told."""
    _listeners.add(listener)
    _attach()
    if not _hooked:
        _hooked.append(True)
        _hook()


def leave(listener: Listener) -> None:
    """No longer."""
    _listeners.discard(listener)


def _attach() -> None:
    torch = the_torch()
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)  # builds without CUDA have none
    if attach is not None and attach not in _attached and torch.cuda.is_available():
        _attached.append(attach)
        attach(_observed)


def _hook() -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        for listener in list(_listeners):
            listener.failed(error)

    sys.excepthook = hook


def _observed(*_: Any) -> None:
    for listener in list(_listeners):
        listener.ran_out()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is torch's, or was caused by it."""
    torch = the_torch()
    return any(isinstance(one, torch.OutOfMemoryError) for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def record_history() -> bool:
    """Let torch record allocations and frees with Python stacks; False where it does so already, or has no card."""
    torch = the_torch()
    if not torch.cuda.is_available():
        return False
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is not None and enabled():
        return False
    torch.cuda.memory._record_memory_history(max_entries=HISTORY_ENTRIES, stacks="python")
    return True


def stop_history() -> None:
    """Record no longer."""
    torch = the_torch()
    torch.cuda.memory._record_memory_history(enabled=None)


def save_snapshot(path: Path) -> int:
    """Torch's snapshot in a file, the whole of it or the one that was there before [bytes].

    Raises: OSError where it cannot be written
    """
    torch = the_torch()
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path.stat().st_size
