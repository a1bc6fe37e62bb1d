"""The output of a process, passed on as it is while its end is kept: a terminal stays a terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

try:
    import fcntl
    import pty
    import termios
    import tty
except ImportError:  # Windows: its processes are given pipes
    HAS_TERMINALS = False
else:
    HAS_TERMINALS = True

KEPT_BYTES: Final = 4 << 20
PATIENCE_S: Final = 2.0
"""What a process leaves behind may hold its output open; so long is waited for that."""


class Channels:
    """Standard output and error of a process to be: `out` and `err` are what it is given."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._ends: list[int] = []  # given to the process, closed here once it runs
        self._threads: list[threading.Thread] = []
        self._terminals: list[tuple[int, int]] = []  # ours, the real one
        sys.stdout.flush()
        self.out = self._channel(1)
        same = os.path.sameopenfile(1, 2)  # what is one stays one, in the order in which it is written
        self.err = self.out if same else self._channel(2)

    def _channel(self, target: int) -> int:
        """What a process writes to in place of a stream of ours."""
        source, end = self._terminal(target) if HAS_TERMINALS and os.isatty(target) else os.pipe()
        self._ends.append(end)
        thread = threading.Thread(target=self._pass_on, args=(source, target), daemon=True)
        self._threads.append(thread)
        return end

    def _terminal(self, target: int) -> tuple[int, int]:
        """A terminal that changes nothing of what is written to it, as large as the real one."""
        source, end = pty.openpty()
        tty.setraw(end)
        self._terminals.append((source, target))
        self._resize()
        return source, end

    def _resize(self, *_: object) -> None:
        for source, target in self._terminals:
            with suppress(OSError):
                fcntl.ioctl(source, termios.TIOCSWINSZ, fcntl.ioctl(target, termios.TIOCGWINSZ, b"\0" * 8))

    def _pass_on(self, source: int, target: int) -> None:
        reader_left = False
        with suppress(OSError):  # a terminal ends so
            while data := os.read(source, 1 << 16):
                with self._lock:
                    self._kept += data
                    del self._kept[: max(0, len(self._kept) - KEPT_BYTES)]
                left = memoryview(data)
                while left and not reader_left:
                    try:
                        left = left[os.write(target, left):]
                    except BrokenPipeError:  # then the process learns of it, as it would without us
                        os.close(source)
                        reader_left = True

    def started(self) -> None:
        """The process runs and has its ends."""
        if self._terminals and hasattr(signal, "SIGWINCH"):
            signal.signal(signal.SIGWINCH, self._resize)
        for thread in self._threads:
            thread.start()
        self._release()

    def _release(self) -> None:
        for end in self._ends:
            os.close(end)
        self._ends = []

    def close(self) -> bytes:
        """Pass on what is left, and return the end of all that was written."""
        self._release()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(PATIENCE_S)
        with self._lock:
            return bytes(self._kept)
