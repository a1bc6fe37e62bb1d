"""Reward models and critics score positions; no vocabulary is left of their head."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.catalogue.models import load_model

MODEL = "llama-3.1-8b"
GPU = "h200"


def _asked(engine: str, objective: str, **options: Any) -> Any:
    return vramcast.train(
        MODEL, gpus=GPU, engine=engine, objective=objective, seq_len=256, micro_batch=1, precision="bf16", **options
    )


@pytest.mark.parametrize("engine", ["pytorch", "huggingface", "unsloth"])
def test_a_reward_model_has_neither_the_heads_weights_nor_logits(engine: str) -> None:
    found = _asked(engine, "reward")
    entries = {entry.path: entry.num_bytes for entry in found.fullest.ledger}
    weights = sum(size for path, size in entries.items() if path.startswith("weights/"))
    assert weights == pytest.approx(2 * found.num_parameters, abs=2**16)
    assert not [path for path in entries if "logits" in path or "log_softmax" in path]


def test_of_ppo_the_reward_model_and_the_critic_score() -> None:
    model, found = load_model(MODEL), _asked("pytorch", "ppo", completion_len=64)
    head = model.vocab * model.hidden
    load = found.fullest.phases["load"].allocated_bytes
    assert load == pytest.approx(2 * (4 * found.num_parameters - 2 * head), rel=1e-3)
