"""Reward models and critics score positions; no vocabulary is left of their head."""

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


def test_of_ppo_the_reward_model_and_the_critic_score() -> None:
    model, found = load_model(MODEL), _asked("pytorch", "ppo", completion_len=64)
    head = model.vocab * model.hidden
    load = found.fullest.phases["load"].allocated_bytes
    assert load == pytest.approx(2 * (4 * found.num_parameters - 2 * head), rel=1e-3)
