"""PyTorch's CUDA caching allocator, simulated: requests in, blocks and segments out."""

from vramcast.allocator.caching import Allocator
from vramcast.allocator.failure import DeviceOutOfMemory
from vramcast.allocator.heap import Driver, RisingAddresses
from vramcast.allocator.settings import Settings, round_size, segment_bytes
from vramcast.domain.snapshot import BlockView, SegmentView

__all__ = [
    "Allocator", "BlockView", "DeviceOutOfMemory", "Driver", "RisingAddresses", "SegmentView", "Settings",
    "round_size", "segment_bytes",
]
