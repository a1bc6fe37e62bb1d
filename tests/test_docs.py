"""The documents show what the commands print today."""

import re
from pathlib import Path

import pytest

from tools.docs import BLOCK, ROOT, documents, shown_again, tabled_again


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_shown_output_is_what_the_command_prints(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert shown_again(text) == text, f"{path.name} is stale: run python -m tools.docs"


def test_every_trace_shown_is_what_the_command_prints() -> None:
    """Alone, for the environment that has their libraries: the other commands are asked where torch is missing."""
    pytest.importorskip("torch")
    for path in documents():
        text = path.read_text(encoding="utf-8")
        assert shown_again(text, only_traces=True) == text, f"{path.name} is stale: run python -m tools.docs"


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_table_is_what_its_source_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tabled_again(text) == text, f"{path.name} is stale: run python -m tools.docs"


def test_the_readme_shows_the_main_job() -> None:
    readme = next(path for path in documents() if path.name == "README.md")
    assert BLOCK.search(readme.read_text(encoding="utf-8"))


PAGES = sorted((ROOT / "docs").rglob("*.md"))
PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.name)
def test_the_python_in_the_documents_runs(path: Path) -> None:
    for match in PYTHON.finditer(path.read_text(encoding="utf-8")):
        exec(compile(match["code"], path.name, "exec"), {})
