"""Samples on their way into a recording: a thread of its own writes them in batches, so that training never waits.

What cannot be written (a full disk, a file that another process locks) is said once, kept as far as there is room, and
tried again. What a kill takes is at most what came within `INTERVAL_S`.

What happens when memory runs out: torch's recorded history goes to a file while everything is still alive.

torch calls its out-of-memory observers before it raises; they cannot be taken off again, so one of ours is attached for
the whole process and knows who listens [torch] c10/cuda/CUDACachingAllocator.cpp, `attachOutOfMemoryObserver`.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from vramcast.domain.observation import Event, RunInfo, TorchRun, TorchSample
from vramcast.errors import SourceError
from vramcast.watch.hook.counters import the_torch
from vramcast.watch.recording import Recorder

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


INTERVAL_S: Final = 1.0
MOST_WAITING: Final = 20_000
"""Samples that wait for a disk with room, some 10 MB; beyond it the oldest are lost [count]."""

Written = TorchSample | TorchRun | Event


class Writer:
    """A recording, written in the background."""

    def __init__(self, path: Path, info: RunInfo, say: Callable[..., None]) -> None:
        self.path, self._info, self._say = path, info, say
        self._waiting: deque[Written] = deque(maxlen=MOST_WAITING)
        self._batch: list[Written] = []  # of the thread
        self._lock = threading.Condition()
        self._ending = False
        self._asked = self._done = 0  # times that everything was to be written, and was
        self._failing = False
        self._pid = os.getpid()
        self._recorder: Recorder | None = None
        self._thread = threading.Thread(target=self._run, name="vramcast recording", daemon=True)
        self._thread.start()

    def put(self, *nouns: Written) -> None:
        """Write these soon. In a forked child, which has no such thread, nothing happens."""
        if os.getpid() == self._pid:
            self._waiting.extend(nouns)

    def flush(self, timeout_s: float) -> bool:
        """Whether everything that was given is in the file, waiting for it no longer than this."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            return False
        with self._lock:
            self._asked += 1
            mine = self._asked
            self._lock.notify_all()
            return self._lock.wait_for(lambda: self._done >= mine, timeout_s) and not self._failing

    def close(self, timeout_s: float) -> None:
        """Write what is left and let go of the file."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._ending = True
            self._lock.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        ending = False
        while not ending:
            with self._lock:
                if not self._ending and self._asked == self._done:
                    self._lock.wait(INTERVAL_S)
                ending, asked = self._ending, self._asked
            self._write()
            with self._lock:
                self._done = asked
                self._lock.notify_all()
        if self._recorder is not None:
            self._recorder.close()

    def _write(self) -> None:
        """Everything that waits, in one transaction; what fails waits on."""
        batch = self._batch
        while self._waiting:  # one at a time: training may append meanwhile
            batch.append(self._waiting.popleft())
        del batch[:-MOST_WAITING]
        if not batch and self._recorder is not None:
            return
        try:
            if self._recorder is None:
                self._recorder = Recorder.open(self.path, self._info)
            self._recorder.write_torch(
                [noun for noun in batch if isinstance(noun, TorchSample)],
                [noun for noun in batch if isinstance(noun, Event)],
                [noun for noun in batch if isinstance(noun, TorchRun)],
            )
        except (sqlite3.Error, OSError, SourceError) as error:
            if not self._failing:
                self._say("hook.not_written", path=self.path, why=error)
            self._failing = True
            return
        batch.clear()
        if self._failing:
            self._say("hook.written_again", path=self.path)
        self._failing = False
