"""What must hold after any mixture of streams, waits, captures and pools, under any options and versions."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.options import OPTIONS as KEYS
from vramcast.errors import OutOfMemory, VramcastError

from .test_properties import CAPACITIES, OPTIONS, SIZES, _check_sets

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
        allocator = self.allocator
        segments = allocator.segments()
        blocks = [block for segment in segments for block in segment.blocks]
        for segment in segments:
            address = segment.address
            for block in segment.blocks:
                assert block.address == address
                address += block.size_bytes
            assert address == segment.address + segment.size_bytes
        waiting = [block for block in blocks if block.awaits_free]
        live = [block for block in blocks if not block.is_free and not block.awaits_free]
        assert sorted(block.address for block in live) == sorted(self.live)
        assert allocator.allocated_bytes == sum(block.size_bytes for block in live)
        counted = allocator.statistics()
        assert counted.all.active_bytes - allocator.allocated_bytes == sum(block.size_bytes for block in waiting)
        assert counted.all.active_bytes <= allocator.reserved_bytes
        assert counted.all.reserved_bytes == allocator.reserved_bytes
        assert counted.all.active_bytes == allocator.statistics().all.active_bytes
        assert counted.all.allocated_bytes == allocator.allocated_bytes
        assert counted.all.requested_bytes == allocator.requested_bytes
        for name in counted.all.__struct_fields__:
            parts = getattr(counted.small_pool, name) + getattr(counted.large_pool, name)
            assert getattr(counted.all, name) == parts
        _check_sets(allocator)

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            assert self.allocator.segments() == self.copy.segments()


TestProcess = Process.TestCase
TestProcess.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


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
