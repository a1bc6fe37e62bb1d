"""The part of a file that a reader looks at, moved along as it reads."""

from __future__ import annotations

from vramcast.sources.snapshots.streams import CHUNK_BYTES, Source


class Window:
    """Bytes of a source from `base` on; `position` is where the reader is in them."""

    def __init__(self, source: Source) -> None:
        """Begin where `source` stands."""
        self._source = source
        self._data, self._position, self._base = b"", 0, 0
        self._at_end = False

    def _refill(self, wanted: int = CHUNK_BYTES) -> None:
        """Let go of what was read, and fetch until there are so many bytes, or no more."""
        parts = [self._data[self._position :]]
        size = len(parts[0])
        while size < wanted:
            part = self._source.read(wanted - size)
            if not part:
                self._at_end = True
                break
            parts.append(part)
            size += len(part)
        self._base += self._position
        self._data, self._position = b"".join(parts), 0
