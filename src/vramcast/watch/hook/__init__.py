"""The hook for training loops: torch's own counters, once a step, into a recording."""

from vramcast.watch.hook.recorder import MemoryRecorder, record_memory

__all__ = ["MemoryRecorder", "record_memory"]
