"""Samples on their way into a recording: a thread of its own writes them in batches, so that training never waits.

What cannot be written (a full disk, a file that another process locks) is said once, kept as far as there is room, and
tried again. What a kill takes is at most what came within `INTERVAL_S`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vramcast.domain.observation import Event, RunInfo, TorchRun, TorchSample
from vramcast.errors import SourceError
from vramcast.watch.recording import Recorder

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
