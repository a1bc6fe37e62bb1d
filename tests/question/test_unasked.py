"""What tools do unasked is counted and said; what a question says is kept, wherever the question stands."""

from typing import Any

import pytest

from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.errors import VramcastError
from vramcast.estimate.training import answer

ONE = "1xa100-sxm4-80gb"


def job(**options: Any) -> Job:
    return job_of({"model": "qwen3-0.6b", "gpus": ONE, "seq-len": 512, **options})


@pytest.mark.parametrize(("options", "dtype"), [
    ({"objective": "sft"}, "bf16"), ({"objective": "sft", "base-weights": "int8"}, "bf16"),
    ({"objective": "sft", "base-weights": "full"}, "fp32"), ({}, "fp32"), ({"objective": "dpo"}, "bf16"),
    ({"objective": "sft", "engine-option": ("trl=0.25",)}, "fp32"),
    ({"objective": "dpo", "engine-option": ("trl=0.28",)}, "fp32"),
    ({"objective": "sft", "engine-option": ("trl=0.8",)}, "bf16"),
    ({"objective": "sft", "engine-option": ("trl=0.8",), "base-weights": "int8"}, "fp32"),
    ({"objective": "sft", "adapter-dtype": "fp32"}, "fp32"), ({"objective": "sft", "engine": "unsloth"}, "fp32"),
])
def test_adapters_of_a_packed_base_are_as_trl_makes_them(options: dict[str, Any], dtype: str) -> None:
    found = job(**{"engine": "huggingface", "peft": "lora", "base-weights": "nf4", **options})
    assert found.plan.peft is not None
    assert found.plan.peft.adapter_dtype == dtype
    assert any("as TRL makes them" in text for text in found.assumed) is (dtype == "bf16")


@pytest.mark.parametrize(("options", "wide"), [
    ({}, True), ({"objective": "pretrain"}, False), ({"engine": "huggingface@4.57"}, False),
    ({"engine-option": ("trl=0.26",)}, False), ({"engine-option": ("dtype=bfloat16",)}, False),
    ({"objective": "pretrain", "engine-option": ("dtype=float32",)}, True), ({"base-weights": "nf4"}, True),
    ({"engine": "unsloth"}, False), ({"precision": "bf16"}, False),
])
def test_frozen_weights_are_loaded_as_trl_loads_them(options: dict[str, Any], wide: bool) -> None:
    asked = {"engine": "huggingface", "objective": "sft", "peft": "lora"}
    found = answer(job(**(asked | options)), with_changes=False)
    tables = next(entry for entry in found.fullest.ledger if entry.path == "weights/embedding/embedding.tokens")
    assert tables.num_bytes == (4 if wide else 2) * 151_936 * 1024
    assert any("loaded in float32" in text for text in found.assumptions) is wide


@pytest.mark.parametrize(("model", "options", "base"), [
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", {"peft": "lora"}, "nf4"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", {"peft": "lora", "base-weights": "nf4-dq"}, "nf4-dq"),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", {"peft": "lora", "base-weights": "awq-int4"}, "awq-int4"),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", {"peft": "lora"}, "give --base-weights gptq-int4 or awq-int4"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", {}, "beside which adapters alone learn"),
])
def test_adapters_lie_over_weights_as_the_checkpoint_packs_them(
    model: str, options: dict[str, Any], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if " " not in base:
        peft = job(model=model, **options).plan.peft
        assert peft is not None and peft.base == base
        return
    with pytest.raises(VramcastError, match=base):
        job(model=model, **options)
