"""Recordings as files that other tools open: memory snapshots and traces."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.emit import memory_snapshot as memory_snapshot

__getattr__ = submodules(__name__)
