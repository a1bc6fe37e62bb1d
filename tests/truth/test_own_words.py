"""Rows asked by the file of their own tool and by options are one question."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from truth.own_words import SAME, WRITTEN, in_own_words
from truth.score import PUBLISHED

ROWS = [json.loads(line) for line in (PUBLISHED / "recipes.jsonl").read_text(encoding="utf-8").splitlines()]
EACH = 3
"""Rows of a tool, from the first to the last."""


def some() -> list[dict[str, Any]]:
    by_format: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in ROWS:
        if row["config"]["format"] in WRITTEN and row["measured"]["quantity"] == "max_allocated":
            by_format[row["config"]["format"]].append(row)
    return [row for rows in by_format.values() for row in rows[:: max(1, len(rows) // EACH)][:EACH]]


@pytest.mark.parametrize("row", some(), ids=lambda row: str(row["id"]))
def test_a_file_and_options_that_say_the_same_are_answered_alike(row: dict[str, Any]) -> None:
    assert in_own_words(row, PUBLISHED) == SAME


def test_a_row_without_a_file_of_its_own_is_not_held_against_one() -> None:
    assert in_own_words({**ROWS[0], "config": {"format": "a script", "values": {}}}, Path()) is None
