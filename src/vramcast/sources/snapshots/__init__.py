"""Recordings of GPU memory, whatever wrote them, read into `domain.snapshot.Snapshot`."""

from vramcast.sources.snapshots.limits import LARGEST_BYTES
from vramcast.sources.snapshots.read import read_snapshot, snapshot_of

__all__ = ["LARGEST_BYTES", "read_snapshot", "snapshot_of"]
