"""The magics, in IPython's own shell."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
shells = pytest.importorskip("IPython.core.interactiveshell")
EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook" / "memory.ipynb"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("LC_ALL", "C")
    shell = shells.InteractiveShell.instance()
    shell.run_cell("%load_ext vramcast")
    yield shell
    shells.InteractiveShell.clear_instance()


def test_the_example_runs_and_leaves_its_model_where_it_was(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell["source"] for cell in json.loads(EXAMPLE.read_text())["cells"] if cell["cell_type"] == "code"]
    ran = [shell.run_cell(cell) for cell in cells]
    assert all(one.success for one in ran)
    assert "qwen3-0.6b (596,049,920 parameters) on 1xrtx-4090" in capsys.readouterr().out
    answer, device = ran[-2].result, ran[-1].result
    assert answer.fits and answer.steps == 3 and "<div" in answer._repr_html_()
    assert str(device) == "cpu" and "optimizer" not in shell.user_ns


@pytest.mark.parametrize(("cell", "told"), [
    ("%vramcast train gpt9", "UnknownName: unknown model 'gpt9'"),
    ("%vramcast train 'gpt2", "InvalidSpec: No closing quotation"),
    ("%%fits\nx = 1", "InvalidSpec: %%fits  names no card"),
    ("%%fits t5\nx = 1", "UnknownName: unknown GPU 't5'"),
    ("%%fits t4 --colour red\nx = 1", "InvalidSpec: colour means nothing"),
    ("%%fits t4\nx = 1", "InvalidSpec: nothing of the cell ran on the card"),
    ("%%fits t4\nimport os; os._exit(3)", "Unsupported: the copy of this process ended with code 3"),
])
def test_errors_are_one_sentence(shell: Any, capsys: pytest.CaptureFixture[str], cell: str, told: str) -> None:
    assert shell.run_cell(cell).result is None
    assert capsys.readouterr().err.startswith(told) and "x" not in shell.user_ns


def test_a_typo_in_a_question_is_one_sentence(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import vramcast

    shell.run_cell("import vramcast; vramcast.train('lama-3.1-8b', gpus='h100')")
    said = capsys.readouterr()
    assert (said.out + said.err).strip().startswith("UnknownName: unknown model 'lama-3.1-8b'")
    assert "Traceback" not in said.out + said.err
    assert {"train", "serve", "plan"} <= set(dir(vramcast))


def test_a_cell_prints_and_fails_as_it_would(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%%fits t4\nprint('before')\n1 / 0")
    said = capsys.readouterr()
    assert said.out == "before\n"
    assert said.err.startswith("Traceback") and "1 / 0" in said.err and "notebook.py" not in said.err, said.err
