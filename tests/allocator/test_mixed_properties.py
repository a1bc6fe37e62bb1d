"""What must hold after any mixture of streams, waits, captures and pools, under any options and versions."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.settings import OPTIONS as KEYS
from vramcast.errors import OutOfMemory, VramcastError

from .test_properties import CAPACITIES, OPTIONS, SIZES, check

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
