"""Pickles of `torch::cuda::_memory_snapshot_pickled()`: C++ writes protocol 2 and numbers values after they end."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tests.sources.snapshots.recordings import read, recording, resolved


class CppPickler:
    """As torch/csrc/jit/serialization/pickler.cpp writes: one MARK a container, texts and shared values once."""

    def __init__(self) -> None:
        self.parts = [b"\x80\x02"]
        self.memo: dict[object, int] = {}

    def dumps(self, value: Any) -> bytes:
        """The pickle."""
        self.write(value)
        return b"".join([*self.parts, b"."])

    def write(self, value: Any) -> None:
        """One value."""
        key: object = value if isinstance(value, str) else id(value)
        if key in self.memo and isinstance(value, str | dict | list):
            index = self.memo[key]
            self.parts.append(b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index))
            return
        self._content(value)
        if isinstance(value, str | dict | list):
            index = self.memo[key] = len(self.memo)
            self.parts.append(b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index))

    def _content(self, value: Any) -> None:
        if isinstance(value, bool):
            self.parts.append(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            small = 0 <= value < 256
            self.parts.append(b"K" + bytes([value]) if small else b"\x8a\x08" + struct.pack("<q", value))
        elif isinstance(value, str):
            text = value.encode()
            self.parts.append(b"X" + struct.pack("<I", len(text)) + text)
        elif isinstance(value, dict):
            self._container(b"}", [part for item in value.items() for part in item], b"u")
        elif isinstance(value, list):
            self._container(b"]", value, b"e")
        else:
            self._container(b"", value, b"t")

    def _container(self, first: bytes, values: Any, last: bytes) -> None:
        self.parts.append(first + b"(")
        for value in values:
            self.write(value)
        self.parts.append(last)


def test_what_cpp_writes_is_what_python_writes(tmp_path: Path) -> None:
    raw = recording(num_events=2500)
    assert resolved(read(tmp_path, CppPickler().dumps(raw))) == resolved(read(tmp_path, raw))
