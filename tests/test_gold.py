"""The gold files tell answers that moved from answers that did not."""

from pathlib import Path

import pytest

pytest.importorskip("time_machine")

from tools import gold
from tools.gold import __main__ as tool

ANSWERED = "train gpt2 --gpus rtx-4090 --json"
REFUSED = "train no-such-model --gpus rtx-4090"
WRITTEN = "train gpt2 --gpus rtx-4090 --write out"


def hashes(*commands: str) -> dict[str, str]:
    return dict(tool.answers(dict.fromkeys(commands, tool.NEW)))


def test_the_same_question_comes_to_the_same_and_another_to_another() -> None:
    found = hashes(ANSWERED, REFUSED, WRITTEN, ANSWERED + " --seq-len 512")
    assert found == hashes(*found)
    assert len(set(found.values())) == len(found)


def test_exit_status_and_written_files_are_part_of_it() -> None:
    assert tool.outcome(REFUSED)[0] == 4
    assert any(name.startswith("out/") for name in tool.outcome(WRITTEN)[3])


def test_what_moved_is_counted_and_nothing_is_written_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "HERE", tmp_path)
    (tmp_path / "files.gold").write_text(f"0123456789abcdef {ANSWERED}\n")
    assert tool.held("files", write=False) == 1
    assert f"files: changed: {ANSWERED}" in capsys.readouterr().out
    assert tool.held("files", write=True) == 1
    assert tool.held("files", write=False) == 0


def test_every_gold_file_has_a_hash_for_each_of_its_lines() -> None:
    for path in Path(gold.__file__).parent.glob("*.gold"):
        asked = tool.read(path.stem)
        assert asked
        assert tool.NEW not in asked.values()
        assert len(asked) == len(path.read_text(encoding="utf-8").splitlines())
