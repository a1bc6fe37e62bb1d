"""PyTorch's CUDA caching allocator, simulated: requests in, blocks and segments out."""

from vramcast.allocator.caching import Allocator, DeviceOutOfMemory
from vramcast.allocator.rounding import round_size, segment_bytes
from vramcast.allocator.settings import Settings
from vramcast.domain.snapshot import BlockView, SegmentView

__all__ = ["Allocator", "BlockView", "DeviceOutOfMemory", "SegmentView", "Settings", "round_size", "segment_bytes"]
