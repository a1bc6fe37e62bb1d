"""The documents show what the commands print today."""

from __future__ import annotations

import pytest

from tools.docs import BLOCK, documents, regenerated


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_shown_output_is_what_the_command_prints(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    assert regenerated(text) == text, f"{path.name} is stale: run python -m tools.docs"


def test_the_readme_shows_the_main_job() -> None:
    readme = next(path for path in documents() if path.name == "README.md")
    assert BLOCK.search(readme.read_text(encoding="utf-8"))
