"""bitsandbytes packs linear layers; experts that transformers stacks in one parameter are none."""

from __future__ import annotations

import pytest

from vramcast.api import job_of, serve_answer
from vramcast.domain.answer import Answer
from vramcast.engines.training import TRAINING
from vramcast.estimate.training import answer
from vramcast.units import GIB

CARD = "1xh200-sxm-141gb"


def trained(model: str, engine: str, base: str = "nf4", **more: object) -> Answer:
    options = {"model": model, "gpus": CARD, "engine": engine, "peft": "lora", "base-weights": base, "seq-len": 512}
    options |= more | ({"precision": "bf16"} if engine == "pytorch" else {})
    return answer(job_of(options), with_changes=False)


def weights_gib(found: Answer) -> float:
    return sum(e.num_bytes for e in found.fullest.ledger if e.category == "weights") / GIB


@pytest.mark.parametrize(
    ("model", "engine", "gib"),
    [
        ("qwen3-30b-a3b", "huggingface", 55.67),
        ("qwen3-30b-a3b", "huggingface@4.57", 16.84),
        ("qwen3-30b-a3b", "pytorch", 55.67),  # in pure bf16
        ("gpt-oss-20b", "huggingface@4.57", 38.11),  # always were stacked
        ("qwen3-30b-a3b", "unsloth", 16.83),
        ("qwen3-30b-a3b", "unsloth@2026.4.4", 55.67),
        ("qwen3-30b-a3b", "unsloth@2025.8", 16.84),
        ("gpt-oss-20b", "unsloth@2026.4.4", 12.5),  # linear layers of Unsloth's own
    ],
)
def test_experts_are_packed_where_the_release_packs_them(model: str, engine: str, gib: float) -> None:
    assert weights_gib(trained(model, engine)) == pytest.approx(gib, rel=0.01)


def test_an_int8_base_leaves_them_too() -> None:
    assert weights_gib(trained("kimi-linear-48b-a3b", "huggingface", base="int8")) == pytest.approx(90.3, rel=0.01)


def test_it_is_said_where_they_stay_and_only_there() -> None:
    said = "experts are not packed: transformers"
    by_engine = {
        **{name: True for name, engine in TRAINING.items() if engine.runs_transformers},
        "huggingface@5": True, "huggingface@4": False, "unsloth": False,
        "unsloth@2026.6": False, "unsloth@2026.6.1": True,
    }
    for engine, expected in by_engine.items():
        found = trained("qwen3-30b-a3b", engine).assumptions
        assert any(text.startswith(said) for text in found) is expected, engine
    assert not any(text.startswith(said) for text in trained("llama-3.2-1b", "huggingface").assumptions)


def test_falcon_has_linear_layers_of_its_own() -> None:
    assert weights_gib(trained("falcon-7b", "huggingface@5.4")) == pytest.approx(4.2, rel=0.05)
    assert weights_gib(trained("falcon-7b", "huggingface@5.5")) == pytest.approx(13.4, rel=0.05)


@pytest.mark.parametrize(("version", "gib"), [("@4", 16.85), ("@4.57", 16.85), ("@5.0", 55.66), ("", 55.66)])
def test_serving_follows_the_release_as_training_does(version: str, gib: float) -> None:
    asked = {"model": "qwen3-30b-a3b", "gpus": CARD, "engine": f"transformers{version}", "weights": "nf4"}
    found = serve_answer({**asked, "context": 512}, with_changes=False)
    assert weights_gib(found) == pytest.approx(gib, rel=0.01)


def test_unpacked_experts_are_alive_together_where_they_are_one_tensor() -> None:
    # one loss for both, so that both peak in the backward of a layer and not one of them at its logits
    stacked, one_by_one = (
        trained("qwen3-30b-a3b", engine, loss="fused_linear") for engine in ("unsloth", "unsloth@2025.8")
    )
    more = stacked.fullest.peak.allocated_bytes - one_by_one.fullest.peak.allocated_bytes
    assert more == pytest.approx(128 * 768 * 2048 * 2, rel=0.2)
