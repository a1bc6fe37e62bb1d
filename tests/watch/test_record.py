"""Recordings of a watch, followed and calibrated."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.watch.samples import CARD, EVENT, INFO, LIVING, SAMPLE, STEP, reading
from vramcast.domain.observation import Card, Event, EventKind, GpuSample, Holder, Partition, ProcessSample, Reading
from vramcast.errors import SourceError
from vramcast.units import GIB, MIB
from vramcast.watch.calibrate import measured_of
from vramcast.watch.following import MOST_POINTS, Following, Rules, Window, slope_of
from vramcast.watch.recording import Recorder, opened, read_run, runs_of

# Recordings: what is written comes back, files that are not recordings are left alone.


def recorded(path: Path) -> Path:
    recorder = Recorder.open(path, INFO)
    recorder.write(Reading(time_s=2.5, gpus=(SAMPLE,), events=(EVENT,)))
    recorder.write_torch([STEP])
    recorder.close()
    return path


counts, texts = st.none() | st.integers(0, (1 << 63) - 1), st.text(max_size=20)
figures = st.none() | st.floats(allow_nan=False)
people = st.builds(
    ProcessSample, pid=st.integers(0, 1 << 32), memory_bytes=counts, sm_share=figures, holder=st.sampled_from(Holder),
    graphics=st.booleans(), name=texts, command=texts, user=texts, container=texts, started_s=figures,
)
slices = st.builds(Partition, uuid=texts, index=st.integers(0, 7), profile=texts, memory_used_bytes=counts)
cards = st.builds(Card, index=st.integers(0, 64), uuid=st.just("x"), model=texts)
moments = st.builds(
    GpuSample, time_s=st.floats(0, 1e10), card=cards,
    memory_used_bytes=counts, sm_share=figures, throttled=st.lists(texts, max_size=3).map(tuple),
    ecc_corrected=counts, processes=st.lists(people, max_size=3).map(tuple), processes_known=st.booleans(),
    partitions=st.lists(slices, max_size=2).map(tuple),
)


@given(moments)
@settings(deadline=None, max_examples=60)
def test_whatever_is_written_is_read_back(sample: GpuSample) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        recorder = Recorder.open(path, INFO)
        recorder.write(Reading(time_s=1.0, gpus=(sample,)))
        recorder.close()
        assert read_run(path).gpus == (sample,)


def test_a_second_run_is_appended(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.sqlite")
    recorder = Recorder.open(path, replace(INFO, started_s=9.0))
    recorder.write(reading(10.0))
    recorder.close()
    assert [info.started_s for info in runs_of(path).values()] == [1.0, 9.0]
    assert [sample.time_s for sample in read_run(path).gpus] == [10.0]
    assert [sample.time_s for sample in read_run(path, 1).gpus] == [2.5]


def test_a_counter_beyond_64_bits_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    recorder = Recorder.open(path, INFO)
    recorder.write(reading(1.0, ecc_corrected=1 << 64))
    recorder.close()
    assert read_run(path).gpus[0].ecc_corrected is None


@pytest.mark.parametrize("content", [b"SQLite format 3\0 but not quite", b"time,gpu\n1,2\n" * 100])
def test_other_files_are_refused_and_left_as_they_are(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"notes\.txt"):
        Recorder.open(path, INFO)
    assert path.read_bytes() == content


def test_a_view_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE events")
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS run FROM n"
        database.execute(f"CREATE VIEW events AS {endless}")
    with pytest.raises(SourceError, match="is not a recording"):
        read_run(path)


def test_a_newer_schema_is_named(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(SourceError, match="has schema 99 and this vramcast reads 1; use a newer vramcast"):
        opened(path)


@pytest.mark.parametrize("damage", [
    "DELETE FROM gpus", "UPDATE gpus SET id = 77", "UPDATE process_samples SET memory_bytes = 'much'",
    "UPDATE runs SET versions = '{'",
])
def test_a_damaged_recording_is_summed_up_in_one_sentence(tmp_path: Path, damage: str) -> None:
    path = recorded(tmp_path / "run.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM torch_samples")
        database.execute(damage)
    with pytest.raises(SourceError, match="is damaged"):
        measured_of(path)


@pytest.mark.parametrize("damage", ["UPDATE runs SET versions = NULL", "DELETE FROM runs"])
def test_a_recording_without_its_versions_is_summed_up(tmp_path: Path, damage: str) -> None:
    path = recorded(tmp_path / "run.sqlite")
    whole = measured_of(path)
    with sqlite3.connect(path) as database:
        database.execute(damage)
    assert measured_of(path) == replace(whole, versions={})


def test_a_missing_file_or_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no recording"):
        read_run(tmp_path / "none.sqlite")
    with pytest.raises(SourceError, match="holds no run 7; its runs: 1"):
        read_run(recorded(tmp_path / "run.sqlite"), 7)


# Growth, alerts and who came and went, over readings made up second by second.

WINDOW_S = 600.0


def sample(time_s: float, *held: tuple[int, int]) -> GpuSample:
    """A card whose processes hold so many bytes."""
    processes = tuple(replace(LIVING, pid=pid, memory_bytes=size) for pid, size in held)
    used = sum(size for _, size in held)
    return replace(
        SAMPLE, time_s=time_s, memory_used_bytes=used, memory_free_bytes=79 * GIB - used, processes=processes
    )


def events_of(following: Following, samples: Iterable[GpuSample]) -> list[Event]:
    found: list[Event] = []
    for one in samples:
        found += following.follow(Reading(time_s=one.time_s, gpus=(one,))).events
    return found


def test_steady_growth_is_a_leak_once_and_its_end_is_said() -> None:
    following = Following(Rules())
    growing = [sample(float(second), (7, 10 * GIB + second * MIB)) for second in range(1200)]
    flat = [sample(float(second), (7, 10 * GIB + 1200 * MIB)) for second in range(1200, 3000)]
    events = events_of(following, [*growing, *flat])
    assert [event.kind for event in events] == [EventKind.LEAK, EventKind.LEAK_OVER]
    assert events[0].numbers["bytes_per_s"] == pytest.approx(MIB) and events[0].pid == 7
    assert 0.9 * WINDOW_S <= events[0].time_s < 700
    assert "python3[7] grows steadily, 3.52 GiB an hour" in events[0].text


def test_warming_up_and_wobbling_are_no_leak() -> None:
    following = Following(Rules())
    steps = [0, 5, 20, 30]  # loading, first forward, first step, then the same every step
    warm = [sample(float(second), (7, steps[min(second // 20, 3)] * GIB)) for second in range(1500)]
    wobble = [sample(1500.0 + second, (7, 30 * GIB + second % 2 * 8 * GIB)) for second in range(900)]
    assert events_of(following, [*warm, *wobble]) == []


def test_growth_below_the_limit_is_no_leak() -> None:
    slow = [sample(float(second), (7, 10 * GIB + second * (GIB // 7200))) for second in range(1500)]
    assert events_of(Following(Rules()), slow) == []
    stricter = Following(Rules(leak_bytes_per_s=GIB / 10_000))
    assert [event.kind for event in events_of(stricter, slow)] == [EventKind.LEAK]
    fast = [sample(float(second), (7, second * MIB)) for second in range(1500)]
    assert events_of(Following(Rules(leak_bytes_per_s=None)), fast) == []


def test_headroom_does_not_flicker_about_its_limit() -> None:
    following = Following(Rules(headroom_bytes=2 * GIB))
    free = [3.0, 1.9, 2.05, 1.95, 2.1, 1.9, 2.3, 1.9]
    samples = [sample(float(second), (7, round((79 - left) * GIB))) for second, left in enumerate(free)]
    kinds = [event.kind for event in events_of(following, samples)]
    assert kinds == [EventKind.HEADROOM, EventKind.HEADROOM_OVER, EventKind.HEADROOM]
    assert following.alerts[EventKind.HEADROOM] == 1


def test_who_comes_and_goes_is_said_and_forgotten() -> None:
    following = Following(Rules())
    events = events_of(following, [
        sample(1.0, (7, GIB)), sample(2.0, (7, GIB), (8, GIB)), sample(3.0, (8, GIB)), sample(4.0),
    ])
    assert [(event.kind, event.pid) for event in events] == [
        (EventKind.PROCESS_STARTED, 8), (EventKind.PROCESS_ENDED, 7), (EventKind.PROCESS_ENDED, 8)
    ]
    assert following.growth == {} and following._windows == {}


def test_processes_of_a_lost_card_have_not_ended() -> None:
    following = Following(Rules())
    events_of(following, [sample(1.0, (7, GIB))])
    lost = Event(time_s=2.0, kind=EventKind.GPU_LOST, gpu_uuid=CARD.uuid, text="gone")
    after = following.follow(Reading(time_s=2.0, gpus=(), events=(lost,)))
    assert [event.kind for event in after.events] == [EventKind.GPU_LOST]
    assert following.cards[CARD.uuid].lost == "gone"
    assert events_of(following, [sample(3.0, (7, GIB))]) == [] and following.cards[CARD.uuid].lost == ""


def test_when_memory_runs_out() -> None:
    following = Following(Rules())
    events_of(following, [sample(float(second), (7, second * GIB // 10)) for second in range(0, 400, 10)])
    followed = following.cards[CARD.uuid]
    assert followed.runs_out_in_s == pytest.approx((79 - 39) * 10)
    events_of(following, [sample(400.0 + second, (7, 20 * GIB)) for second in range(0, 700, 10)])
    assert followed.runs_out_in_s is None and followed.peak_bytes == 39 * GIB


def test_dead_and_invisible_holders_are_unaccounted_for() -> None:
    gone = ProcessSample(pid=9, memory_bytes=3 * GIB, holder=Holder.INVISIBLE)
    one = replace(sample(1.0, (7, 5 * GIB)), memory_used_bytes=9 * GIB)
    assert one.unaccounted_bytes == 4 * GIB
    assert replace(one, processes=(*one.processes, gone)).unaccounted_bytes == 4 * GIB
    assert replace(one, processes=(ProcessSample(pid=1),)).unaccounted_bytes is None
    assert replace(one, processes_known=False).unaccounted_bytes is None


values = st.lists(st.floats(-1e12, 1e12), min_size=4, max_size=40)


@given(values, st.floats(-1e6, 1e6))
def test_a_line_added_is_added_to_the_slope(heights: list[float], rate: float) -> None:
    points = [(float(at), height) for at, height in enumerate(heights)]
    tilted = [(at, height + rate * at) for at, height in points]
    assert slope_of(tilted).per_s == pytest.approx(slope_of(points).per_s + rate, abs=1e-2, rel=1e-6)


@given(values)
def test_upside_down_it_falls_as_it_rose(heights: list[float]) -> None:
    points = [(float(at), height) for at, height in enumerate(heights)]
    slope, mirrored = slope_of(points), slope_of([(at, -height) for at, height in points])
    assert mirrored.per_s == -slope.per_s and mirrored.steadiness == -slope.steadiness
    assert -1 <= slope.steadiness <= 1


def test_a_window_holds_few_points_however_many_come() -> None:
    window = Window(10.0)
    for tick in range(100_000):
        window.add(tick / 1000, float(tick))
    slope = window.slope()
    assert slope is not None and slope.per_s == pytest.approx(1000.0) and slope.span_s <= 10.0
    assert len(window._points) <= MOST_POINTS + 1
