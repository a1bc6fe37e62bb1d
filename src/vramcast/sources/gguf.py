"""Headers of GGUF files (versions 2 and 3): metadata and tensors, without reading a weight.

Format: ggml-org/ggml docs/gguf.md. Every count and length is checked against what is left of the file and against a
fixed bound before anything is allocated.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from vramcast.domain.checkpoint import StoredTensor, StoredWeights
from vramcast.domain.model import Noun
from vramcast.errors import SourceError
from vramcast.sources.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES
from vramcast.sources.weights import LARGEST_ELEMENTS
from vramcast.units import round_up

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = b"GGUF"
MOST_VALUES: Final = 100_000
MOST_TENSORS: Final = 1_000_000
MOST_ELEMENTS: Final = 16_000_000  # of an array; vocabularies have a quarter of a million
KEPT_ELEMENTS: Final = 8_192  # of an array whose values are kept: layers, not tokens
MOST_DIMENSIONS: Final = 8
LONGEST_STRING: Final = 64 * 2**20
KEPT_STRING: Final = 4_096
LARGEST_HEADER: Final = 512 * 2**20
DEEPEST_ARRAY: Final = 4
DEFAULT_ALIGNMENT: Final = 32


class Skipped(Noun, frozen=True):
    """An array that was walked over, not kept."""

    count: int


class GgufHeader(Noun, frozen=True):
    """What a GGUF file says about itself."""

    version: int
    metadata: dict[str, Any]
    weights: StoredWeights

    @property
    def architecture(self) -> str:
        """`general.architecture`, "" when absent."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""


class _File(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def tell(self) -> int: ...


class _Reader:
    """Bounded reads of little- or big-endian values."""

    def __init__(self, file: _File, *, name: str, size: int) -> None:
        self._file, self.name, self._size, self._used = file, name, size, 0
        self._order = "<"

    def swap(self) -> None:
        """Read big-endian from here on."""
        self._order = ">"

    def error(self, problem: str) -> SourceError:
        """The error for this file."""
        return SourceError(f"{self.name}: {problem}")

    @property
    def position(self) -> int:
        """Bytes read or skipped."""
        return self._used

    def _take(self, size: int) -> None:
        self._used += size
        if self._used > self._size:
            raise self.error(f"is cut short or lists more than its {self._size} bytes hold")
        if self._used > LARGEST_HEADER:
            raise self.error(f"has a header of more than {LARGEST_HEADER} bytes")

    def bytes(self, size: int) -> bytes:
        """The next bytes."""
        self._take(size)
        data = self._file.read(size)
        if len(data) != size:
            raise self.error("is cut short")
        return data

    def skip(self, size: int) -> None:
        """Leave out the next bytes."""
        self._take(size)
        self._file.seek(size, 1)

    def scalar(self, code: str) -> Any:
        """The next value of a struct format."""
        layout = self._order + code
        return struct.unpack(layout, self.bytes(struct.calcsize(layout)))[0]

    def count(self, what: str, most: int) -> int:
        """The next 64-bit count, bounded."""
        value: int = self.scalar("Q")
        if value > most:
            raise self.error(f"{value} {what} are more than the {most} any model has")
        return value

    def string(self) -> str:
        """The next string; one longer than any name is cut."""
        length = self.count("bytes of a string", LONGEST_STRING)
        kept = self.bytes(min(length, KEPT_STRING))
        self.skip(length - len(kept))
        return kept.decode("utf-8", "replace")


def read_header(file: _File, *, name: str, size: int) -> GgufHeader:
    """The header of an open file.

    Args:
        file: positioned at its start
        name: how errors call it
        size: of the whole file [bytes]

    Raises: SourceError naming the file
    """
    reader = _Reader(file, name=name, size=size)
    if size < 4 or reader.bytes(4) != MAGIC:
        raise reader.error("is no GGUF file, its first bytes are not 'GGUF'")
    version: int = reader.scalar("I")
    if version & 0xFFFF == 0:
        reader.swap()
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise reader.error(f"is GGUF version {version}, only 2 and 3 are read; convert it with llama.cpp")
    num_tensors = reader.count("tensors", MOST_TENSORS)
    num_values = reader.count("metadata values", MOST_VALUES)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string()
        if key in metadata:
            raise reader.error(f"metadata key {key[:80]!r} stands twice")
        metadata[key] = _value(reader, reader.scalar("I"), depth=0)
    tensors = _tensors(reader, num_tensors, metadata, size)
    return GgufHeader(version=version, metadata=metadata, weights=StoredWeights(tensors=tensors))


def _value(reader: _Reader, kind: int, *, depth: int) -> Any:
    if kind in SCALARS:
        return reader.scalar(SCALARS[kind])
    if kind == STRING:
        return reader.string()
    if kind != ARRAY or depth >= DEEPEST_ARRAY:
        raise reader.error(f"metadata type {kind} at depth {depth} is not part of the format")
    inner: int = reader.scalar("I")
    count = reader.count("elements of an array", MOST_ELEMENTS)
    if inner in SCALARS and count > KEPT_ELEMENTS:
        reader.skip(count * struct.calcsize("<" + SCALARS[inner]))
        return Skipped(count=count)
    kept = []
    for number in range(count):
        value = _value(reader, inner, depth=depth + 1)
        if number < KEPT_ELEMENTS:
            kept.append(value)
    return tuple(kept) if count <= KEPT_ELEMENTS else Skipped(count=count)


def _tensors(reader: _Reader, count: int, metadata: dict[str, Any], size: int) -> tuple[StoredTensor, ...]:
    found: list[tuple[StoredTensor, int]] = []
    for _ in range(count):
        found.append(_tensor(reader))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
        raise reader.error(f"general.alignment={alignment!r} must be a power of two")
    start = round_up(reader.position, alignment)
    names, position = set(), 0
    for tensor, offset in sorted(found, key=lambda pair: pair[1]):
        if tensor.name in names:
            raise reader.error(f"tensor {tensor.name[:80]!r} stands twice")
        if offset % alignment or offset < position:
            raise reader.error(f"tensor {tensor.name[:80]!r} at {offset} overlaps or is not aligned to {alignment}")
        names.add(tensor.name)
        position = offset + tensor.num_bytes
    if start + position > size and found:
        raise reader.error(f"is cut short, its tensors end at {start + position} of {size} bytes")
    return tuple(tensor for tensor, _ in found)


def _tensor(reader: _Reader) -> tuple[StoredTensor, int]:
    name = reader.string()
    dimensions: int = reader.scalar("I")
    if dimensions > MOST_DIMENSIONS:
        raise reader.error(f"tensor {name[:80]!r} has {dimensions} dimensions, {MOST_DIMENSIONS} are possible")
    sizes = [int(reader.scalar("Q")) for _ in range(dimensions)]
    kind: int = reader.scalar("I")
    offset: int = reader.scalar("Q")
    if kind not in TENSOR_TYPES:
        raise reader.error(f"tensor {name[:80]!r} has type {kind}, which llama.cpp does not define")
    dtype, stored = TENSOR_TYPES[kind]
    # ggml lists the fastest dimension first
    tensor = StoredTensor(name=name, dtype=dtype, shape=tuple(reversed(sizes)), num_bytes=0)
    elements = tensor.elements
    if elements > LARGEST_ELEMENTS or (sizes and sizes[0] % stored.block):
        raise reader.error(f"tensor {name[:80]!r} of {elements} elements cannot be stored as {dtype}")
    rows = elements // sizes[0] if sizes and sizes[0] else 0
    num_bytes = elements // stored.block * stored.block_bytes + rows * stored.row_bytes
    return StoredTensor(name=name, dtype=dtype, shape=tensor.shape, num_bytes=num_bytes), offset


def read_file(path: Path) -> GgufHeader:
    """The header of a local file; of a model split over several files, only the first one's.

    Raises: SourceError naming the file
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return read_header(file, name=path.name, size=size)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error
