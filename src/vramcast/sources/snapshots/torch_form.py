"""The dict of `torch.cuda.memory._snapshot()`, of every version, as a Snapshot.

What changed over time is in docs/snapshots.md. [snapshot] pytorch torch/csrc/cuda/Module.cpp, memory_snapshot.cpp
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from vramcast.domain.snapshot import (
    OWN_KEY,
    Action,
    Annotation,
    BlockView,
    DeviceSnapshot,
    SegmentView,
    Snapshot,
    Trace,
)
from vramcast.sources.snapshots.alloc_conf import alloc_conf
from vramcast.sources.snapshots.limits import LARGEST_ADDRESS, MOST_DEVICES
from vramcast.sources.snapshots.own_form import with_own
from vramcast.sources.snapshots.tables import Damaged, Tables, integer, rows, text
from vramcast.units import MIB

_SMALL_SEGMENT_BYTES: Final = 2 * MIB
_STATES: Final[Mapping[str, tuple[bool, bool]]] = {  # is free, awaits its free
    "active_allocated": (False, False),
    "active_awaiting_free": (False, True),
    "active_pending_free": (False, True),
    "inactive": (True, False),
}


def torch_snapshot(root: Any, traces: Sequence[Trace | None], tables: Tables, *, name: str, form: str) -> Snapshot:
    """The recording as nouns.

    Args:
        root: the outermost dict, or the list of segments that `torch.cuda.memory_snapshot()` returns
        traces: events of each device in the order of `device_traces`; None where a device has none
        tables: what the events were read with

    Raises: Damaged
    """
    if isinstance(root, list | tuple):
        root = {"segments": root}
    if not isinstance(root, dict) or not ("segments" in root or "device_traces" in root):
        raise Damaged("it holds no segments and no device_traces; give what torch.cuda.memory._dump_snapshot() writes")
    if len(traces) > MOST_DEVICES:
        raise Damaged(f"it lists {len(traces):,} devices; {MOST_DEVICES} are the most that are read")
    segments: dict[int, list[SegmentView]] = {}
    for row in rows(root.get("segments", ()), "segments"):
        device, segment = _segment(row, tables)
        segments.setdefault(device, []).append(segment)
    devices = tuple(
        DeviceSnapshot(
            device=device,
            trace=_trace(traces, device),
            segments=_in_order(segments.get(device, ())),
            has_segments="segments" in root,
        )
        for device in sorted({*segments, *(index for index, trace in enumerate(traces) if trace)})
    )
    annotations = (*_annotations(rows(root.get("external_annotations") or (), "external_annotations")), *tables.marks)
    conf = alloc_conf(root.get("allocator_settings"), is_expandable=_is_expandable(devices))
    snapshot = Snapshot(
        name=name, format=form, devices=devices, alloc_conf=conf,
        stacks=tuple(tables.stacks), pools=tuple(tables.pools), labels=tuple(tables.labels),
        annotations=annotations, remarks=tables.remarks(),
    )  # fmt: skip
    return with_own(snapshot, root[OWN_KEY]) if OWN_KEY in root else snapshot


_TAKEN: Final = {Action.SEGMENT_MAP: True, Action.SEGMENT_ALLOC: False}
"""Whether what an event takes from the driver belongs to an expandable segment."""


def _is_expandable(devices: Sequence[DeviceSnapshot]) -> bool:
    """Whether the allocator takes nothing but expandable segments, and does take some."""
    taken = {segment.is_expandable for device in devices for segment in device.segments}
    for device in devices:
        taken |= {_TAKEN[Action(action)] for action in set(device.trace.actions) if action in _TAKEN}
    return taken == {True}


def _trace(traces: Sequence[Trace | None], device: int) -> Trace:
    trace = traces[device] if device < len(traces) else None
    return Trace.empty() if trace is None else trace


def _in_order(segments: Iterable[SegmentView]) -> tuple[SegmentView, ...]:
    ordered = sorted(segments, key=lambda segment: segment.address)
    for left, right in pairwise(ordered):
        if left.address + left.size_bytes > right.address:
            raise Damaged(f"segments {left.address:#x} and {right.address:#x} overlap; copy or record it again")
    return tuple(ordered)


def _segment(row: Any, tables: Tables) -> tuple[int, SegmentView]:
    if not isinstance(row, dict):
        raise Damaged("a segment must be a dict; give what torch.cuda.memory._dump_snapshot() writes")
    address = integer(row.get("address"), "address of a segment", most=LARGEST_ADDRESS)
    size = integer(row.get("total_size"), "total_size")
    device = integer(row.get("device", 0), "device", most=MOST_DEVICES)
    kind = row.get("segment_type")
    blocks = tuple(_blocks(row, address, size, tables))
    tables.spend(8 + 8 * len(blocks))
    return device, SegmentView(
        address=address,
        size_bytes=size,
        is_small=size == _SMALL_SEGMENT_BYTES if kind is None else kind == "small",
        is_expandable=row.get("is_expandable") is True,
        blocks=blocks,
        stream=integer(row.get("stream", 0), "stream", most=LARGEST_ADDRESS),
        pool=tables.pools[tables.pool(row.get("segment_pool_id"))],
    )


def _blocks(row: Mapping[str, Any], address: int, size: int, tables: Tables) -> Iterable[BlockView]:
    """The blocks, which must tile their segment; a rest that none claims is free."""
    end, segment = address + size, address
    for block in rows(row.get("blocks", ()), "blocks"):
        if not isinstance(block, dict):
            raise Damaged("a block must be a dict; give what torch.cuda.memory._dump_snapshot() writes")
        view = _block(block, address, tables)
        if view.address != address or view.size_bytes < 1 or address + view.size_bytes > end:
            raise Damaged(f"the blocks of segment {segment:#x} do not tile its {size} bytes; copy or record it again")
        address += view.size_bytes
        yield view
    if address < end:
        yield BlockView(address=address, size_bytes=end - address, is_free=True)


def _block(block: Mapping[str, Any], address: int, tables: Tables) -> BlockView:
    state = text(block.get("state"), "state of a block")
    if state not in _STATES:
        raise Damaged(f"a block has the state {state[:40]!r}; known are {', '.join(_STATES)}")
    is_free, awaits_free = _STATES[state]
    size = integer(block.get("size"), "size of a block")
    requested, stack = _request(block, size, tables)
    return BlockView(
        address=integer(block.get("address", address), "address of a block", most=LARGEST_ADDRESS),  # since 2.2
        size_bytes=size,
        requested_bytes=0 if is_free else requested,
        is_free=is_free,
        awaits_free=awaits_free,
        stack=0 if is_free else stack,
    )


def _request(block: Mapping[str, Any], size: int, tables: Tables) -> tuple[int, int]:
    """Unrounded request and stack; torch 2.0 kept both in a list of what the block was used for, newest first."""
    history = rows(block.get("history") or (), "history")
    latest = history[0] if history else {}
    if not isinstance(latest, dict):
        raise Damaged("an entry of history must be a dict")
    requested = integer(block.get("requested_size", latest.get("real_size", size)), "requested_size")
    return requested, tables.stack(block.get("frames", latest.get("frames")))


def _annotations(entries: Sequence[Any]) -> tuple[Annotation, ...]:
    """Spans from pairs of START and END; the innermost open one of that name and device ends."""
    spans: list[Annotation] = []
    started: dict[tuple[str, int], list[int]] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise Damaged("an annotation must be a dict")
        name = text(entry.get("name", ""), "name of an annotation")
        device = integer(entry.get("device", 0), "device", most=MOST_DEVICES)
        time_us = integer(entry.get("time_us", 0), "time_us", least=-(2**63))
        running = started.setdefault((name, device), [])
        if entry.get("stage") == "END" and running:
            index = running.pop()
            spans[index] = spans[index]._replace(end_us=time_us)
        elif entry.get("stage") != "END":
            running.append(len(spans))
            spans.append(Annotation(name, device, time_us, time_us))
    return tuple(spans)
