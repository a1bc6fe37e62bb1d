"""What our own snapshots say beyond torch's keys, under a key that other readers pass over."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from vramcast.domain.snapshot import DeviceSnapshot, SizesAre, Snapshot, Trace
from vramcast.sources.snapshots.limits import LARGEST_SIZE, MOST_DEVICES
from vramcast.sources.snapshots.tables import Damaged

OWN_KEY: Final = "vramcast"
_MOST_REMARKS: Final = 100


class _Own(Struct):
    format: str = "vramcast"
    sizes_are: SizesAre = SizesAre.REQUESTS
    devices: list[int] = []
    without_segments: list[int] = []
    capacity_bytes: list[tuple[int, int]] = []
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
    devices = tuple(
        replace(
            known[number], has_segments=number not in own.without_segments, capacity_bytes=capacities.get(number)
        )
        for number in sorted(known)
    )
    remarks = (*own.remarks[:_MOST_REMARKS], *snapshot.remarks)
    return replace(snapshot, format=own.format[:40], sizes_are=own.sizes_are, devices=devices, remarks=remarks)
