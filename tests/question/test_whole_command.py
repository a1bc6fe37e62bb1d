"""The command of a winner asks for the winner: same memory, same speed."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

import vramcast
from vramcast.cli.main import group
from vramcast.domain.answer import Answer
from vramcast.domain.planning import PlanAnswer


def run(command: str) -> dict[str, Any]:
    program, *arguments = shlex.split(command)
    assert program == "vramcast"
    result = CliRunner().invoke(group, [*arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama-3.2-1b", {"on": "a100-sxm4-40gb", "engine": "pytorch"}),
        ("qwen3-0.6b", {"on": "2xa100-sxm4-80gb", "engine": "torchtitan"}),
        ("qwen3-0.6b", {"on": "4xa100-sxm4-80gb", "engine": "megatron", "goal": "least-memory"}),
        ("qwen3-8b", {"on": "2x4xh100-sxm-80gb", "engine": "megatron", "pp": "2", "cp": "2"}),
        ("qwen3-8b", {"on": "2xa100-sxm4-40gb", "engine": "deepspeed", "allow": "offload", "precision": "mixed-fp16"}),
        ("qwen3-8b", {"on": "lambda:gpu_1x_b200_sxm6", "engine": "megatron", "price": "2usd", "tokens": "1B"}),
        ("llama-3.1-8b", {"on": "h100", "engine": "huggingface", "peft": "lora", "lora_rank": 32,
                          "lora_targets": "attention.q,mlp.up", "base_weights": "nf4-dq", "max_gpus": 1}),
        (None, {"params": "3B", "layers": 32, "hidden": 2560, "on": "2xa100-sxm4-80gb", "engine": "torchtitan",
                "compile": True}),
    ],
)
def test_a_training_command_reproduces_its_plan(model: str | None, options: dict[str, Any]) -> None:
    found = vramcast.plan("train", model, seq_len=2048, global_batch=64, top=1, **options)
    assert isinstance(found, PlanAnswer) and found.plans
    again, best = run(found.command), found.plans[0]
    assert best.time is not None
    assert again["peak"]["device_bytes"] == best.peak.device_bytes
    assert again["time"]["step_s"] == pytest.approx(best.time.step_s, rel=1e-9)


@pytest.mark.parametrize("engine", ["vllm", "sglang@0.5", "tensorrt-llm", "llama.cpp", "transformers"])
def test_a_serving_command_reproduces_a_replica(engine: str) -> None:
    found = vramcast.plan(
        "serve", "llama-3.1-8b", on="2xl40s", engine=engine, concurrency=24, input_len=2000, output_len=200, top=1,
    )
    assert isinstance(found, PlanAnswer) and found.plans
    again, best = run(found.command), found.plans[0]
    assert again["peak"]["device_bytes"] == best.peak.device_bytes
    assert again["time"]["step_s"] == pytest.approx(best.speed.step_s, rel=1e-9)  # type: ignore[attr-defined]


def test_a_replica_is_asked_for_by_its_cards() -> None:
    found = vramcast.plan("serve", "llama-3.1-8b", on="aws:p5.48xlarge", concurrency=8, context=4096, tp="2")
    assert isinstance(found, PlanAnswer)
    assert "--gpus 2xh100-sxm-80gb" in found.command


@pytest.mark.parametrize("goal", ["longest-sequence", "largest-batch"])
def test_inverse_questions_have_the_command_of_what_they_found(goal: str) -> None:
    answer = vramcast.plan("train", "llama-3.2-1b", on="a100-sxm4-40gb", find=goal, recompute="full")
    assert isinstance(answer, Answer) and answer.found is not None
    assert run(answer.found.command)["peak"]["device_bytes"] == answer.peak.device_bytes
