"""Files kept out of the way."""

import json
import os
import shutil
from pathlib import Path

import pytest

from vramcast.tracing.environment.overlay import Overlay, patch_files
from vramcast.tracing.environment.patches import Patches


@pytest.fixture
def users(tmp_path, monkeypatch):
    """The user's folder, with two files and a folder in it."""
    folder = tmp_path / "users"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "note.txt").write_text("old")
    (folder / "log.txt").write_text("first\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def sandboxed(tmp_path, users):
    kept = tmp_path / "kept"
    kept.mkdir()
    before = _contents(users)
    with Patches() as patches:
        patch_files(patches, Overlay(kept, keeps_everything=True))
        yield users
    assert _contents(users) == before


def _contents(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_text() for path in folder.rglob("*")}


def test_what_is_written_is_read_again_and_the_users_files_stay(sandboxed):
    with open("log.txt", "a") as file:
        file.write("second\n")
    assert (sandboxed / "log.txt").read_text() == "first\nsecond\n"
    Path("new/deep").mkdir(parents=True)
    Path("new/deep/a.json").write_text(json.dumps({"a": 1}))
    assert json.loads(Path("new/deep/a.json").read_text()) == {"a": 1}
    assert sorted(os.listdir()) == ["log.txt", "new", "old"]
    assert sorted(path.name for path in sandboxed.rglob("*")) == ["a.json", "deep", "log.txt", "new", "note.txt", "old"]


def test_what_is_removed_or_renamed_is_gone_for_the_script_only(sandboxed):
    os.remove("log.txt")
    assert not os.path.exists("log.txt")
    with pytest.raises(FileNotFoundError):
        open("log.txt")
    os.rename("old/note.txt", "moved.txt")
    assert Path("moved.txt").read_text() == "old" and not Path("old/note.txt").exists()
    shutil.rmtree("old")
    assert not os.path.isdir("old") and os.listdir() == ["moved.txt"]
    os.makedirs("old", exist_ok=True)
    assert os.listdir("old") == []
    shutil.copy("moved.txt", "old/copy.txt")
    shutil.move("old/copy.txt", "back.txt")
    assert Path("back.txt").read_text() == "old"


def test_mistakes_are_the_usual_ones(sandboxed):
    with pytest.raises(FileNotFoundError):
        open("nowhere/file.txt", "w")
    with pytest.raises(FileExistsError):
        os.mkdir("old")
    with pytest.raises(FileExistsError):
        open("log.txt", "x")
    with pytest.raises(FileNotFoundError):
        os.remove("nothing.txt")
    os.makedirs("old", exist_ok=True)


def test_without_a_sandbox_files_are_written_where_the_script_says(tmp_path, users):
    kept = tmp_path / "kept"
    kept.mkdir()
    with Patches() as patches:
        overlay = Overlay(kept, keeps_everything=False)
        patch_files(patches, overlay)
        Path("result.txt").write_text("42")
        os.remove("log.txt")
        with overlay.pending("model.pt") as draft:
            draft.is_kept_out = True
            Path(draft.path).write_text("hollow")
        os.replace("model.pt", "best.pt")
        assert Path("best.pt").read_text() == "hollow" and not Path("model.pt").exists()
    assert sorted(path.name for path in users.iterdir()) == ["old", "result.txt"]
