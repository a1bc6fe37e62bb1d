"""Memory over time in Chrome's Trace Event Format, for ui.perfetto.dev and chrome://tracing.

Each device is a process: counters of allocated, reserved and active bytes, annotations as spans, out-of-memory as
instants. [format] "Trace Event Format", google/trace-viewer documentation
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from msgspec import json

from vramcast.domain.snapshot import Action, DeviceSnapshot, Snapshot, Trace
from vramcast.errors import text_of

MOST_POINTS: Final = 200_000
"""Counter values written for one device; more are thinned to the highest of each stretch."""
_ANNOTATIONS_THREAD: Final = 1


class Counted(Protocol):
    """What a replay knows about one device after each of its events."""

    @property
    def allocated(self) -> array[int]: ...
    @property
    def reserved(self) -> array[int] | None: ...


def write_counters(snapshot: Snapshot, counted: Mapping[int, Counted], *, most_points: int = MOST_POINTS) -> bytes:
    """The trace as JSON.

    Leaves out single allocations: their number makes viewers stand still; memory snapshots show them.

    Args:
        snapshot: the recording
        counted: by device: allocated and reserved bytes after each event
        most_points: counter values written for one device; a stretch keeps where allocated and where reserved is
            highest in it, and its last
    """
    events: list[dict[str, Any]] = []
    for device in snapshot.devices:
        if device.device in counted:
            events += _device(snapshot, device, counted[device.device], most_points)
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"recording": snapshot.name}}
    return json.encode(trace, enc_hook=text_of)


def _device(snapshot: Snapshot, device: DeviceSnapshot, counted: Counted, most_points: int) -> Iterator[dict[str, Any]]:
    trace, number = device.trace, device.device
    times = _times(trace)
    yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": f"GPU {number}"}}
    active = _active(trace, counted)
    for index in _kept(counted, len(trace), most_points):
        values = {"allocated": counted.allocated[index], "active": active[index]}
        if counted.reserved is not None:
            values["reserved"] = counted.reserved[index]
        yield {"ph": "C", "name": "memory [bytes]", "pid": number, "tid": 0, "ts": times[index], "args": values}
    for index, action in enumerate(trace.actions):
        if action == Action.OOM:
            said = {"requested_bytes": trace.sizes[index]}
            if device.has_segments:  # a profile does not say what was free
                said["device_free_bytes"] = trace.addresses[index]
            yield {
                "ph": "i", "s": "p", "name": "out of memory", "pid": number, "tid": 0, "ts": times[index], "args": said,
            }  # fmt: skip
    for span in snapshot.annotations:
        if span.device == number:
            yield {
                "ph": "X", "name": span.name, "cat": "annotation", "pid": number, "tid": _ANNOTATIONS_THREAD,
                "ts": span.start_us, "dur": max(0, span.end_us - span.start_us),
            }  # fmt: skip


def _times(trace: Trace) -> array[int]:
    """When each event was; a recording without times counts its events."""
    return trace.times_us if any(trace.times_us) else array("q", range(len(trace)))


def _active(trace: Trace, counted: Counted) -> array[int]:
    """Allocated bytes, and those whose free waits for another stream [bytes]."""
    waiting: dict[int, int] = {}
    total = before = 0
    active = array("Q")
    for action, address, allocated in zip(trace.actions, trace.addresses, counted.allocated, strict=True):
        if action == Action.FREE_REQUESTED and allocated < before:
            total += before - allocated - waiting.get(address, 0)
            waiting[address] = before - allocated
        elif action == Action.FREE_COMPLETED:
            total -= waiting.pop(address, 0)
        before = allocated
        active.append(allocated + total)
    return active


def _kept(counted: Counted, num_events: int, most_points: int) -> Iterable[int]:
    """The events whose values are written: all, or of each stretch the highest and the last."""
    stretch = -(-3 * num_events // most_points)
    if num_events <= most_points:
        return range(num_events)
    kept: list[int] = []
    for start in range(0, num_events, stretch):
        inside = range(start, min(start + stretch, num_events))
        columns = (counted.allocated, counted.reserved or counted.allocated)
        highest = {max(inside, key=values.__getitem__) for values in columns}
        kept += sorted(highest | {inside[-1]})
    return kept
