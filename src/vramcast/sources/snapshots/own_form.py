"""What our own snapshots say beyond torch's keys, under a key that other readers pass over."""

from __future__ import annotations

from array import array
from typing import Any, Final

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from vramcast.domain.snapshot import OWN_KEY, PREDICTED, DeviceSnapshot, SizesAre, Snapshot, Totals, Trace
from vramcast.sources.snapshots.limits import LARGEST_SIZE, MOST_DEVICES
from vramcast.sources.snapshots.tables import Damaged

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
        raise Damaged(f"what stands under {OWN_KEY!r} is not ours ({str(problem)[:120]}); leave the key out") from None
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
            raise Damaged(f"totals under {OWN_KEY!r} are not those of its events; leave the key out")
    return Totals(array("Q", allocated), array("Q", reserved) if reserved else None) if allocated else None
