"""Vendors' command-line tools: found, run for a limited time, and their text read as if it were hostile.

The output of a process, passed on as it is while its end is kept: a terminal stays a terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any, Final

from vramcast.errors import SourceError
from vramcast.units import GIB, KIB, MIB


def printable(text: str, most: int = 512) -> str:
    """The text without what a terminal would obey, cut.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(character if character.isprintable() else "?" for character in text[:most])


LIMIT_S: Final = 8.0
"""A tool that takes longer is ended."""
MOST_BYTES: Final = 8 << 20
"""No machine's table is longer; what says more is not read."""

UNITS: Final[dict[str, int]] = {"": 1, "b": 1, "kib": KIB, "kb": KIB, "mib": MIB, "mb": MIB, "gib": GIB, "gb": GIB}
"""Unit of memory as these tools print it -> bytes: their MB are 2^20 [amdsmi] amdsmi_commands.py, // (1024*1024)."""
NUMBER: Final = re.compile(r"\s*(-?\d{1,19}(?:\.\d{1,9})?)\s*([A-Za-z%/]{0,8})\s*$")


def found(name: str) -> str | None:
    """The path of a tool, None where it is not installed."""
    return shutil.which(name)


def output_of(command: list[str], *, limit_s: float = LIMIT_S) -> str:
    """What a tool prints.

    Raises: SourceError where it cannot be run, fails, hangs or prints without end.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _run(command, out, err, limit_s)
        size = out.tell()
        text = _begin(out)
        if code != 0:
            why = (_begin(err).strip() or text.strip()).splitlines()
            if why:
                raise SourceError("`{}` failed with exit code {}: {}", " ".join(command), code, printable(why[0], 200))
            raise SourceError("`{}` failed with exit code {}", " ".join(command), code)
    if size > MOST_BYTES:
        raise SourceError("`{}` printed {:,} bytes, more than any table of cards has", " ".join(command), size)
    return text


def json_of(command: list[str]) -> Any:
    """What a tool prints as JSON; lines before its first bracket are notices.

    Raises: SourceError as `output_of`, and where it is not JSON.
    """
    text = output_of(command)
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=0)
    try:
        return json.loads(text[start:])
    except (ValueError, RecursionError):
        raise SourceError("`{}` did not print JSON: {!r}", " ".join(command), printable(text[:60].strip())) from None


def number(value: Any) -> float | None:
    """A number, bare, as text with a unit or as {"value", "unit"}; None for "N/A" and everything else.

    >>> number("96.66W"), number({"value": 12, "unit": "W"}), number("N/A")
    (96.66, 12.0, None)
    """
    return _measured(value)[0]


def size(value: Any, unit: str = "") -> int | None:
    """A size in bytes; `unit` where the value names none.

    >>> size("2MiB"), size({"value": 3, "unit": "B"}), size("7", "MB")
    (2097152, 3, 7340032)
    """
    amount, named = _measured(value)
    factor = UNITS.get((named or unit).lower())
    return None if amount is None or factor is None or amount < 0 else round(amount * factor)


def hertz(value: Any) -> int | None:
    """A clock that is given in MHz."""
    amount = number(value)
    return None if amount is None else round(amount * 1e6)


def share(value: Any) -> float | None:
    """A percentage as a share; None beyond 0 to 100."""
    amount = number(value)
    return amount / 100 if amount is not None and 0 <= amount <= 100 else None


def under(value: Any, *path: str) -> Any:
    """What stands at the end of a path through nested dictionaries, None where there is no such path.

    >>> under({"a": {"b": 1}}, "a", "b"), under({"a": "N/A"}, "a", "b")
    (1, None)
    """
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text(value: Any, most: int = 120) -> str:
    """A short, printable text; "" for "N/A" and everything else."""
    return printable(value.strip(), most) if isinstance(value, str) and value.strip() != "N/A" else ""


def _measured(value: Any) -> tuple[float | None, str]:
    if isinstance(value, dict):
        amount, _ = _measured(value.get("value"))
        unit = value.get("unit")
        return amount, unit if isinstance(unit, str) else ""
    if isinstance(value, bool):
        return None, ""
    if isinstance(value, (int, float)):
        return (float(value), "") if abs(value) < 1e19 else (None, "")
    match = NUMBER.match(value) if isinstance(value, str) and len(value) < 64 else None
    return (float(match[1]), match[2]) if match else (None, "")


def _run(command: list[str], out: IO[bytes], err: IO[bytes], limit_s: float) -> int:
    try:
        # a session of its own: what the tool started is ended with it; C: no tool translates its table
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            env=os.environ | {"LC_ALL": "C"},
        )
    except OSError as error:
        raise SourceError("cannot run `{}`: {}", command[0], error.strerror) from None
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise SourceError("`{}` gave no answer within {:g} s", " ".join(command), limit_s) from None
    finally:
        if process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:  # Windows, whose processes have no groups
                process.kill()
            process.wait()
        out.seek(0, os.SEEK_END)


def _begin(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST_BYTES).decode(errors="replace")


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
