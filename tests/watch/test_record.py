"""Recordings: what is written comes back, files that are not recordings are left alone."""

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.watch.samples import EVENT, INFO, SAMPLE, STEP, reading
from vramcast.domain.observation import Card, GpuSample, Holder, Partition, ProcessSample, Reading
from vramcast.errors import SourceError
from vramcast.watch.calibrate import measured_of
from vramcast.watch.recording import Recorder, opened, read_run, runs_of


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
