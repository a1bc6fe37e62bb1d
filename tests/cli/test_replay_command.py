"""`vramcast replay` and `vramcast.replay`."""

import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

import vramcast
from tests.recordings._made import FORWARD, Run, train
from vramcast.cli.main import group
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.errors import InvalidSpec, SourceError
from vramcast.sources.snapshots import read_snapshot
from vramcast.units import MIB


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run()
    train(run, 5, leaked_bytes=MIB)
    path = tmp_path_factory.mktemp("replay") / "run.pickle"
    path.write_bytes(write_snapshot(run.dump()))
    return path


def called(*arguments: object) -> str:
    result = CliRunner().invoke(group, ["replay", *map(str, arguments), "--lang", "en"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_peak_is_told_first(recording: Path) -> None:
    assert called(recording).startswith("peak: ")


def test_every_file_is_written_and_reads_back(recording: Path, tmp_path: Path) -> None:
    page, counters, copy = tmp_path / "a.html", tmp_path / "a.json", tmp_path / "a.pickle"
    output = called(recording, "--html", page, "--perfetto", counters, "--write-snapshot", copy)
    assert output.count("written: ") == 3
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(counters.read_text(encoding="utf-8"))
    assert read_snapshot(copy).devices[0].segments == read_snapshot(recording).devices[0].segments


def test_a_later_recording_says_what_grew(recording: Path, tmp_path: Path) -> None:
    run = Run()
    train(run, 5, leaked_bytes=MIB)
    run.make(64 * MIB, FORWARD)
    later = tmp_path / "later.pickle"
    later.write_bytes(write_snapshot(run.dump()))
    output = called(later, "--against", recording)
    assert "Against run.pickle" in output
    assert "model.py:10 forward" in output.split("Against")[1]


def test_a_recording_of_another_device_is_nothing_to_compare_with(recording: Path, tmp_path: Path) -> None:
    raw = pickle.loads(recording.read_bytes())
    raw["device_traces"] = [[], raw["device_traces"][0]]
    for segment in raw["segments"]:
        segment["device"] = 1
    del raw["vramcast"]
    other = tmp_path / "rank1.pickle"
    other.write_bytes(pickle.dumps(raw))
    with pytest.raises(InvalidSpec, match="holds no device that is looked at"):
        vramcast.replay(other, against=recording)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        vramcast.replay(tmp_path / "none.pickle")


def test_what_is_no_path_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidSpec, match="named by a path, not by int"):
        vramcast.replay(5)  # type: ignore[arg-type]


def test_a_folder_to_write_into_is_refused_before_any_work(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        group.main(["replay", str(recording), "--perfetto", str(tmp_path)], standalone_mode=False)
