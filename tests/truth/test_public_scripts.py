"""The standing list of public scripts."""

import pytest

pytest.importorskip("torch")
from truth.public_scripts import ANSWERED, CRASHED, REFUSED, Script, asked, chosen, kind_of, read_table


def test_rows_are_of_about_a_hundred_scripts_each_named_once():
    rows = read_table()
    assert 100 <= len(rows) == len({(row.repository, row.folder, row.command) for row in rows})
    assert all(len(row.commit) == 12 and "/" in row.repository for row in rows)
    parts = [chosen(rows, (), f"{part}/4") for part in (1, 2, 3, 4)]
    assert sorted(row for part in parts for row in part) == sorted(rows)
    assert {row.repository for row in chosen(rows, ["nanoGPT"], "1/1")} == {"karpathy/nanoGPT"}


def test_an_outcome_is_told_by_exit_status_and_sentence():
    assert kind_of(0, "") == kind_of(1, "") == ANSWERED
    assert kind_of(70, "InternalError: x") == kind_of(-6, "") == CRASHED
    assert kind_of(2, "a.py:1: it needs 'x', which is not there; put") == "lacks data"
    assert kind_of(2, "a.py:1: the script itself failed with KeyError: x") == "blamed"
    assert kind_of(2, "another sentence") == REFUSED


def test_a_script_is_asked_in_a_fork_from_its_own_folder(tmp_path):
    folder = tmp_path / "owner" / "name" / "sub"
    folder.mkdir(parents=True)
    (folder / "fails.py").write_text("raise ValueError('of its own')\n")
    kind, sentence, _ = asked(Script("owner/name", "0" * 12, "sub", "fails.py"), tmp_path, 60)
    assert kind == "blamed" and "of its own" in sentence
