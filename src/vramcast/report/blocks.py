"""Every block of a recording for a picture in a browser: columns as bytes in base64, frames of stacks told once.

`web/page/parts/blocks.js` draws it, in the page and in the files that `--html` writes.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Iterable
from sys import byteorder
from typing import Any, Final

from vramcast.domain.snapshot import Snapshot
from vramcast.recordings.examine import Examined
from vramcast.recordings.lives import CATEGORIES
from vramcast.recordings.stacks import is_python, shown

PAGE: Final = 512
"""What all sizes of the allocator are multiples of [bytes]."""
MOST_FRAMES: Final = 24
"""Of one stack."""
MOST_TIMES: Final = 1024
"""Moments whose time is told."""


def blocks_plain(found: Examined) -> dict[str, Any] | None:
    """Plain data of a device's blocks; None without events. What frees do not tell apart has totals and no block."""
    blocks = found.blocks
    events = len(found.replayed.allocated)
    if not events:
        return None
    used = {stack: place for place, stack in enumerate(dict.fromkeys(blocks.stacks))}
    frames: dict[str, int] = {}
    reserved = found.replayed.reserved
    times = found.source.trace.times_us
    step = max(1, events // MOST_TIMES)
    plain = {
        "events": events,
        "starts": packed(blocks.starts), "ends": packed(blocks.ends), "sizes": packed(blocks.sizes),
        "categories": packed(blocks.categories), "stacks": packed(array("I", (used[one] for one in blocks.stacks))),
        "names": [category.value for category in CATEGORIES],
        "stack_frames": [_frames(found.snapshot, stack, frames) for stack in used],
        "frames": list(frames),
        "allocated": packed(_pages(found.replayed.allocated)),
    }
    if reserved is not None:
        plain["reserved"] = packed(_pages(reserved))
    if times and times[0]:
        plain["times_us"] = [times[event] - times[0] for event in range(0, events, step)]
    capacity = found.source.capacity_bytes
    return plain if capacity is None else plain | {"capacity_bytes": capacity}


def packed(column: array[Any]) -> str:
    """A column in little-endian bytes, in base64."""
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return b64encode(column.tobytes()).decode()


def _pages(sizes: Iterable[int]) -> array[int]:
    return array("I", (-(-size // PAGE) for size in sizes))


def _frames(snapshot: Snapshot, stack: int, frames: dict[str, int]) -> list[int]:
    """A stack as numbers of frames: those of Python, or all of one that has none."""
    whole = snapshot.stacks[stack] if 0 <= stack < len(snapshot.stacks) else ()
    python = [frame for frame in whole if is_python(frame)]
    return [frames.setdefault(shown(frame), len(frames)) for frame in (python or list(whole))[:MOST_FRAMES]]
