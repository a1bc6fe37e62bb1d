"""No change makes the predictions worse in silence: the record of them, which `test_page` holds against the program."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from truth.score import statistics_of
from truth.tables import recorded_file

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = tomllib.loads((ROOT / "truth" / "budgets.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scored() -> list[Any]:
    files = ("training", "megatron_b200", "inference")
    return [item for name in files for item in recorded_file(f"{name}.jsonl")]


@pytest.mark.parametrize(("group", "level"), [(group, level) for group in BUDGETS for level in BUDGETS[group]])
def test_errors_stay_within_their_budget(scored: list[Any], group: str, level: str) -> None:
    record = statistics_of([item for item in scored if (item.group, item.level) == (group, level)])
    budget = BUDGETS[group][level]
    assert record["median_abs_error"] <= budget["median"]
    assert record["p95_abs_error"] <= budget["p95"]


def test_no_row_breaks_an_adapter(scored: list[Any]) -> None:
    assert [item.label for item in scored if item.refused and item.refused.startswith("BUG")] == []


def test_most_rows_of_language_models_are_predicted(scored: list[Any]) -> None:
    training = [item for item in scored if item.file != "inference.jsonl"]
    language = [item for item in training if not (item.refused or "").startswith("diffusion")]
    assert sum(item.prediction is not None for item in language) / len(language) >= 0.85
