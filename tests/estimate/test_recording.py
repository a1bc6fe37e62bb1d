"""A predicted run, event by event, adds up to the marks that the answer gives."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.test_timeline import Step, program_of
from vramcast.api import job_of
from vramcast.domain.job import Phase
from vramcast.domain.program import Program
from vramcast.domain.snapshot import Action, DeviceSnapshot, Snapshot
from vramcast.estimate.recorded import record
from vramcast.estimate.timeline import simulate
from vramcast.estimate.training import recorded

STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.booleans()), max_size=4)
SETTINGS = st.sampled_from(["", "expandable_segments:True", "roundup_power2_divisions:4"])

_TAKEN = {Action.SEGMENT_ALLOC: 1, Action.SEGMENT_MAP: 1, Action.SEGMENT_FREE: -1, Action.SEGMENT_UNMAP: -1}


def reserved_after(device: DeviceSnapshot) -> list[int]:
    """Reserved bytes after each event, of a recording that begins with nothing held."""
    found, held = [], 0
    for action, size in zip(device.trace.actions, device.trace.sizes, strict=True):
        held += _TAKEN.get(Action(action), 0) * size
        found.append(held)
    return found


def peaks(snapshot: Snapshot) -> dict[str, int]:
    """The highest reserved bytes of each phase."""
    (device,) = snapshot.devices
    held = reserved_after(device)
    return {
        span.name: max([held[span.start_us - 1] if span.start_us else 0, *held[span.start_us : span.end_us]])
        for span in snapshot.annotations
    }


def phases_of(steps: list[Step]) -> Mapping[Phase, Program]:
    """Two phases; the second finds what the first left."""
    return {Phase.FIRST_STEP: program_of(steps, 1), Phase.STEP: program_of(steps, 3)}


@given(steps=STEPS, alloc_conf=SETTINGS)
def test_segments_add_up_to_the_reserved_marks_of_each_phase(steps: list[Step], alloc_conf: str) -> None:
    phases = phases_of(steps)
    snapshot = record(phases, name="run", alloc_conf=alloc_conf)
    marks = simulate(phases, alloc_conf=alloc_conf)
    assert peaks(snapshot) == {phase.value: mark.reserved_bytes for phase, mark in marks.items()}


def test_where_memory_runs_out_the_recording_ends_with_the_failure() -> None:
    job = job_of({"model": "llama-3.1-8b", "gpus": "t4", "engine": "pytorch", "seq-len": 512})
    snapshot = recorded(job)
    trace = snapshot.devices[0].trace
    assert trace.actions[-1] == Action.OOM
    assert trace.addresses[-1] < trace.sizes[-1]
    assert "memory runs out: the recording ends there" in snapshot.remarks


@pytest.mark.parametrize("most", [1, 10, 100])
def test_of_a_long_run_the_newest_events_are_kept(most: int) -> None:
    job = job_of({"model": "llama-3.2-1b", "gpus": "h100-sxm-80gb", "engine": "pytorch", "seq-len": 512})
    whole = recorded(job)
    from vramcast.estimate.training import rank_programs

    kept = record(rank_programs(job)[0].phases, name="run", most_events=most)
    trace, device = kept.devices[0].trace, whole.devices[0]
    assert list(trace.sizes) == list(device.trace.sizes[-most:])
    assert [segment.size_bytes for segment in kept.devices[0].segments] == [s.size_bytes for s in device.segments]
    assert f"the first {len(device.trace) - most:,} of {len(device.trace):,} events" in kept.remarks[1]
