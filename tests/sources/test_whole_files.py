"""Files are written whole or not at all, one alone and many together."""

import os
from pathlib import Path

import pytest

from vramcast.errors import SourceError
from vramcast.sources.files import Content, write_folder, write_whole


def full(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A disk that has room for so many files more."""
    written = [0]
    really = os.fsync

    def fsync(descriptor: int) -> None:
        written[0] += 1
        if written[0] > after:
            raise OSError(28, "No space left on device")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_what_was_there_stays_until_the_new_content_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.toml"
    write_whole(path, "old")
    path.chmod(0o600)
    write_whole(path, "newer")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("newer", 0o600)
    full(monkeypatch, 0)
    with pytest.raises(SourceError, match="No space left on device"):
        write_whole(path, "newest")
    assert [one.name for one in tmp_path.iterdir()] == ["job.toml"]
    assert path.read_text() == "newer"


@pytest.mark.parametrize("there", [0, 1, 2])
def test_a_folder_gets_all_files_or_none(there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made" / "plan"
    files = {"a.json": Content("{}"), "run.sh": Content("#!", executable=True), "README.md": Content("read")}
    full(monkeypatch, there)
    with pytest.raises(SourceError, match="make room"):
        write_folder(folder, files)
    assert not (tmp_path / "made").exists()
    monkeypatch.undo()
    write_folder(folder, files)
    assert sorted(one.name for one in folder.iterdir()) == ["README.md", "a.json", "run.sh"]
    assert os.access(folder / "run.sh", os.X_OK) and not os.access(folder / "a.json", os.X_OK)


def test_files_of_before_stay_where_a_folder_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"a": Content("old"), "b": Content("old")})
    full(monkeypatch, 1)
    with pytest.raises(SourceError):
        write_folder(tmp_path, {"a": Content("new"), "b": Content("new")})
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"a": "old", "b": "old"}
