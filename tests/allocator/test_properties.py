"""Blocks never overlap and counters agree, whatever is asked in whatever order."""

import contextlib
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.heap import ADDRESS_BITS, ADDRESS_MASK
from vramcast.allocator.settings import OPTIONS as KEYS
from vramcast.errors import OutOfMemory, VramcastError
from vramcast.units import MIB

# What must hold after any sequence of calls, under any options.

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, MIB + 1024),
    st.integers(MIB - 512, 24 * MIB),
    st.integers(1, 300).map(lambda mib: mib * MIB),
    st.sampled_from([511, 512, 513, MIB, MIB + 1, 9 * MIB, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1, 8_519_680]),
)
# A call: a size to allocate, "free" with a number that picks the live block, or "empty" for empty_cache.
CALL = st.one_of(
    SIZES.map(lambda size: ("allocate", size)),
    SIZES.map(lambda size: ("allocate", size)),
    SIZES.map(lambda size: ("allocate", size)),
    st.integers(0, 1 << 16).map(lambda pick: ("free", pick)),
    st.integers(0, 1 << 16).map(lambda pick: ("free", pick)),
    st.sampled_from([("empty", 0), ("free", 0)]),
)
# Long lists explicitly: left alone, hypothesis draws about five calls, which hardly ever fragment a segment.
CALLS = st.lists(CALL, max_size=20) | st.lists(CALL, min_size=30, max_size=80)
OPTIONS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "max_split_size_mb:64,max_non_split_rounding_mb:40",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[1:1,2:8,16:2,>:4],expandable_segments:True",
        "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
        "max_split_size_mb:20,garbage_collection_threshold:0.6,per_process_memory_fraction:0.5",
        "large_segment_size_mb:12,max_split_size_mb:12",
        "expandable_segments:True,per_process_memory_fraction:0.7",
    ]
)
CAPACITIES = st.integers(2, 800).map(lambda mib: mib * MIB)


def run(allocator: Allocator, calls: list[tuple[str, int]], present: Iterable[int] = ()) -> list[int | None]:
    """The addresses handed out, None for out-of-memory; the state is checked after each call."""
    live = list(present)
    answers: list[int | None] = []
    for action, number in calls:
        if action == "allocate":
            try:
                live.append(allocator.allocate(number))
                answers.append(live[-1])
            except OutOfMemory:
                answers.append(None)
        elif action == "free" and live:
            allocator.free(live.pop(number % len(live)))
        elif action == "empty":
            allocator.empty_cache()
        check(allocator, live)
    return answers


def check(allocator: Allocator, live: list[int]) -> None:
    """The invariants."""
    segments = allocator.segments()
    blocks = [block for segment in segments for block in segment.blocks]
    for segment in segments:
        address = segment.address
        for block in segment.blocks:
            assert block.address == address
            assert block.size_bytes > 0 and block.size_bytes % 512 == 0
            assert block.size_bytes >= block.requested_bytes
            address += block.size_bytes
        assert address == segment.address + segment.size_bytes
        assert segment.size_bytes % (2 * MIB) == 0
        assert not any(a.is_free and b.is_free for a, b in pairwise(segment.blocks))
        if not segment.is_small and not segment.is_expandable:
            assert all(block.size_bytes > MIB for block in segment.blocks if block.is_free)
    for one, other in pairwise(segments):
        assert one.address + one.size_bytes <= other.address
    waiting = [block for block in blocks if block.awaits_free]
    held = [block for block in blocks if not block.is_free and not block.awaits_free]
    assert sorted(block.address for block in held) == sorted(live)
    counted, allocated = allocator.statistics(), allocator.allocated_bytes
    assert counted.all.reserved_bytes == allocator.reserved_bytes == sum(segment.size_bytes for segment in segments)
    assert counted.all.allocated_bytes == allocated == sum(block.size_bytes for block in held)
    assert counted.all.requested_bytes == allocator.requested_bytes == sum(block.requested_bytes for block in blocks)
    assert counted.all.active_bytes - allocated == sum(block.size_bytes for block in waiting)
    for name in counted.all.__struct_fields__:
        parts = getattr(counted.small_pool, name) + getattr(counted.large_pool, name)
        assert getattr(counted.all, name) == parts
    assert allocator.requested_bytes <= counted.all.active_bytes <= allocator.reserved_bytes
    assert allocated <= allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes
    assert allocator.reserved_bytes <= allocator.peak_reserved_bytes
    _check_sets(allocator)


def _check_sets(allocator: Allocator) -> None:
    """The sorted sets hold exactly the free and the unmapped blocks."""
    heap = allocator._heap
    private = [pool for owner in heap.private.values() for pool in (owner.small, owner.large)]
    for free in [free for pool in (heap.small, heap.large, *private) for free in pool.in_order()]:
        blocks = [block for block in heap.blocks.values() if block.pool is free]
        sizes = sorted((block.size_bytes, block.address) for block in blocks if block.is_free)
        assert [(key >> ADDRESS_BITS, key & ADDRESS_MASK) for key in free.keys] == sizes
        assert free.unmapped == sorted(block.address for block in blocks if not block.is_mapped)
    for address, block in heap.blocks.items():
        assert block.address == address
        assert block.next is None or (block.next.prev is block and block.next.address == block.end)


@given(before=CALLS, after=CALLS, options=st.sampled_from(["", "max_split_size_mb:20", "roundup_power2_divisions:4"]))
@settings(max_examples=40)
def test_a_restored_allocator_continues_as_the_first_one_does(
    before: list[tuple[str, int]], after: list[tuple[str, int]], options: str
) -> None:
    first, second = (Allocator(settings=Settings.parse(options)) for _ in range(2))
    run(first, before)
    second.restore(first.segments())
    live = [block.address for segment in first.segments() for block in segment.blocks if not block.is_free]
    for allocator in (first, second):
        run(allocator, after, live)
    assert _shape(first) == _shape(second)


def _shape(allocator: Allocator) -> list[list[tuple[int, int]]]:
    """Sizes of all blocks by address; the addresses of new segments may differ, their order does not."""
    return [[(b.size_bytes, b.requested_bytes) for b in s.blocks] for s in allocator.segments()]


# What must hold after any mixture of streams, waits, captures and pools, under any options and versions.

STREAMS = st.sampled_from([0, 7, 9])
POOLS = st.sampled_from([(1, 0), (2, 0), (0, 1)])
VERSIONS = st.sampled_from([(2, 9), (2, 10), (2, 13)])


class Process(RuleBasedStateMachine):
    """Calls in any order; a copy gets the same ones and must end up in the same state."""

    @initialize(options=OPTIONS, capacity=CAPACITIES, version=VERSIONS)
    def start(self, options: str, capacity: int, version: tuple[int, int]) -> None:
        if "large_segment" in options:
            version = (2, 13)
        parsed = Settings.parse(options, version)
        self.allocator, self.copy = (Allocator(settings=parsed, capacity_bytes=capacity) for _ in range(2))
        self.capacity, self.expands = capacity, "expandable" in options
        self.live: list[int] = []
        self.begun: list[tuple[int, int]] = []
        self.gone: set[tuple[int, int]] = set()

    def both(self, name: str, *args: object) -> object:
        outcomes = []
        for allocator in (self.allocator, self.copy):
            try:
                outcomes.append(getattr(allocator, name)(*args))
            except OutOfMemory:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    @rule(size=SIZES, stream=STREAMS)
    def allocate(self, size: int, stream: int) -> None:
        handle = self.both("allocate", size, stream)
        if isinstance(handle, int):
            self.live.append(handle)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 1 << 16))
    def free(self, pick: int) -> None:
        self.both("free", self.live.pop(pick % len(self.live)))

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 1 << 16), stream=STREAMS)
    def use_elsewhere(self, pick: int, stream: int) -> None:
        self.both("record_stream", self.live[pick % len(self.live)], stream)

    @rule(pick=st.integers(0, 1 << 16))
    def complete(self, pick: int) -> None:
        waiting = [block.address for s in self.allocator.segments() for block in s.blocks if block.awaits_free]
        if waiting:
            self.both("complete", waiting[pick % len(waiting)])

    @rule()
    def empty_cache(self) -> None:
        self.both("empty_cache")

    @rule(pool=POOLS)
    def begin(self, pool: tuple[int, int]) -> None:
        if pool not in self.begun and pool not in self.gone:
            self.both("begin_pool", pool)
            self.begun.append(pool)

    @precondition(lambda self: self.begun)
    @rule(releases=st.booleans())
    def end(self, releases: bool) -> None:
        pool = self.begun.pop()
        self.both("end_pool", pool)
        private = self.allocator._heap.private[pool]
        if releases and private.use_count == 1:
            self.both("release_pool", pool)
            self.gone.add(pool)

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "allocator"):
            return
        check(self.allocator, self.live)
        assert self.allocator.peak_reserved_bytes <= self.capacity
        limit = self.allocator._heap.limit_bytes
        assert limit is None or self.expands or self.allocator.peak_reserved_bytes <= limit

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            assert self.allocator.segments() == self.copy.segments()


TestProcess = Process.TestCase
TestProcess.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    text=st.lists(
        st.tuples(st.sampled_from([*KEYS, "x"]), st.sampled_from(["True", "8", "0.5", "[1:2,>:4]", "", "-1", "nan"])),
        max_size=4,
    ).map(lambda pairs: ",".join(f"{key}:{value}" for key, value in pairs))
    | st.text(max_size=30)
)
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    with contextlib.suppress(VramcastError):
        Settings.parse(text)
