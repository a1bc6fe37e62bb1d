"""bitsandbytes packs linear layers; experts that transformers stacks in one parameter are none."""

import pytest

from vramcast.api import job_of
from vramcast.domain.answer import Answer
from vramcast.estimate.training import answer
from vramcast.units import GIB

CARD = "1xh200-sxm-141gb"


def trained(model: str, engine: str, base: str = "nf4", **more: object) -> Answer:
    options = {"model": model, "gpus": CARD, "engine": engine, "peft": "lora", "base-weights": base, "seq-len": 512}
    options |= more | ({"precision": "bf16"} if engine == "pytorch" else {})
    return answer(job_of(options), with_changes=False)


def weights_gib(found: Answer) -> float:
    return sum(e.num_bytes for e in found.fullest.ledger if e.category == "weights") / GIB


def test_an_int8_base_leaves_them_too() -> None:
    assert weights_gib(trained("kimi-linear-48b-a3b", "huggingface", base="int8")) == pytest.approx(90.3, rel=0.01)


def test_unpacked_experts_are_alive_together_where_they_are_one_tensor() -> None:
    # one loss for both, so that both peak in the backward of a layer and not one of them at its logits
    stacked, one_by_one = (
        trained("qwen3-30b-a3b", engine, loss="fused_linear") for engine in ("unsloth", "unsloth@2025.8")
    )
    more = stacked.fullest.peak.allocated_bytes - one_by_one.fullest.peak.allocated_bytes
    assert more == pytest.approx(128 * 768 * 2048 * 2, rel=0.2)


def test_linear_experts_are_packed_one_by_one_and_all_read_all_tokens() -> None:
    # 64.5 GB on one H100: README of axolotl's examples/llama-4 for its scout-qlora-single-h100-flex.yaml
    found = answer(job_of({
        "model": "llama-4-scout", "gpus": "h100-sxm-80gb", "engine": "huggingface@5.14", "peft": "lora",
        "base-weights": "nf4-dq", "seq-len": 4096, "images": 0, "lora-rank": 32, "precision": "amp-bf16",
        "optimizer": "adamw-4bit", "attention": "flash", "compile": True, "loss": "fused_linear",
        "offload-activations": True, "recompute": "none",
        "lora-targets": "attention.q,attention.k,attention.v,attention.out,moe.shared.gate,moe.shared.up,"
                        "moe.shared.down",
        "engine-option": ("linear_experts=true", "cut_cross_entropy=true", "prepare_kbit=none"),
    }), with_changes=False)
    assert weights_gib(found) == pytest.approx(57, rel=0.05)
    assert found.peak.device_bytes / GIB == pytest.approx(64.5, rel=0.08)
