"""Rows that ask with a user's own options."""

from typing import Any

from truth.rows.asked import said

ASK = {
    "model": "llama-3.2-1b", "gpus": "8xh100-sxm-80gb",
    "options": {"engine": "torchtitan", "seq-len": 2048, "shards": "everything", "precision": "mixed-bf16"},
}


def row(**ask: Any) -> dict[str, Any]:
    """A row of torchtitan's history."""
    return {
        "id": "torchtitan_commits2/any", "task": "train", "source": "pytorch/torchtitan commit c4e229115 message",
        "ask": {**ASK, **ask},
        "measured": {"quantity": "max_reserved", "value": 1.0, "unit": "GiB"},
    }


def test_a_commit_is_asked_as_the_engine_of_its_day() -> None:
    assert said(row())["engine"] == "torchtitan@2025-09-05"
    assert said({**row(), "source": "pytorch/torchtitan README"})["engine"] == "torchtitan"
