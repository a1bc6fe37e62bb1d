"""The page's measured cases are what the program prints."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from truth.page import COLUMNS, PAGE, TRACED, address, document, text_of
from truth.score import PUBLISHED, group_of, level_of

FILES = tuple(sorted(PUBLISHED.glob("*.jsonl")))
SAMPLED = {"recipes": 60, "kernels": 1, "megatron_b200": 1}
"""One row of so many (12, where nothing is said) is predicted anew, of every group and level at least one: all of them
take more than a minute."""


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
    return found


def unpacked(packed: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [dict(zip(packed["columns"], case, strict=True)) for case in packed["cases"]]
    lists = packed["lists"]
    return [
        {name: lists[name][value] if name in lists and value >= 0 else value for name, value in row.items()}
        for row in rows
    ]


def sampled(path: Path) -> list[str]:
    """Rows of a file, some of each group and level."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kinds.setdefault((group_of(row, path.name), level_of(row)), []).append(line)
    chosen, each = random.Random(7), SAMPLED.get(path.stem, 12)
    return [line for lines in kinds.values() for line in chosen.sample(lines, -(-len(lines) // each))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sampled_cases_are_predicted_as_the_page_says(shipped: dict[str, Any], tmp_path: Path, path: Path) -> None:
    stated = {json.dumps(row, sort_keys=True) for row in unpacked(shipped)}
    part = tmp_path / path.name
    part.write_text("\n".join(sampled(path)))
    (tmp_path / "recipe_configs").symlink_to(PUBLISHED / "recipe_configs")
    for row in unpacked(json.loads(text_of(document([part])))):
        assert json.dumps(row, sort_keys=True) in stated, f"{row}; run python -m truth.page"


def test_every_row_of_every_file_is_there(shipped: dict[str, Any]) -> None:
    lines = sum(len(path.read_text(encoding="utf-8").split("\n")) - 1 for path in FILES)
    assert len(shipped["cases"]) >= lines  # a row may measure several levels


def test_the_file_is_compact_and_says_nothing_twice(shipped: dict[str, Any]) -> None:
    assert shipped["columns"] == list(COLUMNS)
    assert PAGE.stat().st_size < 600_000
    for name, texts in shipped["lists"].items():
        assert len({json.dumps(text) for text in texts}) == len(texts), name


def test_rows_of_another_program_say_which(tmp_path: Path) -> None:
    row = {"source": "a study (some/repository x.csv)", "model": "timm/x", "gpu": "A100", "measured_peak_mib": 7685.0}
    (tmp_path / "vision_nvidia_smi.jsonl").write_text(json.dumps(row) + "\n")
    (case,) = unpacked(json.loads(text_of(document([tmp_path / "vision_nvidia_smi.jsonl"]))))
    assert case["refused"] == TRACED["vision_nvidia_smi.jsonl"]
    assert case["measured"] == 7685 << 20
    assert case["source"] == ["a study (some/repository x.csv)", "https://github.com/some/repository"]


@pytest.mark.parametrize(("text", "url"), [
    ("https://github.com/a/b/issues/7 comment", "https://github.com/a/b/issues/7"),
    ("github.com/a/b @58eb52c0 docs/x.md", "https://github.com/a/b/tree/58eb52c0"),
    ("github.com/a/b refs/pull/205 @a95ae28 x.log", "https://github.com/a/b/tree/a95ae28"),
    ("a/b@58eb52c0:docs/x.md", "https://github.com/a/b/tree/58eb52c0"),
    ("a/b:docs/x.md", "https://github.com/a/b"),
    ("a study (a/b docs/x.md, Apache-2.0)", "https://github.com/a/b"),
    ("a/b", ""), ("somebody's blog", ""), ("javascript:alert(1)", ""),
])
def test_addresses_of_sources_are_those_of_their_repositories(text: str, url: str) -> None:
    assert address(text) == url
