"""Runs through the compiled loop of `linked`, which importing this loads or compiles.

numba keeps what it compiled beside the source or in the user's cache folder; where it can write to neither, each
process compiles for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from vramcast.allocator import linked
from vramcast.allocator.device_memory import UNKNOWN_DEVICE_BYTES
from vramcast.allocator.gaps import SMALL, UNIT, BeyondAddresses, OutOfCapacity, Request, Run, repeat
from vramcast.domain.program import BrokenProgram
from vramcast.units import ceil_div

NO_CAPACITY: Final = 1 << 60
FIRST_ROWS: Final = 1 << 14
"""Of a table; more are made where a run needs more [count]."""


def marks(run: Run, *, expands: bool, capacity_bytes: int | None) -> list[tuple[int, int]]:
    """The high-water marks of each phase: allocated and reserved [bytes].

    Args:
        run: what happens
        expands: expandable_segments:True
        capacity_bytes: what the driver can give; None: everything [bytes]

    Raises: OutOfCapacity, BeyondAddresses where only the full allocator can tell, BrokenProgram for a run that frees
        what it has not allocated
    """
    bounds = np.cumsum([0, *map(len, run.bodies)])
    codes = np.fromiter(chain.from_iterable(run.bodies), np.int64, bounds[-1])
    rows, status = FIRST_ROWS, linked.CROWDED
    while status == linked.CROWDED:
        status, found = linked.FINE, list[tuple[int, int]]()
        tables = _tables(run.requests, expands=expands, capacity_bytes=capacity_bytes, rows=rows)
        for phase in run.phases:
            totals = tables.totals
            totals[linked.PEAK], totals[linked.PEAK_RESERVED] = totals[linked.ALLOCATED], totals[linked.RESERVED]
            status = linked.play(tables, codes, bounds, repeat(1, phase))
            if status != linked.FINE:
                break
            found.append((int(totals[linked.PEAK]) * UNIT, int(totals[linked.PEAK_RESERVED]) * UNIT))
        rows *= 4
    if status == linked.OUT:
        raise OutOfCapacity
    if status == linked.BEYOND:
        raise BeyondAddresses
    if status == linked.UNALLOCATED:
        raise BrokenProgram("a run frees what it has not allocated")
    return found


def _tables(requests: Sequence[Request], *, expands: bool, capacity_bytes: int | None, rows: int) -> linked.Tables:
    """A process that holds nothing yet."""
    most, wants = SMALL * UNIT, [-(-num_bytes // UNIT) for num_bytes, _ in requests]
    kinds: dict[tuple[bool, str], int] = {}
    of_request = [kinds.setdefault((num_bytes <= most, stream), len(kinds)) for num_bytes, stream in requests]
    if max(wants, default=0) >= linked.MOST_UNITS:
        raise BeyondAddresses
    tables = linked.Tables(
        wants=np.array(wants, np.int64),
        kinds=np.array(of_request, np.int64),
        newest=np.full(len(requests), linked.NONE),
        blocks=np.empty((rows, 8), np.int64),
        keys=np.empty((len(kinds), rows), np.int64),
        rows=np.empty((len(kinds), rows), np.int64),
        holes=np.empty((len(kinds), rows), np.int64),
        pools=np.zeros((len(kinds), 8), np.int64),
        totals=np.zeros(16, np.int64),
        found=np.empty(rows, np.int64),
        loops=np.empty((linked.DEEPEST, 8), np.int64),
    )
    totals = tables.totals
    totals[linked.TOP], totals[linked.UNUSED] = 1, linked.NONE
    totals[linked.CAPACITY] = NO_CAPACITY if capacity_bytes is None else capacity_bytes // UNIT
    for pool, (is_small, _) in enumerate(kinds):
        page = linked.SMALL_SEGMENT if is_small else linked.LARGE_SEGMENT
        tables.pools[pool, linked.PAGE] = page
        # As in `gaps`: a rest that could never serve the large pool stays with the block there.
        tables.pools[pool, linked.SLACK] = 0 if is_small or expands else SMALL
        if expands:
            _reserve(tables, pool, page, capacity_bytes)
    return tables


def _reserve(tables: linked.Tables, pool: int, page: int, capacity_bytes: int | None) -> None:
    """The address space of an expandable segment, one hole."""
    total = UNKNOWN_DEVICE_BYTES if capacity_bytes is None else capacity_bytes
    size = ceil_div(9 * total, 8 * page * UNIT) * page  # as expandable.range_bytes
    tables.pools[pool, linked.EXPANDS] = tables.pools[pool, linked.HOLES] = 1
    tables.blocks[pool] = 0, size, linked.NONE, linked.NONE, linked.NONE, linked.HOLE, 0, 0
    tables.holes[pool, 0] = pool
    tables.totals[linked.ROWS] += 1
