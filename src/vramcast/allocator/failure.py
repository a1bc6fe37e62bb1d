"""The error of a request that could not be served, with the state it failed in."""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.allocator.messages import TOO_LARGE, Figures, out_of_memory_message
from vramcast.allocator.rounding import LARGEST_REQUEST_BYTES
from vramcast.allocator.versions import Version
from vramcast.errors import InvalidSpec, OutOfMemory
from vramcast.units import format_bytes


class DeviceOutOfMemory(OutOfMemory):
    """A request that even releasing the whole cache could not serve, with the numbers torch would print."""

    def __init__(self, figures: Figures, *, requested_bytes: int, is_sized: bool) -> None:
        """The state at the failure.

        Args:
            figures: what torch's text names
            requested_bytes: what was asked for, unrounded [bytes]
            is_sized: whether the size of the device was given; `figures.total` and `figures.free` mean nothing else
        """
        self.figures = figures
        self.requested_bytes = requested_bytes
        self.is_sized = is_sized
        room = figures.allowed if figures.allowed is not None else figures.total if is_sized else None
        of = "" if room is None else f" of {format_bytes(room)}"
        super().__init__(
            f"a request of {format_bytes(requested_bytes)} needs {format_bytes(figures.tried)} from the device, where "
            f"{format_bytes(figures.reserved)}{of} are reserved and {format_bytes(figures.allocated)} allocated; "
            "free memory first, ask for less or use a larger device"
        )

    def torch_message(self, version: Version, *, processes: str = "", device: int = 0) -> str:
        """What torch of this version raises here, word for word.

        Args:
            version: of torch
            processes: what NVML says of the processes on the card; see out_of_memory_message
            device: index of the card

        Raises: InvalidSpec where the size of the device was not given, which the text names.
        """
        if self.requested_bytes > LARGEST_REQUEST_BYTES:
            return TOO_LARGE
        if not self.is_sized:
            raise InvalidSpec("torch's message names the size of the card; give capacity_bytes or total_bytes")
        return out_of_memory_message(replace(self.figures, device=device), version, processes=processes)
