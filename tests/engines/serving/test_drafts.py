"""What proposes tokens beside a model."""

from typing import Any

import pytest

import vramcast


def drafted_bytes(model: str, **options: Any) -> int:
    found = vramcast.serve(model, gpus="8xh200", context=4096, **options)
    return sum(entry.num_bytes for entry in found.ranks[0].ledger if entry.category == "draft model")


def test_experts_of_a_draft_model_are_divided_too() -> None:
    two, four = (drafted_bytes("qwen3-235b-a22b", tp=tp, draft="qwen3-30b-a3b", weights="fp8") for tp in (2, 4))
    assert 0 < four == pytest.approx(two / 2, rel=0.02)
