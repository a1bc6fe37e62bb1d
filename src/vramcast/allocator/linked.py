"""The caching allocator over flat arrays, for numba to compile: whole runs, with or without a capacity.

It does what `gaps` does and stays beside it, for what makes one fast makes the other slow: `gaps` finds neighbours in
dictionaries and keeps order with `bisect`, which compiled code lacks; here blocks are linked by their rows in a table,
which interpreted takes 14 times as long. tests/allocator/test_fast.py holds both to the full allocator.

A row is a block, a gap, or a hole: address space of an expandable segment without memory. Sizes and addresses count
units of 512 bytes. All of it stands in one file: numba keeps compiled code as long as this file does not change.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from vramcast.allocator.gaps import BODY_BITS, BODY_MASK, REPEAT, SMALL, UNIT
from vramcast.allocator.settings import LARGE_SEGMENT_BYTES, OWN_SEGMENT_BYTES, SEGMENT_STEP_BYTES, SMALL_SEGMENT_BYTES

SMALL_SEGMENT: Final = SMALL_SEGMENT_BYTES // UNIT
LARGE_SEGMENT: Final = LARGE_SEGMENT_BYTES // UNIT
OWN: Final = OWN_SEGMENT_BYTES // UNIT
STEP: Final = SEGMENT_STEP_BYTES // UNIT
ADDRESS_BITS: Final = 32
"""Of a gap's key, an int64 that orders by size, then by address: the segments of a run lie within 2 TiB. Those of an
expandable pool have addresses of their own, from 0."""
MOST_UNITS: Final = 1 << 30
"""Largest request, and half of what an expandable segment ever maps: a key has 63 bits."""
DEEPEST: Final = 32
"""Loops within loops [count]."""

LIVE, GAP, HOLE = range(3)
FINE, OUT, BEYOND, CROWDED, UNALLOCATED = range(5)
"""How a run ends. CROWDED: in larger tables it may go on; UNALLOCATED: a block is freed that there is none of."""
NONE: Final = -1

# Columns. A row of eight fills a line of the cache.
ADDRESS, SIZE, BEFORE, AFTER, BELOW, STATE, BORN, _ = range(8)
GAPS, HOLES, PAGE, SLACK, EXPANDS = range(5)
ALLOCATED, PEAK, RESERVED, PEAK_RESERVED, CAPACITY, CHANGES = range(6)
TOP, ROWS, UNUSED, STATUS, BIRTHS, ALIVE, ELDEST = range(6, 13)
POSITION, END, START, ROUNDS, BIRTHS_THEN, ALIVE_THEN, CHANGES_THEN, ELDEST_THEN = range(8)


class Tables(NamedTuple):
    """One process on one device, as arrays of int64."""

    wants: Any  # request -> size
    kinds: Any  # request -> pool
    newest: Any  # request -> row of its newest live block
    blocks: Any  # row x (place, neighbours, block of the same request below it, state, count of blocks born before)
    keys: Any  # pool x gaps in order, size << ADDRESS_BITS | address
    rows: Any  # pool x row of each of them
    holes: Any  # pool x rows of holes, in order of address
    pools: Any  # pool x (gaps, holes, page, rest that is kept, whether it is expandable)
    totals: Any
    found: Any  # rows of gaps that are given back
    loops: Any  # those under way, each within the one before


compiled: Callable[..., Any] = njit(cache=True, _nrt=False)
inlined: Callable[..., Any] = njit(cache=True, forceinline=True, _nrt=False)


@inlined
def _new_row(t, address, size, before, after):
    row = t.totals[UNUSED]
    if row != NONE:
        t.totals[UNUSED] = t.blocks[row, AFTER]
    else:
        row = t.totals[ROWS]
        t.totals[ROWS] = row + 1
    block = t.blocks[row]
    block[ADDRESS], block[SIZE], block[BEFORE], block[AFTER] = address, size, before, after
    if after != NONE:
        t.blocks[after, BEFORE] = row
    return row


@inlined
def _cut(t, row, size):
    """Keeps the low part; the row of the rest."""
    block = t.blocks[row]
    rest = _new_row(t, block[ADDRESS] + size, block[SIZE] - size, row, block[AFTER])
    block[SIZE] = size
    block[AFTER] = rest
    return rest


@inlined
def _absorb_next(t, row):
    block = t.blocks[row]
    after = block[AFTER]
    block[SIZE] += t.blocks[after, SIZE]
    beyond = t.blocks[after, AFTER]
    block[AFTER] = beyond
    if beyond != NONE:
        t.blocks[beyond, BEFORE] = row
    t.blocks[after, AFTER] = t.totals[UNUSED]
    t.totals[UNUSED] = after


@inlined
def _place(t, pool, key):
    """Of the first gap that is no smaller."""
    low, high = 0, t.pools[pool, GAPS]
    while low < high:
        middle = (low + high) >> 1
        if t.keys[pool, middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@intrinsic
def _move(typing, array, pool, source, target, count):
    """Moves a stretch of a row of a table; as a loop, which numba cannot turn into memmove, half of all the time."""

    def lowered(context, builder, signature, arguments):
        array, pool, source, target, count = arguments
        found = context.make_array(signature.args[0])(context, builder, array)
        width = builder.extract_value(found.shape, 1)
        row = builder.mul(pool, width)
        to, of = (builder.gep(found.data, [builder.add(row, place)]) for place in (target, source))
        cgutils.raw_memmove(builder, to, of, count, itemsize=8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64, types.int64), lowered


@inlined
def _key(t, row):
    return t.blocks[row, SIZE] << ADDRESS_BITS | t.blocks[row, ADDRESS]


@inlined
def _shrink_gap(t, pool, place, row):
    """The gap at this place is now this smaller one."""
    key = _key(t, row)
    lower = _place(t, pool, key)
    _move(t.keys, pool, lower, lower + 1, place - lower)
    _move(t.rows, pool, lower, lower + 1, place - lower)
    t.keys[pool, lower], t.rows[pool, lower] = key, row
    t.blocks[row, STATE] = GAP


@inlined
def _grow_gap(t, pool, place, row):
    """The gap at this place is now this larger one."""
    key = _key(t, row)
    upper = _place(t, pool, key) - 1
    _move(t.keys, pool, place + 1, place, upper - place)
    _move(t.rows, pool, place + 1, place, upper - place)
    t.keys[pool, upper], t.rows[pool, upper] = key, row
    t.blocks[row, STATE] = GAP


@inlined
def _add_gap(t, pool, row):
    key = _key(t, row)
    place, last = _place(t, pool, key), t.pools[pool, GAPS]
    t.pools[pool, GAPS] = last + 1
    _move(t.keys, pool, place, place + 1, last - place)
    _move(t.rows, pool, place, place + 1, last - place)
    t.keys[pool, place], t.rows[pool, place] = key, row
    t.blocks[row, STATE] = GAP


@inlined
def _drop_place(t, pool, place):
    last = t.pools[pool, GAPS] - 1
    t.pools[pool, GAPS] = last
    _move(t.keys, pool, place + 1, place, last - place)
    _move(t.rows, pool, place + 1, place, last - place)


@inlined
def _drop_gap(t, pool, row):
    _drop_place(t, pool, _place(t, pool, _key(t, row)))


@inlined
def _merge_free(t, pool, row):
    """A gap of the block and the gaps beside it; [caching] free_block, try_merge_blocks."""
    before, after = t.blocks[row, BEFORE], t.blocks[row, AFTER]
    merges_before = before != NONE and t.blocks[before, STATE] == GAP
    merges_after = after != NONE and t.blocks[after, STATE] == GAP
    if not (merges_before or merges_after):
        _add_gap(t, pool, row)
        return row
    if merges_before and merges_after:
        _drop_gap(t, pool, after)
    place = _place(t, pool, _key(t, before if merges_before else after))
    if merges_after:
        _absorb_next(t, row)
    if merges_before:
        _absorb_next(t, before)
        row = before
    _grow_gap(t, pool, place, row)
    return row


@inlined
def _hold(t, more):
    totals = t.totals
    totals[CHANGES] += 1
    totals[RESERVED] += more
    totals[PEAK_RESERVED] = max(totals[PEAK_RESERVED], totals[RESERVED])


@compiled
def _new_segment(t, want):
    """A segment for a request, NONE where there is no room; [caching] alloc_block."""
    totals = t.totals
    if want <= SMALL:
        size = SMALL_SEGMENT
    elif want < OWN:
        size = LARGE_SEGMENT
    else:
        size = (want + STEP - 1) // STEP * STEP
    if totals[RESERVED] + size > totals[CAPACITY]:
        return NONE
    address = totals[TOP]
    totals[TOP] = address + size
    if address + size >= 1 << ADDRESS_BITS:
        totals[STATUS] = BEYOND
        return NONE
    _hold(t, size)
    return _new_row(t, address, size, NONE, NONE)


@compiled
def _add_hole(t, pool, row):
    place = t.pools[pool, HOLES]
    t.pools[pool, HOLES] = place + 1
    address = t.blocks[row, ADDRESS]
    while place > 0 and t.blocks[t.holes[pool, place - 1], ADDRESS] > address:
        t.holes[pool, place] = t.holes[pool, place - 1]
        place -= 1
    t.holes[pool, place] = row
    t.blocks[row, STATE] = HOLE


@compiled
def _drop_hole(t, pool, row):
    last = t.pools[pool, HOLES] - 1
    t.pools[pool, HOLES] = last
    place = 0
    while t.holes[pool, place] != row:
        place += 1
    for index in range(place, last):
        t.holes[pool, index] = t.holes[pool, index + 1]


@inlined
def _growable(t, row):
    """Size with the hole behind it, and whether there is one."""
    after = t.blocks[row, AFTER]
    if after != NONE and t.blocks[after, STATE] == HOLE:
        return t.blocks[row, SIZE] + t.blocks[after, SIZE], True
    return t.blocks[row, SIZE], False


@inlined
def _closed_gap(t, pool, place):
    """As expandable.closed_gap_index."""
    most, grows = _growable(t, t.rows[pool, place])
    if grows:
        for follower in range(place + 1, t.pools[pool, GAPS]):
            size, _ = _growable(t, t.rows[pool, follower])
            if size >= most:
                break
            most, place = size, follower
    return place


@compiled
def _run_of(t, pool, want):
    """As expandable._find."""
    for index in range(t.pools[pool, HOLES]):
        start = t.holes[pool, index]
        before = t.blocks[start, BEFORE]
        if before != NONE and t.blocks[before, STATE] == GAP:
            start = before
        size, row = 0, start
        while row != NONE and size < want and t.blocks[row, STATE] != LIVE:
            size += t.blocks[row, SIZE]
            row = t.blocks[row, AFTER]
        if size >= want:
            return start
    return NONE


@compiled
def _map(t, pool, row, size):
    """As expandable._map: the gap that results, NONE where there is no room."""
    page = t.pools[pool, PAGE]
    more = (size + page - 1) // page * page
    if t.blocks[row, ADDRESS] + more >= 2 * MOST_UNITS:
        t.totals[STATUS] = BEYOND
        return NONE
    if t.totals[RESERVED] + more > t.totals[CAPACITY]:
        return NONE
    _drop_hole(t, pool, row)
    if more < t.blocks[row, SIZE]:
        _add_hole(t, pool, _cut(t, row, more))
    _hold(t, more)
    return _merge_free(t, pool, row)


@compiled
def _expand(t, pool, want):
    """As expandable.expand: a block of at least this size, NONE where there is no room."""
    row = _run_of(t, pool, want)
    if row == NONE:
        t.totals[STATUS] = BEYOND
        return NONE
    if t.blocks[row, STATE] == HOLE:
        row = _map(t, pool, row, min(t.blocks[row, SIZE], want))
    while row != NONE and t.blocks[row, SIZE] < want:
        after = t.blocks[row, AFTER]
        row = _map(t, pool, after, min(want - t.blocks[row, SIZE], t.blocks[after, SIZE]))
    if row != NONE:
        _drop_gap(t, pool, row)
    return row


@compiled
def _unmap(t, pool, row):
    """As expandable.unmap: the whole pages inside a gap become a hole."""
    page, address = t.pools[pool, PAGE], t.blocks[row, ADDRESS]
    start = (address + page - 1) // page * page
    end = (address + t.blocks[row, SIZE]) // page * page
    if start >= end:
        return
    _drop_gap(t, pool, row)
    if start > t.blocks[row, ADDRESS]:
        inner = _cut(t, row, start - t.blocks[row, ADDRESS])
        _add_gap(t, pool, row)
        row = inner
    if end < t.blocks[row, ADDRESS] + t.blocks[row, SIZE]:
        _add_gap(t, pool, _cut(t, row, end - t.blocks[row, ADDRESS]))
    _hold(t, start - end)
    before, after = t.blocks[row, BEFORE], t.blocks[row, AFTER]
    if before != NONE and t.blocks[before, STATE] == HOLE:
        _drop_hole(t, pool, before)
        _absorb_next(t, before)
        row = before
    if after != NONE and t.blocks[after, STATE] == HOLE:
        _drop_hole(t, pool, after)
        _absorb_next(t, row)
    _add_hole(t, pool, row)


@compiled
def _release(t):
    """All that is free goes back to the driver; [caching] release_cached_blocks."""
    for pool in range(len(t.pools)):
        count = t.pools[pool, GAPS]
        if t.totals[ROWS] + 2 * count >= len(t.blocks):
            t.totals[STATUS] = CROWDED
            return
        for index in range(count):  # which change on the way
            t.found[index] = t.rows[pool, index]
        for index in range(count):
            row = t.found[index]
            block = t.blocks[row]
            if t.pools[pool, EXPANDS]:
                _unmap(t, pool, row)
            elif block[BEFORE] == NONE and block[AFTER] == NONE:  # a whole segment
                _drop_gap(t, pool, row)
                _hold(t, -block[SIZE])
                block[AFTER] = t.totals[UNUSED]
                t.totals[UNUSED] = row


@compiled
def _grow(t, pool, want):
    """A block in new memory; where there is no room, after the cache was given back."""
    for attempt in range(2):
        row = _expand(t, pool, want) if t.pools[pool, EXPANDS] else _new_segment(t, want)
        if row != NONE or t.totals[STATUS] != FINE:
            return row
        if attempt == 0:
            _release(t)
            if t.totals[STATUS] != FINE:
                return NONE
    t.totals[STATUS] = OUT
    return NONE


@inlined
def _allocate(t, request):
    """[caching] malloc, get_free_block, should_split."""
    want, pool, totals = t.wants[request], t.kinds[request], t.totals
    place = _place(t, pool, want << ADDRESS_BITS)
    if place < t.pools[pool, GAPS]:
        if t.pools[pool, EXPANDS]:
            place = _closed_gap(t, pool, place)
        row = t.rows[pool, place]
        if t.blocks[row, SIZE] - want > t.pools[pool, SLACK]:
            _shrink_gap(t, pool, place, _cut(t, row, want))
        else:
            _drop_place(t, pool, place)
    else:
        row = _grow(t, pool, want)
        if row == NONE:
            return
        if t.blocks[row, SIZE] - want > t.pools[pool, SLACK]:
            _add_gap(t, pool, _cut(t, row, want))
    block = t.blocks[row]
    block[STATE], block[BORN], block[BELOW] = LIVE, totals[BIRTHS], t.newest[request]
    t.newest[request] = row
    totals[BIRTHS] += 1
    totals[ALIVE] += 1
    totals[ALLOCATED] += block[SIZE]
    totals[PEAK] = max(totals[PEAK], totals[ALLOCATED])


@inlined
def _free(t, request):
    row, totals = t.newest[request], t.totals
    if row == NONE:  # compiled code would read and write before its tables
        totals[STATUS] = UNALLOCATED
        return
    t.newest[request] = t.blocks[row, BELOW]
    totals[ALIVE] -= 1
    totals[ALLOCATED] -= t.blocks[row, SIZE]
    totals[ELDEST] = min(totals[ELDEST], t.blocks[row, BORN])
    _merge_free(t, t.kinds[request], row)


@inlined
def _enter(t, loop, bounds, code):
    """The loop that a code says, before its first round."""
    body = code & BODY_MASK
    loop[ROUNDS] = (code - REPEAT) >> BODY_BITS
    loop[START], loop[END] = bounds[body], bounds[body + 1]
    loop[ELDEST_THEN] = t.totals[ELDEST]
    _begin(t, loop)


@inlined
def _begin(t, loop):
    totals = t.totals
    loop[POSITION] = loop[START]
    loop[BIRTHS_THEN], loop[ALIVE_THEN], loop[CHANGES_THEN] = totals[BIRTHS], totals[ALIVE], totals[CHANGES]
    totals[ELDEST] = totals[BIRTHS]


@inlined
def _goes_on(t, loop):
    """Whether there is another round that can do anything new.

    One that freed what it allocated and no older block, and took no new memory, left blocks and gaps as it found them.
    """
    totals = t.totals
    is_closed = totals[ELDEST] >= loop[BIRTHS_THEN] and totals[ALIVE] == loop[ALIVE_THEN]
    loop[ELDEST_THEN] = min(loop[ELDEST_THEN], totals[ELDEST])
    loop[ROUNDS] -= 1
    return loop[ROUNDS] > 0 and not (is_closed and totals[CHANGES] == loop[CHANGES_THEN])


@compiled
def play(t, codes, bounds, code):
    """The loop that a code says, to its end: FINE, or why it ended earlier."""
    loops = t.loops
    depth, totals = 0, t.totals
    _enter(t, loops[0], bounds, code)
    while depth >= 0:
        loop = loops[depth]
        if loop[POSITION] == loop[END]:
            if _goes_on(t, loop):
                _begin(t, loop)
            else:
                totals[ELDEST] = loop[ELDEST_THEN]
                depth -= 1
            continue
        code = codes[loop[POSITION]]
        loop[POSITION] += 1
        if code < 0:
            _free(t, ~code)
        elif code < REPEAT:
            _allocate(t, code)
        else:
            depth += 1
            if depth == DEEPEST:
                return BEYOND
            _enter(t, loops[depth], bounds, code)
        if totals[ROWS] + 4 > len(t.blocks):
            totals[STATUS] = CROWDED
        if totals[STATUS] != FINE:
            return totals[STATUS]
    return FINE
