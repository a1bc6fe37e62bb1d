"""Headers of safetensors files, without reading a weight, and how a checkpoint compares with its config.

A file is 8 bytes of little-endian header length, the header as JSON, then the data. The rules checked are those of
the reference implementation: header of at most 100 MB, offsets that cover the data without gap or overlap, and sizes
that follow from dtype and shape (huggingface/safetensors, safetensors/src/tensor.rs).
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from vramcast import blocks
from vramcast.domain.model import Checkpoint, Model, StoredTensor, StoredWeights
from vramcast.errors import Note, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


PACKED: Final = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f4", "f6_e2m3", "f6_e3m2"})
"""Dtypes whose elements are not weights one by one: several share an element, or they are indices."""

LARGEST_ELEMENTS: Final = 2**62
"""No tensor has more elements; larger products come from broken or hostile headers."""


def joined(parts: Iterable[StoredWeights]) -> StoredWeights:
    """The tensors of several files as one checkpoint."""
    return StoredWeights(tensors=tuple(tensor for part in parts for tensor in part.tensors))


def compared(model: Model, weights: StoredWeights | None) -> Checkpoint:
    """The model with its headers, and a note where the two disagree."""
    if weights is None:
        return Checkpoint(model=model)
    return Checkpoint(model=noted(model, comparison_notes(model, weights)), weights=weights)


def noted(model: Model, notes: tuple[str, ...]) -> Model:
    """The model with more notes."""
    return replace(model, notes=(*model.notes, *notes)) if notes else model


def comparison_notes(model: Model, weights: StoredWeights) -> tuple[str, ...]:
    """What a reader should know when the header and the config do not agree on the number of elements."""
    if not weights.tensors:
        return ()
    packed = sorted({tensor.dtype for tensor in weights.tensors} & PACKED)
    if packed:
        return (Note("checkpoint stores packed weights ({}); its elements were not compared", ", ".join(packed)),)
    return _element_notes(model, weights.elements)


def _element_notes(model: Model, found: int) -> tuple[str, ...]:
    expected = blocks.parameters.model.count_parameters(model).total
    difference = found - expected
    if difference == 0:
        return ()
    sizes = {kind: blocks.parameters.model.stored_elements(model, kind) for kind in blocks.parameters.model.Stored}
    sizes = {kind: size for kind, size in sizes.items() if size}
    for number in range(1, 4):
        for kinds in combinations(sizes, number):
            if sum(sizes[kind] for kind in kinds) == difference:
                extras = " and ".join(kind.value.replace("_", " ") for kind in kinds)
                return (Note("checkpoint also stores {} ({} elements)", extras, difference),)
    share = 100 * difference / expected
    return (Note("checkpoint holds {} elements where the config gives {} ({:+.2f} %)", found, expected, share),)


LENGTH_BYTES: Final = 8
LARGEST_HEADER: Final = 100_000_000
LARGEST_INDEX: Final = 100_000_000
MOST_SHARDS: Final = 2_000
INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"

DTYPES: Final = (
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)
DTYPE_BITS: Final = {name: int(re.sub(r"^[A-Z]+|_.*", "", name) or 8) for name in DTYPES}


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] = {}


def header_length(prefix: bytes, *, file: str, file_bytes: int | None = None) -> int:
    """Length of the JSON header, from the first eight bytes.

    Raises: SourceError for a length no header has
    """
    if len(prefix) < LENGTH_BYTES:
        raise SourceError("{}: {} bytes are too few for a safetensors file", file, len(prefix))
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise SourceError("{}: a header of {} bytes is no safetensors header (2 to {})", file, length, LARGEST_HEADER)
    if file_bytes is not None and LENGTH_BYTES + length > file_bytes:
        raise SourceError("{}: is cut short, its header of {} bytes does not fit {} bytes", file, length, file_bytes)
    return length


def parse_header(header: bytes, *, file: str, file_bytes: int | None = None) -> StoredWeights:
    """The tensors of a header.

    Args:
        header: the JSON, without its length [bytes]
        file: how errors call it
        file_bytes: size of the whole file, checked against the last offset when known [bytes]

    Raises: SourceError naming file and tensor
    """
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError("{}: the safetensors header is no JSON table ({})", file, error) from error
    entries.pop("__metadata__", None)
    spans: list[tuple[int, int, str]] = []
    tensors = []
    for name, raw in entries.items():
        tensor, start, end = _tensor(name, raw, file)
        tensors.append(tensor)
        spans.append((start, end, name))
    data = None if file_bytes is None else file_bytes - LENGTH_BYTES - len(header)
    _check_spans(sorted(spans), data, file)
    return StoredWeights(tensors=tuple(tensors))


def _tensor(name: str, raw: msgspec.Raw, file: str) -> tuple[StoredTensor, int, int]:
    where = f"{file}: tensor {name[:80]!r}"
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError("{}: {}", where, error) from error
    bits = DTYPE_BITS.get(entry.dtype)
    if bits is None:
        raise SourceError("{}: dtype {!r} is none of {}", where, entry.dtype[:20], ", ".join(DTYPE_BITS))
    if len(entry.shape) > 64 or any(size < 0 for size in entry.shape):
        raise SourceError("{}: shape must be at most 64 sizes from 0 up", where)
    tensor = StoredTensor(name=name, dtype=entry.dtype.lower(), shape=tuple(entry.shape), num_bytes=0)
    elements = tensor.elements
    if elements > LARGEST_ELEMENTS or elements * bits % 8:
        raise SourceError("{}: {} elements of {} are not a possible size", where, elements, entry.dtype)
    start, end = entry.data_offsets
    if not 0 <= start <= end or end - start != elements * bits // 8:
        raise SourceError("{}: offsets {}..{} do not hold its {} bytes", where, start, end, elements * bits // 8)
    return msgspec.structs.replace(tensor, num_bytes=end - start), start, end


def _check_spans(spans: list[tuple[int, int, str]], data_bytes: int | None, file: str) -> None:
    position = 0
    for start, end, name in spans:
        if start != position:
            raise SourceError(
                "{}: tensor {!r} at {} overlaps the one before" if start < position
                else "{}: tensor {!r} at {} leaves a gap before it", file, name[:80], start
            )
        position = end
    if data_bytes is not None and position != data_bytes:
        raise SourceError("{}: {} bytes of data where the header lists {}", file, data_bytes, position)


def read_file(path: Path) -> StoredWeights:
    """The tensors of one local file; only its header is read.

    Raises: SourceError naming the file
    """
    try:
        with path.open("rb") as file:
            file_bytes = file.seek(0, 2)
            file.seek(0)
            length = header_length(file.read(LENGTH_BYTES), file=path.name, file_bytes=file_bytes)
            header = file.read(length)
    except OSError as error:
        raise SourceError("{}: cannot be read ({})", path, error.strerror) from error
    return parse_header(header, file=path.name, file_bytes=file_bytes)


def parse_index(text: bytes, *, file: str) -> tuple[tuple[str, ...], int | None]:
    """Shard names of an index, and the total size it states [bytes].

    Raises: SourceError for names that are not plain file names, and for what is no index
    """
    if len(text) > LARGEST_INDEX:
        raise SourceError("{}: an index of more than {} bytes is refused", file, LARGEST_INDEX)
    try:
        index = msgspec.json.decode(text, type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError("{}: no safetensors index ({})", file, error) from error
    shards = tuple(sorted(set(index.weight_map.values())))
    for shard in shards:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}\.safetensors", shard):
            raise SourceError("{}: shard {!r} is not a plain .safetensors file name", file, shard[:80])
    if not 1 <= len(shards) <= MOST_SHARDS:
        raise SourceError("{}: lists {} shards where 1 to {} are possible", file, len(shards), MOST_SHARDS)
    return shards, stated_size(index.metadata)


def stated_size(metadata: Mapping[str, object]) -> int | None:
    """`total_size` of an index, when it is a plausible number."""
    size = metadata.get("total_size")
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    return size if isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**60 else None


def read_index(path: Path) -> StoredWeights:
    """The tensors of all shards of a local index; shards that are missing leave only the stated size."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_INDEX + 1)
    except OSError as error:
        raise SourceError("{}: cannot be read ({})", path, error.strerror) from error
    shards, size = parse_index(text, file=path.name)
    missing = [shard for shard in shards if not (path.parent / shard).is_file()]
    if missing and size is not None:
        return StoredWeights(listed_bytes=size)
    if missing:
        raise SourceError("{}: shard {} is missing beside it", path, missing[0])
    return joined(read_file(path.parent / shard) for shard in shards)


def read_directory(folder: Path) -> StoredWeights | None:
    """The checkpoint of a directory; None when it holds no safetensors."""
    if (folder / INDEX).is_file():
        return read_index(folder / INDEX)
    if (folder / SINGLE).is_file():
        return read_file(folder / SINGLE)
    files = sorted(folder.glob("*.safetensors"))[:MOST_SHARDS]
    return joined(map(read_file, files)) if files else None
