"""Which reader a recording needs, by what is in it and not by its name."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, Final

from vramcast.domain.snapshot import Snapshot, Trace
from vramcast.errors import SourceError
from vramcast.sources.snapshots.limits import LARGEST_BYTES
from vramcast.sources.snapshots.pickles import Items, PickleReader
from vramcast.sources.snapshots.streams import Source, opened, source_of
from vramcast.sources.snapshots.tables import Damaged, Tables, rows
from vramcast.sources.snapshots.torch_form import torch_snapshot

_HEAD_BYTES: Final = 2**16
_PICKLES: Final = (b"\x80", b"}", b"]")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_snapshot(path: Path, *, limit_bytes: int = LARGEST_BYTES) -> Snapshot:
    """A recording of GPU memory: a torch snapshot (pickle or JSON), a profiler trace, or one that we wrote.

    Args:
        path: the file, as it is or inside gzip, zip or zstd
        limit_bytes: the most that it may hold unpacked [bytes]

    Raises: SourceError when it is no such recording, damaged, hostile or larger
    """
    with opened(path, limit_bytes=limit_bytes) as source:
        return _recording(source)


def snapshot_of(data: bytes, *, name: str, limit_bytes: int = LARGEST_BYTES) -> Snapshot:
    """The recording that some bytes hold, as `read_snapshot` reads a file of them.

    Args:
        data: the bytes, as they are or packed
        name: what sentences call it
        limit_bytes: the most that they may hold unpacked [bytes]

    Raises: SourceError when they hold no such recording, a damaged, hostile or larger one
    """
    return _recording(source_of(BytesIO(data), name=name, limit_bytes=limit_bytes))


def _recording(source: Source) -> Snapshot:
    try:
        return _read(source)
    except Damaged as problem:
        raise SourceError(f"{source.name}: {problem}") from None
    except RecursionError:
        raise SourceError(f"{source.name}: containers lie too deep in one another; no recording does") from None


def _read(source: Source) -> Snapshot:
    head = source.peek(_HEAD_BYTES)
    if head.startswith(_PICKLES):
        return _pickled(source)
    if head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
        from vramcast.sources.snapshots.json_form import read_json

        return read_json(source, head)
    if not head:
        raise source.error("is empty; give a recording of torch.cuda.memory._dump_snapshot() or of the profiler")
    raise source.error(
        "is neither a pickle nor JSON; give what torch.cuda.memory._dump_snapshot() or the profiler's "
        "export_chrome_trace() writes"
    )


def _pickled(source: Source) -> Snapshot:
    tables = Tables(source.most_values)
    reader = PickleReader(source, tables)
    root = reader.read()
    lists = rows(root.get("device_traces") or (), "device_traces") if isinstance(root, dict) else ()
    traces = [_trace(events) for events in lists]
    device_of = {events.number: device for device, events in enumerate(lists)}
    tables.marks = [mark._replace(device=device_of[mark.device]) for mark in tables.marks if mark.device in device_of]
    return torch_snapshot(root, traces, tables, name=source.name, form="torch")


def _trace(events: Any) -> Trace | None:
    if type(events) is Items and not events:
        return events.trace
    raise Damaged("a device trace must be a list of events with actions; copy or record it again")
