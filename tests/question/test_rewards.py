"""Objectives with models and lengths of their own: what they need is asked, what they do not have is not counted."""

from __future__ import annotations

import pytest

from vramcast.api import job_of
from vramcast.errors import InvalidSpec
from vramcast.estimate.training import answer


@pytest.mark.parametrize("model", ["qwen3-0.6b", "llama-3.2-1b", "gpt2", "olmoe-1b-7b"])
@pytest.mark.parametrize("engine", ["pytorch", "huggingface"])
def test_a_model_that_rewards_has_no_vocabulary_at_its_end(model: str, engine: str) -> None:
    options = {"model": model, "gpus": "h200", "engine": engine, "seq-len": 512, "micro-batch": 2}
    found = answer(job_of(options | {"objective": "reward"}))
    names = [entry.path for role in found.ranks for entry in role.ledger]
    assert names and not [name for name in names if "logits" in name or "softmax" in name]
    assert any("RewardTrainer" in text for text in found.assumptions)


@pytest.mark.parametrize("objective", ["ppo", "grpo"])
def test_what_generates_needs_to_know_how_much(objective: str) -> None:
    options = {"model": "qwen3-0.6b", "gpus": "h100", "engine": "huggingface", "objective": objective}
    with pytest.raises(InvalidSpec, match="--completion-len"):
        answer(job_of(options))
    assert answer(job_of(options | {"completion-len": 128})).peak.allocated_bytes
