"""Reads PyTorch memory snapshots for the replay test; a pickle here may hold plain containers and nothing else."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from vramcast.allocator import BlockView, SegmentView, Settings, round_size
from vramcast.units import MIB

_REPO = Path(__file__).resolve().parents[2]
TRUTH = Path(os.environ.get("VRAMCAST_TRUTH", _REPO.parent / "shared" / "truth"))
"""The folder that holds `snapshots/`."""

Event = tuple[str, int, int]
"""(action, address, size [bytes])"""


class PlainUnpickler(pickle.Unpickler):
    """Refuses every class and function, so that a hostile file cannot run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError(f"snapshot names {module}.{name}; only plain containers are read")


class Snapshot:
    """The busiest device of one snapshot file."""

    def __init__(self, path: Path) -> None:
        """Read the file."""
        with gzip.open(path) as file:
            raw = PlainUnpickler(file).load()
        traces = raw["device_traces"]
        device = max(range(len(traces)), key=lambda index: len(traces[index]))
        self.events: list[Event] = [(e["action"], e.get("addr", 0), e["size"]) for e in traces[device]]
        conf = raw["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
        self.settings = Settings.parse(conf)
        rows = [segment for segment in raw["segments"] if segment["device"] == device]
        self.final = tuple(_segment(row) for row in sorted(rows, key=lambda row: int(row["address"])))

    def start(self) -> tuple[SegmentView, ...]:
        """The state before the first event: the final table rolled back.

        A block that was allocated before the recording and freed during it has no recorded size. The rounded request
        is right but for the slack of the large pool; and as no free block there is ever 1 MiB or less, a gap that
        small is slack.
        """
        live, new_addresses = _live_at_start(self.events)
        for segment in self.final:
            for block in segment.blocks:
                if not block.is_free and block.address not in new_addresses:
                    live[block.address] = block
        return tuple(_refill(segment, live) for segment in self._segments_at_start())

    def _segments_at_start(self) -> Iterator[SegmentView]:
        taken: set[int] = set()
        for action, address, size in self.events:
            if action == "segment_alloc":
                taken.add(address)
            elif action == "segment_free" and address not in taken:
                yield SegmentView(address=address, size_bytes=size, is_small=size == 2 * MIB, blocks=())
            elif action == "segment_free":
                taken.discard(address)
        yield from (segment for segment in self.final if segment.address not in taken)


def _segment(row: dict[str, Any]) -> SegmentView:
    blocks = []
    for block in row["blocks"]:
        is_free = block["state"] == "inactive"
        requested = 0 if is_free else block["requested_size"]
        blocks.append(
            BlockView(address=block["address"], size_bytes=block["size"], requested_bytes=requested, is_free=is_free)
        )
    return SegmentView(
        address=row["address"],
        size_bytes=row["total_size"],
        is_small=row["segment_type"] == "small",
        is_expandable=row["is_expandable"],
        blocks=tuple(blocks),
    )


def _live_at_start(events: list[Event]) -> tuple[dict[int, BlockView], set[int]]:
    """Blocks freed in the trace that it did not allocate; and addresses live at the end that it did."""
    live: dict[int, BlockView] = {}
    new: set[int] = set()
    for action, address, size in events:
        if action == "alloc":
            new.add(address)
        elif action == "free_completed" and address in new:
            new.discard(address)
        elif action == "free_completed":
            live[address] = BlockView(address=address, size_bytes=round_size(size), requested_bytes=size)
    return live, new


def _refill(segment: SegmentView, live: dict[int, BlockView]) -> SegmentView:
    """The segment with these live blocks, free ones between them, and small gaps as slack."""
    end = segment.address + segment.size_bytes
    inside = [live[address] for address in sorted(live) if segment.address <= address < end]
    starts = [block.address for block in inside] + [end]
    most_slack = 0 if segment.is_small or segment.is_expandable else MIB
    blocks = [] if starts[0] == segment.address else [_free(segment.address, starts[0])]
    for block, next_start in zip(inside, starts[1:], strict=True):
        gap = next_start - block.address - block.size_bytes
        size = block.size_bytes + (gap if gap <= most_slack else 0)
        blocks.append(BlockView(address=block.address, size_bytes=size, requested_bytes=block.requested_bytes))
        if block.address + size < next_start:
            blocks.append(_free(block.address + size, next_start))
    return SegmentView(
        address=segment.address,
        size_bytes=segment.size_bytes,
        is_small=segment.is_small,
        is_expandable=segment.is_expandable,
        blocks=tuple(blocks),
    )


def _free(start: int, end: int) -> BlockView:
    return BlockView(address=start, size_bytes=end - start, is_free=True)
