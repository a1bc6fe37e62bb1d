"""`vramcast replay` and `vramcast.replay`."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

import vramcast
from tests.recordings._made import FORWARD, Run, train
from vramcast.cli.main import group
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.sources.snapshots import read_snapshot
from vramcast.units import GIB, MIB


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


def test_json_and_python_are_the_same_answer(recording: Path) -> None:
    plain = json.loads(called(recording, "--json", "--leaks"))
    found = vramcast.replay(recording, leaks=True)
    assert json.loads(found.to_json()) == plain
    assert str(found) == called(recording, "--leaks")
    assert "optimizer states" in found._repr_html_()


def test_every_file_is_written_and_reads_back(recording: Path, tmp_path: Path) -> None:
    page, counters, copy = tmp_path / "a.html", tmp_path / "a.json", tmp_path / "a.pickle"
    output = called(recording, "--html", page, "--perfetto", counters, "--write-snapshot", copy)
    assert output.count("written: ") == 3
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(counters.read_text(encoding="utf-8"))
    assert read_snapshot(copy).devices[0].segments == read_snapshot(recording).devices[0].segments


def test_settings_and_a_card_are_replayed(recording: Path) -> None:
    output = called(recording, "--alloc-conf", "max_split_size_mb:128", "--capacity", "24GiB")
    assert "Under other settings, with 24.00 GiB to reserve" in output
    assert "max_split_size_mb:128" in output
    variants = vramcast.replay(recording, alloc_conf="max_split_size_mb:128", capacity="24GiB").devices[0].variants
    assert [variant.capacity_bytes for variant in variants] == [24 * GIB] * 2


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


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"device": 3}, InvalidSpec, "no device 3; use one of 0"),
        ({"capacity": "much"}, InvalidSpec, "24GiB"),
        ({"capacity": "0"}, InvalidSpec, "more than 0"),
        ({"alloc_conf": "max_splits:1"}, UnknownName, "max_split_size_mb"),
    ],
)
def test_a_wrong_question_is_refused_in_one_sentence(
    recording: Path, options: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        vramcast.replay(recording, **options)  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    arguments = ["replay", str(tmp_path / "none.pickle"), "--html", str(tmp_path / "no" / "a.html")]
    with pytest.raises(SourceError, match="name a folder that is there"):
        CliRunner().invoke(group, arguments, catch_exceptions=False, standalone_mode=False)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        vramcast.replay(tmp_path / "none.pickle")


def test_what_is_no_path_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidSpec, match="named by a path, not by int"):
        vramcast.replay(5)  # type: ignore[arg-type]


def test_a_folder_to_write_into_is_refused_before_any_work(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        group.main(["replay", str(recording), "--perfetto", str(tmp_path)], standalone_mode=False)
