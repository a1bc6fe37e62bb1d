"""A tape played, and the recording of the same tape."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.allocator import Settings
from vramcast.domain.snapshot import Action as Recorded
from vramcast.recordings.replay import replay
from vramcast.recordings.start import RecordedDevice
from vramcast.tracing.tape import Action, Origin, Phase, Tape, play, recording

ORIGIN = Origin(Phase.FORWARD, "", 0, 0)
CONFS = ("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4")
MIB = 1 << 20


def any_tape(seed: int, length: int, *, has_pools: bool = True) -> Tape:
    """Requests, frees and everything that is said beside them, in any order that is allowed."""
    draw, tape = random.Random(seed), Tape()
    live, waiting, used = [], [], set()
    for _ in range(length):
        what = draw.random()
        if what < 0.5 or not live:
            live.append(tape.add(draw.choice((1, 700, MIB, 3 * MIB, 30 * MIB)), draw.randrange(2), "aten.mm", ORIGIN))
        elif what < 0.8:
            block = live.pop(draw.randrange(len(live)))
            tape.end(block)
            if block.index in used:
                waiting.append(block)
        elif what < 0.9:
            block = draw.choice(live)
            tape.tell(Action.USE, block=block.index, number=7)
            used.add(block.index)
        elif what < 0.95 and waiting:
            tape.tell(Action.COMPLETE, block=waiting.pop(0).index)
        elif what < 0.97:
            tape.tell(Action.EMPTY_CACHE)
        elif has_pools:
            pool = len(tape.asides) + 1
            tape.tell(Action.BEGIN_POOL, number=pool)
            live.append(tape.add(5 * MIB, 0, "aten.mm", ORIGIN))
            tape.tell(Action.END_POOL, number=pool)
            tape.tell(Action.RELEASE_POOL, number=pool)
    return tape


def of_recording(tape: Tape, conf: str, capacity_bytes: int | None):
    return recording(
        tape, stacks=((),), labels=[""] * len(tape.blocks), name="any", settings=Settings.parse(conf),
        capacity_bytes=capacity_bytes, alloc_conf=conf,
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 30), st.integers(1, 120), st.sampled_from(CONFS), st.sampled_from((None, 120 * MIB, 600 * MIB))
)
def test_a_recording_holds_what_playing_says(seed, length, conf, capacity_bytes):
    tape = any_tape(seed, length)
    played = play(tape, settings=Settings.parse(conf), capacity_bytes=capacity_bytes)
    recorded = of_recording(tape, conf, capacity_bytes).devices[0]
    actions = list(recorded.trace.actions)
    assert (Recorded.OOM in actions) == (played.failure is not None)
    answered = actions.count(Recorded.ALLOC) + actions.count(Recorded.FREE_REQUESTED)
    assert answered == len(played.allocated)
    taken = _reserved(recorded.trace)
    assert taken == list(played.reserved)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 80), st.sampled_from(CONFS))
def test_a_recording_replayed_is_the_tape_played(seed, length, conf):
    tape = any_tape(seed, length, has_pools=False)  # a recording does not say when a pool loses its last user
    played, recorded = play(tape, settings=Settings.parse(conf)), of_recording(tape, conf, None)
    replayed = replay(RecordedDevice(recorded, recorded.devices[0]))
    asked = [
        at for at, action in enumerate(recorded.devices[0].trace.actions)
        if action in (Recorded.ALLOC, Recorded.FREE_REQUESTED)
    ]
    assert [replayed.allocated[at] for at in asked] == list(played.allocated)
    assert replayed.addresses_matched == replayed.allocations


def _reserved(trace):
    """After every request and free, what segment events add up to."""
    found, now = [], 0
    for at in range(len(trace)):
        action, size = trace.actions[at], trace.sizes[at]
        if action in (Recorded.ALLOC, Recorded.FREE_REQUESTED):
            found.append(now)
        elif action in (Recorded.SEGMENT_ALLOC, Recorded.SEGMENT_MAP):
            now += size
        elif action in (Recorded.SEGMENT_FREE, Recorded.SEGMENT_UNMAP):
            now -= size
    return found
