"""Published step times: every row is predicted, and no change makes a table worse in silence."""

import csv
import tomllib
from pathlib import Path

import pytest

from benchmarks.step_time import Case, markdown, published, spearman, stated, summary
from truth.score import PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = tomllib.loads((ROOT / "truth" / "step_time_budgets.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in (*published(), *stated(PUBLISHED)):
        found.setdefault(case.table, []).append(case)
    return found


@pytest.mark.parametrize("name", BUDGETS)
def test_tables_stay_within_their_budget(tables: dict[str, list[Case]], name: str) -> None:
    found = summary(tables[name])
    assert found.median <= BUDGETS[name]["median"]
    if "rank" in BUDGETS[name]:
        assert found.rank is not None
        assert found.rank >= BUDGETS[name]["rank"]


def test_every_table_has_a_budget(tables: dict[str, list[Case]]) -> None:
    assert set(tables) <= set(BUDGETS)


def test_every_row_names_its_source_and_the_day_it_was_checked() -> None:
    with (ROOT / "truth" / "step_times.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source"] and row["checked"].startswith("20") for row in rows)
    assert len(rows) >= 300


def test_rank_correlation_is_one_for_the_same_order_and_minus_one_for_the_reverse() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 40.0]) == pytest.approx(1)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert spearman([1.0, 2.0], [1.0, 2.0]) is None


def test_tables_of_documents_have_a_line_for_every_table(tables: dict[str, list[Case]]) -> None:
    lines = list(markdown([case for cases in tables.values() for case in cases]))
    assert sum(line.startswith("| ") and "&nbsp;" not in line for line in lines) == len(tables) + 1
