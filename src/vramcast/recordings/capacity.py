"""How much an allocator could have had, as far as its recording tells."""

from __future__ import annotations

from typing import Final

from vramcast.allocator.rounding import segment_bytes
from vramcast.domain.snapshot import NO_STACK, Action, DeviceSnapshot, Trace
from vramcast.recordings.replay import Replayed

_RETURNS: Final = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})
PAGE_BYTES: Final = 2 << 20
"""The driver's pages: what an allocator has is a multiple of them."""


def recorded_capacity(device: DeviceSnapshot, replayed: Replayed) -> int | None:
    """What the allocator could have had, as far as the recording says [bytes].

    By what it held and the driver had free when it first ran out, or by the request that failed, where a limit other
    than the card refused it; else by what it gave back to make room; else the card, where that is named.

    Args:
        device: of a recording
        replayed: the same, replayed
    """
    trace = device.trace
    held = replayed.reserved
    for index, action in enumerate(trace.actions):
        if action == Action.OOM and held is not None:
            refused = segment_bytes(trace.sizes[index])
            free = trace.addresses[index] if device.has_segments else refused
            return held[index] + max(0, min(free, refused - PAGE_BYTES))
    limit = limit_by_retries(device, replayed)
    return limit if limit is not None else device.capacity_bytes


def limit_by_retries(device: DeviceSnapshot, replayed: Replayed) -> int | None:
    """The most that can have been there when cached segments were returned to make room for another one [bytes].

    A request returns its cache only after the driver refused: what was held and the segment together were too much.
    Both events then have the stack of that request; a program that empties its cache itself does so at another line.
    None where no request did so, no stacks tell, or more was held at another time.

    Args:
        device: of a recording
        replayed: the same, replayed
    """
    peak = replayed.peak_reserved_bytes
    if not replayed.num_alloc_retries or replayed.reserved is None or peak is None:
        return None
    trace = device.trace
    held = limit = None
    for index, action in enumerate(trace.actions):
        if action in _RETURNS:
            held = held if held is not None else replayed.reserved[index - 1] if index else None
            continue
        if action == Action.SEGMENT_ALLOC and held is not None and _one_request(trace, index):
            refused = held + trace.sizes[index]
            limit = refused if limit is None else min(limit, refused)
        held = None
    if limit is None or limit <= peak:
        return None
    return (limit - 1) // PAGE_BYTES * PAGE_BYTES


def _one_request(trace: Trace, index: int) -> bool:
    """Whether the segment of this event was taken by the call that returned the one before."""
    return trace.stacks[index] == trace.stacks[index - 1] != NO_STACK
