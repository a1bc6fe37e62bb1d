"""What proposes tokens beside a model."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.errors import InvalidSpec


@pytest.mark.parametrize("draft", ["medusa", "eagle", "ngram", "llama-3.2-1b"])
def test_a_model_that_generates_nothing_has_no_draft(draft: str) -> None:
    with pytest.raises(InvalidSpec, match="generates no tokens"):
        vramcast.serve("vit-large-patch16-224", gpus="h100", engine="vllm", draft=draft)


def drafted_bytes(model: str, **options: Any) -> int:
    found = vramcast.serve(model, gpus="8xh200", context=4096, **options)
    return sum(entry.num_bytes for entry in found.ranks[0].ledger if entry.category == "draft model")


@pytest.mark.parametrize("options", [{}, {"expert_parallel": True}])
def test_experts_of_a_module_are_divided_as_the_targets_are(options: dict[str, bool]) -> None:
    drafted = drafted_bytes("deepseek-v3", draft="mtp", **options)
    assert 15.4e9 / 8 < drafted < 1.15 * 15.4e9 / 8  # projections to latents and the router are whole


def test_experts_of_a_draft_model_are_divided_too() -> None:
    two, four = (drafted_bytes("qwen3-235b-a22b", tp=tp, draft="qwen3-30b-a3b", weights="fp8") for tp in (2, 4))
    assert 0 < four == pytest.approx(two / 2, rel=0.02)
