"""Recordings of GPU memory, whatever wrote them, read into `domain.snapshot.Snapshot`."""

from vramcast.sources.snapshots.read import read_snapshot, snapshot_of
from vramcast.sources.snapshots.streams import LARGEST_BYTES

__all__ = ["LARGEST_BYTES", "read_snapshot", "snapshot_of"]
