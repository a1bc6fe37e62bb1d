"""The error of a request that could not be served, and the text that torch raises, word for word in each version.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator::malloc and format_size
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.allocator.settings import LARGEST_REQUEST_BYTES, Version
from vramcast.errors import InvalidSpec, OutOfMemory
from vramcast.units import GIB, KIB, MIB, format_bytes

_SPLIT_ADVICE: Final = "try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management"
_OLD_PAGE: Final = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_NEW_PAGE: Final = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)

_ROUND: Final = (
    "CUDA out of memory. Tried to allocate {tried} (GPU {device}; {total} total capacity; {allocated} already "
    "allocated; {free} free; {allowed}{reserved} reserved in total by PyTorch)"
)
_WITH_ADVICE: Final = _ROUND + f" If reserved memory is >> allocated memory {_SPLIT_ADVICE} and PYTORCH_CUDA_ALLOC_CONF"
_SENTENCES: Final = (
    "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total {capacity} of {total} of which {free} is "
    "free. {processes}{allowed}Of the allocated memory {allocated} is allocated by PyTorch, {pools}and {unallocated} "
    "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
)
_EXPAND: Final = (
    "try setting {variable}=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management "
    " ({page})"
)
TOO_LARGE: Final = "CUDA out of memory. Tried to allocate more than 1EB memory."

_POOLS_SINCE: Final[Version] = (2, 4)
_ALLOWED_IN: Final = ((1, 8), (2, 0)), ((2, 5), (99, 0))
"""Versions, both included, whose text names the limit of a memory fraction."""


class Figures(Struct, frozen=True, kw_only=True):
    """What the text names [bytes]."""

    tried: int  # the segment that was asked for
    total: int  # of the card, as the driver reports it
    free: int  # on the card, as the driver reports it
    allocated: int  # in live blocks
    reserved: int
    allowed: int | None = None  # the limit of a memory fraction; None without one
    pools: int = 0  # free blocks of private pools
    device: int = 0


def out_of_memory_message(figures: Figures, version: Version, *, processes: str = "") -> str:
    """What `str(error)` of the exception is.

    Args:
        figures: the numbers in it
        processes: what NVML says of the processes on the card, a sentence each with a blank behind it; "" where
            torch cannot ask it

    >>> f = Figures(tried=2 << 20, total=8 << 30, free=1 << 20, allocated=3 << 29, reserved=7 << 30)
    >>> out_of_memory_message(f, (1, 10))[:99]
    'CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 8.00 GiB total capacity; 1.50 GiB already al'
    """
    names_limit = figures.allowed is not None and any(first <= version <= last for first, last in _ALLOWED_IN)
    pools = figures.pools if version >= _POOLS_SINCE else 0
    return _template(version).format(
        tried=size_text(figures.tried),
        total=size_text(figures.total),
        free=size_text(figures.free),
        allocated=size_text(figures.allocated + pools),
        reserved=size_text(figures.reserved),
        unallocated=size_text(figures.reserved - figures.allocated - pools),
        allowed=f"{size_text(figures.allowed)} allowed; " if names_limit and figures.allowed is not None else "",
        pools=f"with {size_text(pools)} allocated in private pools (e.g., CUDA Graphs), " if pools else "",
        processes=processes,
        device=figures.device,
        capacity="capacty" if version < (2, 2) else "capacity",  # upstream's own slip
        variable="PYTORCH_ALLOC_CONF" if (2, 10) <= version < (2, 12) else "PYTORCH_CUDA_ALLOC_CONF",
        page=_NEW_PAGE if version >= (2, 12) else _OLD_PAGE,
    )


def _template(version: Version) -> str:
    if version < (2, 1):
        return _WITH_ADVICE
    if version < (2, 2):
        return _SENTENCES + _SPLIT_ADVICE + " and PYTORCH_CUDA_ALLOC_CONF"
    return _SENTENCES + _EXPAND


def size_text(num_bytes: int) -> str:
    """A size as upstream's format_size writes it.

    >>> size_text(1024), size_text(1 << 20), size_text(5 << 19), size_text(3 << 30)
    ('1024 bytes', '1024.00 KiB', '2.50 MiB', '3.00 GiB')
    """
    if num_bytes <= KIB:
        return f"{num_bytes} bytes"
    if num_bytes <= MIB:
        return f"{num_bytes / KIB:.2f} KiB"
    if num_bytes <= GIB:
        return f"{num_bytes / MIB:.2f} MiB"
    return f"{num_bytes / GIB:.2f} GiB"


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
            processes: what NVML says of the processes on the card; see out_of_memory_message

        Raises: InvalidSpec where the size of the device was not given, which the text names.
        """
        if self.requested_bytes > LARGEST_REQUEST_BYTES:
            return TOO_LARGE
        if not self.is_sized:
            raise InvalidSpec("torch's message names the size of the card; give capacity_bytes or total_bytes")
        return out_of_memory_message(replace(self.figures, device=device), version, processes=processes)
