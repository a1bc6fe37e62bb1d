"""Rows that ask with a user's own options."""

from pathlib import Path
from typing import Any

import pytest

from truth.rows.asked import predict, said

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


SHORTER = "samples shorter than max_seq_length, padded to the longest of the batch: lengths unknown"


@pytest.mark.parametrize(("release", "unsaid", "level"), [
    ("unknown, 2024", (), "reserved"),
    ("unknown, 2024", (SHORTER,), "reserved, longest samples"),
    ("2025.4.7", (), "reserved, all in 4 bits"),
    ("2025.4.7", (SHORTER,), "reserved, longest samples, all in 4 bits"),
])
def test_what_a_row_leaves_open_is_answered_as_to_a_user_and_named_in_its_level(
    release: str, unsaid: tuple[str, ...], level: str
) -> None:
    options = {"engine": "unsloth", "seq-len": 2048, "precision": "amp-bf16", "peft": "lora", "base-weights": "nf4-dq"}
    asked = {**row(model="llama-3.2-1b", gpus="1xa10g", options=options, unexpressed=unsaid),
             "framework": f"unsloth {release} / transformers 4.51.3"}
    [found] = predict(asked, folder=Path())
    assert found.level == level
    assert (found.traits is None) == ("," in level)  # no interval is calibrated by what is not known


def test_whose_tool_became_an_engine_is_asked_as_that_and_a_network_that_hears_by_what_it_writes() -> None:
    unsaid = ("FSDP2 over bf16 weights with torch.optim.AdamW (bf16 moments)",)
    automodel = {**row(unexpressed=unsaid), "framework": "NeMo Automodel 26.x / torch 2.9+"}
    assert said(automodel)["engine"] == "pytorch@2.9" and said(automodel)["sharded-by"] == "fsdp2"
    hears = said(row(model="whisper-large-v3"))
    assert hears["decoder-seq-len"] == 448 and "seq-len" not in hears
