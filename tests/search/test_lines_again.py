"""Every line of a search is a command: typed again it has the figures that it stood beside."""

from typing import Any

import pytest

from tests.formats.plans import named
from tests.question.test_as_options import typed
from vramcast.api import planned_serving, planned_training, serve_answer, train_answer
from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.planning import PlanAnswer

pytest.importorskip("numpy")

FIXED = ("seq_len", "loss", "compile", "layers", "peft", "lora_rank", "lora_targets", "base_weights",
         "sequence_parallel", "engine_option")
"""Options of a search that its table does not repeat."""

PLANS: dict[str, dict[str, Any]] = {
    "stages balanced": {
        "model": "llama-3.1-8b", "on": ("8xrtx-4090",), "engine": ("megatron",), "allow": ("offload",), "tp": ("1",),
        "seq_len": "2k", "pp": ("4",), "recompute": ("none",), "shards": ("optimizer",),
    },
    "what is fixed": {
        "model": "llama-3.1-8b", "on": ("2x8xa100-sxm4-40gb",), "engine": ("torchtitan",), "loss": "chunked",
        "compile": True, "seq_len": "2k", "tp": ("2",), "pp": ("1",), "cp": ("1",),
    },
    "a price": {
        "model": "qwen3-0.6b", "on": ("h100", "l4"), "max_gpus": 2, "seq_len": "1k", "price": "2usd",
        "goal": "cheapest", "engine": ("deepspeed",), "layers": 4,
    },
    "adapters and a version": {
        "model": "qwen3-0.6b", "on": ("aws:g6.12xlarge",), "engine": ("huggingface@4.57",), "peft": "lora",
        "base_weights": "nf4-dq", "lora_rank": "32", "lora_targets": ("attention.q", "mlp.up"), "seq_len": "1k",
        "global_batch": 8, "recompute": ("none",),
    },
    "numbers": {
        "params": "3B", "layers": 16, "hidden": 2048, "heads": 16, "vocab": 32000, "on": ("4xh100-sxm-80gb",),
        "engine": ("deepspeed",), "seq_len": "1k", "optimizer": ("adamw-8bit",), "tokens": "1B",
    },
    "an engine's option": {
        "model": "llama-3.2-1b", "on": ("4xl40s",), "engine": ("megatron",), "seq_len": "1k", "pp": ("1",),
        "engine_option": ("recompute_method=block",), "recompute": ("full",),
    },
}

INVERSE: dict[str, dict[str, Any]] = {
    "largest-batch": {"engine": ("deepspeed",), "zero": ("3",), "recompute": ("full",)},
    "longest-sequence": {"engine": ("megatron",), "tp": ("2",), "pp": ("2",)},
    "largest-model": {"model": None, "on": ("2xl4",), "seq_len": "1k", "engine": ("torchtitan",)},
    "fewest-gpus": {"model": "llama-3.1-8b", "on": ("h100", "l40s"), "seq_len": "2k"},
    "cheapest-box": {"model": "llama-3.1-8b", "on": ("aws",), "currency": "USD", "seq_len": "2k"},
    "knee": {"layers": 8, "engine": ("torchtitan",)},
}


def figures(found: Answer) -> tuple[Any, ...]:
    """What a line says of its plan."""
    step = found.time.step_s if found.time is not None else None
    speed = found.speed.tokens_per_s if isinstance(found, ServeAnswer) and found.speed is not None else None
    asked = {name: value for name, value in found.question.items() if name != "run_tokens"}
    return asked, found.fullest.needed_bytes, found.capacity_bytes, found.fits, step, speed


@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_the_lines_of_a_search(options: dict[str, Any]) -> None:
    found = planned_training(named(options)).answer
    assert isinstance(found, PlanAnswer)
    assert found.plans
    assert ("--tokens" in found.command) == ("tokens" in options)
    assert figures(train_answer(typed(found.command), with_changes=False)[1]) == figures(found.plans[0])
    fixed = named({name: options[name] for name in (*FIXED, "params", "hidden", "heads", "vocab", "tokens", "price")
                   if name in options})
    model = options.get("model", "")
    for label, plan in zip(found.labels, found.plans, strict=True):
        again = train_answer(typed(f"vramcast train {model} {label}") | fixed, with_changes=False)[1]
        assert figures(again) == figures(plan), label


@pytest.mark.parametrize("goal", INVERSE)
def test_the_line_of_an_inverse_question(goal: str) -> None:
    options = {"model": "qwen3-0.6b", "on": ("8xh100-sxm-80gb",), "find": goal} | INVERSE[goal]
    found = planned_training(named({name: value for name, value in options.items() if value is not None})).answer
    assert isinstance(found, Answer)
    assert found.found is not None
    again = train_answer(typed(found.found.command), with_changes=False)[1]
    assert figures(again) == figures(found)


@pytest.mark.parametrize("options", [
    {"model": "llama-3.1-8b", "on": ("4x8xh100-sxm-80gb",), "concurrency": 640, "goal": "fastest"},
    {"model": "llama-3.1-405b", "on": ("2x8xh100-sxm-80gb", "8xh200-sxm-141gb"), "concurrency": 4},
    {"model": "llama-3.1-70b", "on": ("aws:g6.12xlarge",), "concurrency": 4, "weights": ("stored",)},
    {"model": "qwen3-0.6b", "on": ("l40s",), "concurrency": 2, "engine_option": ("offline=true",)},
    {"model": "llama-3.2-1b", "on": ("1xl4",), "concurrency": 8, "engine": ("vllm", "sglang"), "input_len": 900,
     "output_len": 100, "prefix_caching": False, "memory_fraction": 0.8},
], ids=["several machines", "replicas over machines", "pipelines", "an option of the engine", "lengths"])
def test_the_lines_of_a_search_for_deployments(options: dict[str, Any]) -> None:
    given = {"context": 8192} | options
    found, _ = planned_serving(named(given))
    assert found.plans
    again = serve_answer(typed(found.command), with_changes=False)
    best = found.plans[0]
    assert isinstance(best, ServeAnswer)
    assert figures(again)[1:] == figures(best)[1:]
    fixed = {name: value for name, value in named(given).items() if name not in ("on", "goal", "engine", "weights")}
    fixed.pop("concurrency")
    for label, plan in zip(found.labels, found.plans, strict=True):
        again = serve_answer(fixed | typed(f"vramcast serve {options['model']} {label}"), with_changes=False)
        assert figures(again)[1:] == figures(plan)[1:], label


@pytest.mark.parametrize("machines", [1, 4])
def test_no_more_machines_are_used_than_there_are(machines: int) -> None:
    options = {"model": "llama-3.1-8b", "context": 8192, "concurrency": 640}
    found, _ = planned_serving(named(options | {"on": (f"{machines}x2xl40s",)}))
    counted = machines > 1
    if counted:
        assert not found.plans
        assert found.change is not None
        again, _ = planned_serving(named(options | {"on": (found.change.change.removeprefix("--on "),)}))
        assert again.plans
    else:  # one box of two cards, of which there may be any number
        assert found.plans
