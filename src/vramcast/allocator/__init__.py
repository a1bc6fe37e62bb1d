"""PyTorch's CUDA caching allocator, simulated: requests in, blocks and segments out."""

from typing import TYPE_CHECKING

from vramcast.lazy import names

if TYPE_CHECKING:
    from vramcast.allocator.caching import Allocator
    from vramcast.allocator.failure import DeviceOutOfMemory
    from vramcast.allocator.heap import Driver, RisingAddresses
    from vramcast.allocator.settings import Settings, round_size, segment_bytes

__all__ = [
    "Allocator", "DeviceOutOfMemory", "Driver", "RisingAddresses", "Settings", "round_size", "segment_bytes",
]

__getattr__ = names(__name__, {
    "Allocator": "caching", "DeviceOutOfMemory": "failure", "Driver": "heap", "RisingAddresses": "heap",
    "Settings": "settings", "round_size": "settings", "segment_bytes": "settings",
})
