"""The dict of `torch.cuda.memory._snapshot()`, of every version and as we write it ourselves, as a Snapshot.

What changed over time is in docs/snapshots.md. [snapshot] pytorch torch/csrc/cuda/Module.cpp, memory_snapshot.cpp
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from vramcast.domain.snapshot import (
    OWN_KEY,
    PREDICTED,
    Action,
    Annotation,
    BlockView,
    DeviceSnapshot,
    SegmentView,
    SizesAre,
    Snapshot,
    Totals,
    Trace,
)
from vramcast.sources.snapshots.streams import LARGEST_ADDRESS, LARGEST_SIZE, MOST_DEVICES, Damaged
from vramcast.sources.snapshots.tables import Tables, integer, rows, text
from vramcast.units import MIB

_TEXTS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "last_allocator_settings")
_LONGEST: Final = 4096
_LARGEST_SPLIT_MB: Final = 2**40
_TABLE_ENTRIES: Final = 16
_EXPANDABLE: Final = "expandable_segments:{}"
_SAYS_EXPANDABLE: Final = re.compile(r"expandable_segments\s*:\s*(\w+)")


def alloc_conf(settings: object, *, is_expandable: bool = False) -> str:
    """The text itself where the snapshot has it, else one that says the same as the parsed fields.

    Whether segments are expandable is as the parsed field says: a text set later replaces the earlier without
    resetting it, and where the driver has no such segments the field says so [pytorch c10/cuda/CUDAAllocatorConfig.h,
    expandable_segments]. Versions that write no settings show it by their segments.

    >>> alloc_conf({"max_split_size": 134217728, "expandable_segments": True})
    'max_split_size_mb:128,expandable_segments:True'
    >>> alloc_conf({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False})
    'expandable_segments:False'

    Args:
        settings: `allocator_settings` of the snapshot
        is_expandable: whether every segment of the snapshot is expandable, and there is one
    """
    if not isinstance(settings, dict):
        return _EXPANDABLE.format(True) if is_expandable else ""
    for key in _TEXTS:
        value = settings.get(key)
        if isinstance(value, str) and value and len(value) <= _LONGEST and value.isprintable():
            return _corrected(value, settings.get("expandable_segments"))
    return ",".join(_parsed(settings))


def _corrected(text: str, is_expandable: object) -> str:
    """The text with what the parsed field says of expandable segments."""
    said = _SAYS_EXPANDABLE.search(text)
    if not isinstance(is_expandable, bool) or (said is not None and said[1] == "True") == is_expandable:
        return text
    now = _EXPANDABLE.format(is_expandable)
    return f"{text},{now}" if said is None else text[: said.start()] + now + text[said.end() :]


def _parsed(settings: Mapping[str, Any]) -> Iterator[str]:
    split = settings.get("max_split_size")
    if type(split) is int and MIB <= split < _LARGEST_SPLIT_MB * MIB:  # -1 or 2^64 - 1: no limit
        yield f"max_split_size_mb:{split // MIB}"
    threshold = settings.get("garbage_collection_threshold")
    if type(threshold) is float and 0 < threshold < 1:
        yield f"garbage_collection_threshold:{threshold:g}"
    if settings.get("expandable_segments") is True:
        yield _EXPANDABLE.format(True)
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, dict):
        yield from _divisions(divisions)


def _divisions(table: Mapping[Any, Any]) -> Iterator[str]:
    """One number where all 16 intervals have the same, else the list; keys are MB, powers of two from 1."""
    keys = [str(2**power) for power in range(_TABLE_ENTRIES)]
    values = [table.get(key) for key in keys]
    if not all(type(value) is int and 0 <= value < 2**32 for value in values) or not any(values):
        return
    if len(set(values)) == 1:
        yield f"roundup_power2_divisions:{values[0]}"
        return
    yield f"roundup_power2_divisions:[{','.join(f'{key}:{value}' for key, value in zip(keys, values, strict=True))}]"


_MOST_REMARKS: Final = 100


class _Own(Struct):
    format: str = PREDICTED
    sizes_are: SizesAre = SizesAre.REQUESTS
    devices: list[int] = []
    without_segments: list[int] = []
    capacity_bytes: list[tuple[int, int]] = []
    without_addresses: list[int] = []
    totals: list[tuple[int, list[int], list[int]]] = []
    remarks: list[str] = []


def with_own(snapshot: Snapshot, said: Any) -> Snapshot:
    """The snapshot with what stands under our key.

    Raises: Damaged
    """
    try:
        own = convert(said, _Own)
    except (ValidationError, RecursionError) as problem:
        raise Damaged(
            "what stands under {!r} is not ours ({}); leave the key out", OWN_KEY, str(problem)[:120]
        ) from None
    capacities = {device: num_bytes for device, num_bytes in own.capacity_bytes if 0 < num_bytes <= LARGEST_SIZE}
    known = {device.device: device for device in snapshot.devices}
    for number in own.devices[:MOST_DEVICES]:
        if 0 <= number <= MOST_DEVICES and number not in known:
            known[number] = DeviceSnapshot(device=number, trace=Trace.empty(), segments=())
    totals = {
        number: _totals(*columns, trace=known[number].trace) for number, *columns in own.totals if number in known
    }
    devices = tuple(
        replace(
            known[number], has_segments=number not in own.without_segments, capacity_bytes=capacities.get(number),
            has_addresses=number not in own.without_addresses, totals=totals.get(number),
        )
        for number in sorted(known)
    )
    remarks = (*own.remarks[:_MOST_REMARKS], *snapshot.remarks)
    return replace(snapshot, format=own.format[:40], sizes_are=own.sizes_are, devices=devices, remarks=remarks)


def _totals(allocated: list[int], reserved: list[int], *, trace: Trace) -> Totals | None:
    """Columns as long as the trace; none for a trace without events.

    Raises: Damaged
    """
    for column in (allocated, *([reserved] if reserved else [])):
        if len(column) != len(trace) or not all(0 <= value <= LARGEST_SIZE for value in column):
            raise Damaged("totals under {!r} are not those of its events; leave the key out", OWN_KEY)
    return Totals(array("Q", allocated), array("Q", reserved) if reserved else None) if allocated else None


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
        raise Damaged("it lists {:,} devices; {} are the most that are read", len(traces), MOST_DEVICES)
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
            raise Damaged("segments {:#x} and {:#x} overlap; copy or record it again", left.address, right.address)
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
            raise Damaged(
                "the blocks of segment {:#x} do not tile its {} bytes; copy or record it again", segment, size
            )
        address += view.size_bytes
        yield view
    if address < end:
        yield BlockView(address=address, size_bytes=end - address, is_free=True)


def _block(block: Mapping[str, Any], address: int, tables: Tables) -> BlockView:
    state = text(block.get("state"), "state of a block")
    if state not in _STATES:
        raise Damaged("a block has the state {!r}; known are {}", state[:40], ', '.join(_STATES))
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
            spans[index] = replace(spans[index], end_us=time_us)
        elif entry.get("stage") != "END":
            running.append(len(spans))
            spans.append(Annotation(name, device, time_us, time_us))
    return tuple(spans)
