"""What tools do unasked is counted and said; what a question says is kept, wherever the question stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.api import job_of
from vramcast.domain.job import Job, Recompute
from vramcast.engines.eager.trl import reentrant
from vramcast.errors import VramcastError
from vramcast.estimate.training import answer
from vramcast.report.document import to_json

SAID = "layers are recomputed, as {} does unasked; --recompute none switches that off"
ONE = "1xa100-sxm4-80gb"


def job(**options: Any) -> Job:
    return job_of({"model": "qwen3-0.6b", "gpus": ONE, "seq-len": 512, **options})


@pytest.mark.parametrize(
    ("engine", "options", "tool"),
    [
        ("huggingface", {}, ""), ("huggingface", {"peft": "lora"}, ""), ("deepspeed", {"objective": "sft"}, ""),
        ("pytorch", {"objective": "dpo"}, ""), ("huggingface", {"objective": "sft"}, "TRL"),
        ("huggingface", {"objective": "dpo"}, "TRL"), ("huggingface", {"objective": "reward"}, "TRL"),
        ("huggingface", {"objective": "grpo", "completion-len": 64}, "TRL"),
        ("huggingface", {"objective": "ppo", "completion-len": 64}, ""),  # its trainer switches nothing on
        ("huggingface", {"objective": "sft", "engine-option": ("trl=0.22",)}, "TRL"),
        ("huggingface", {"objective": "sft", "engine-option": ("trl=0.21",)}, ""),
        ("huggingface@4.57", {"objective": "dpo"}, "TRL"), ("huggingface@4.53", {"objective": "dpo"}, ""),
        ("unsloth", {}, "Unsloth"), ("unsloth", {"peft": "lora"}, "Unsloth"), ("unsloth@2024.8", {}, "Unsloth"),
        ("unsloth", {"model": "bert-base-uncased"}, ""),
    ],
)
def test_what_a_tool_does_unasked_is_counted_and_said(engine: str, options: dict[str, Any], tool: str) -> None:
    found = job(engine=engine, **options)
    assert found.plan.recompute is (Recompute.FULL if tool else Recompute.NONE)
    assert [text for text in found.assumed if "recomputed" in text] == ([SAID.format(tool)] if tool else [])
    if tool:
        asked, off = (job(engine=engine, **options, recompute=kind) for kind in ("full", "none"))
        assert asked.plan == found.plan
        assert off.plan.recompute is Recompute.NONE
        assert not any("recomputed" in text for one in (asked, off) for text in one.assumed)
        assert all("recomput" not in text for text in answer(off, with_changes=False).ignored)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"objective": "sft"}, "bf16"), ({"objective": "sft", "base-weights": "int8"}, "bf16"),
        ({"objective": "sft", "base-weights": "full"}, "fp32"), ({}, "fp32"), ({"objective": "dpo"}, "bf16"),
        ({"objective": "sft", "engine-option": ("trl=0.25",)}, "fp32"),
        ({"objective": "dpo", "engine-option": ("trl=0.28",)}, "fp32"),
        ({"objective": "sft", "engine-option": ("trl=0.8",)}, "bf16"),
        ({"objective": "sft", "engine-option": ("trl=0.8",), "base-weights": "int8"}, "fp32"),
        ({"objective": "sft", "adapter-dtype": "fp32"}, "fp32"), ({"objective": "sft", "engine": "unsloth"}, "fp32"),
    ],
)
def test_adapters_of_a_packed_base_are_as_trl_makes_them(options: dict[str, Any], dtype: str) -> None:
    found = job(**{"engine": "huggingface", "peft": "lora", "base-weights": "nf4", **options})
    assert found.plan.peft is not None
    assert found.plan.peft.adapter_dtype == dtype
    assert any("as TRL makes them" in text for text in found.assumed) is (dtype == "bf16")


@pytest.mark.parametrize(
    ("options", "older"),
    [
        ({}, True), ({"peft": None}, False), ({"sharded-by": "fsdp2"}, False), ({"zero": 2, "sharded-by": None}, False),
        ({"engine-option": ("trl=0.27",)}, False), ({"objective": "dpo"}, True),
        ({"objective": "dpo", "engine-option": ("trl=1.8",)}, False),
    ],
)
def test_adapters_under_zero_3_are_checkpointed_in_the_older_way(options: dict[str, Any], older: bool) -> None:
    asked = {"objective": "sft", "zero": 3, "sharded-by": "deepspeed", "peft": "lora", "gpus": "2xa100-sxm4-80gb"}
    given = {name: value for name, value in (asked | options).items() if value is not None}
    assert reentrant(job(engine="huggingface", **given)) is older


@pytest.mark.parametrize(
    ("options", "wide"),
    [
        ({}, True), ({"objective": "pretrain"}, False), ({"engine": "huggingface@4.57"}, False),
        ({"engine-option": ("trl=0.26",)}, False), ({"engine-option": ("dtype=bfloat16",)}, False),
        ({"objective": "pretrain", "engine-option": ("dtype=float32",)}, True), ({"base-weights": "nf4"}, True),
        ({"engine": "unsloth"}, False), ({"precision": "bf16"}, False),
    ],
)
def test_frozen_weights_are_loaded_as_trl_loads_them(options: dict[str, Any], wide: bool) -> None:
    asked = {"engine": "huggingface", "objective": "sft", "peft": "lora"}
    found = answer(job(**(asked | options)), with_changes=False)
    tables = next(entry for entry in found.fullest.ledger if entry.path == "weights/embedding/embedding.tokens")
    assert tables.num_bytes == (4 if wide else 2) * 151_936 * 1024
    assert any("loaded in float32" in text for text in found.assumptions) is wide


def test_a_frozen_network_in_float32_is_what_a_trace_of_it_shows() -> None:
    """5.00 and 3.47 GiB of a script that trains Qwen3-0.6B so, without and with checkpoints, in `vramcast trace`."""
    options = {"objective": "sft", "peft": "lora", "loss": "eager", "engine": "huggingface"}
    peaks = [answer(job(**options, recompute=kind)).fullest.peak.allocated_bytes / 2**30 for kind in ("none", "full")]
    assert peaks == pytest.approx([5.00, 3.47], rel=0.01)


def test_a_loss_in_chunks_makes_the_head_twice() -> None:
    questions = (job(engine="huggingface", objective="sft", **more) for more in ({}, {"loss": "eager"}))
    chunked, whole = (answer(question).time for question in questions)
    assert chunked is not None
    assert whole is not None
    head_flops = 2 * 512 * 151_936 * 1024
    assert chunked.step_s - whole.step_s > head_flops / 312e12


def test_json_shows_what_is_assumed() -> None:
    found = json.loads(to_json(answer(job(engine="huggingface", objective="dpo"))))
    assert found["question"]["plan"]["recompute"] == "full"
    assert SAID.format("TRL") in found["assumptions"]


@pytest.mark.parametrize(
    ("line", "recompute"),
    [("", "full"), ("gradient_checkpointing: false\n", "none"), ("gradient_checkpointing: true\n", "full")],
)
def test_a_file_of_the_trainer_that_says_so_is_kept(tmp_path: Path, line: str, recompute: str) -> None:
    """A file of arguments that says nothing leaves it to the trainer that the objective names."""
    path = tmp_path / "arguments.yaml"
    path.write_text(f"per_device_train_batch_size: 1\nmax_length: 512\nbf16: true\n{line}")
    found = job_of({"model": "qwen3-0.6b", "gpus": ONE, "objective": "dpo", "from": [path]})
    assert found.plan.recompute == recompute


def test_adapters_on_one_card_are_the_trainers_over_weights_in_16_bits() -> None:
    assert (job(peft="lora").engine, job().engine) == ("huggingface", "pytorch")


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
