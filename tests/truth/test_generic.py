"""Rows of unknown groups: words become a question, or one sentence says which word does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truth.contract import Refused
from truth.rows.generic import job_of, predict
from truth.rows.names import card_of, model_of
from vramcast.domain.job import Loss, Precision, Recompute, Shards
from vramcast.errors import VramcastError

ROW: dict[str, Any] = {
    "group": "somebody", "model": "meta-llama/Llama-3.2-1B", "gpu": "A100-SXM4-80GB", "n_gpus": 1,
    "parallelism": {"tp": 1, "pp": 1, "dp": 1}, "micro_batch": 1, "seq_len": 512, "precision": "bf16",
    "optimizer": "AdamW", "recompute": "none", "peft": "none", "framework": "HF Trainer", "metric": "nvidia-smi",
    "measured_gib": 25.0, "measured_raw": "25GB",
}


@pytest.mark.parametrize(
    ("text", "params_b", "name"),
    [
        ("7B (llama2-7B-hf)", 6.74, "llama-2-7b"),
        ("Llama 2 7 B", None, "llama-2-7b"),
        ("phi-1.5 1.3 B", 1.3, "phi-1.5"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", None, "llama-3-8b"),
        ("unsloth/llama-3-8b-bnb-4bit", None, "llama-3-8b"),
        ("Llama 3.1 (8B)", None, "llama-3.1-8b"),
        ("DeepSeek-V3-671B", 671, "deepseek-v3"),
        ("Llama-3-405B cut to 4 layers", None, "llama-3.1-405b cut to 4 layers"),
        ("Mixtral 8x7B", None, "mixtral-8x7b"),
    ],
)
def test_models_are_found_under_the_names_people_write(text: str, params_b: float | None, name: str) -> None:
    assert model_of(text, params_b).name == name


@pytest.mark.parametrize(
    ("text", "params_b", "words"),
    [
        ("7B", None, "not in the catalogue"),
        ("llama", None, "means several"),
        ("DeepSeek-V3-16B", None, "not in the catalogue"),
        ("llama-3-8b", 70.0, "not in the catalogue"),
        ("llama-3-8b cut to 99 layers", None, "layers=99"),
    ],
)
def test_a_name_that_could_be_another_model_is_refused(text: str, params_b: float | None, words: str) -> None:
    with pytest.raises(Refused, match=words):
        model_of(text, params_b)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100 79.15GiB", "a100-sxm4-80gb"), ("A100 40G", "a100-sxm4-40gb"), ("8x A100 80GB", "a100-sxm4-80gb"),
        ("H100 PCIe", "h100-pcie-80gb"), ("GB200 (184.3 GiB)", "gb200-186gb"), ("4090", "rtx-4090"),
        ("RTX A6000 48GB", "rtx-a6000"), ("Tesla V100 32GB", "v100-sxm2-32gb"),
    ],
)
def test_cards_are_found_under_the_names_people_write(text: str, name: str) -> None:
    assert card_of(text).name == name


@pytest.mark.parametrize(
    ("change", "engine", "shards", "precision"),
    [
        ({}, "huggingface", Shards.NOTHING, Precision.AMP_BF16),
        ({"framework": "LLaMA-Factory"}, "huggingface", Shards.NOTHING, Precision.AMP_BF16),
        ({"framework": "ms-swift (HF Trainer)"}, "huggingface", Shards.NOTHING, Precision.BF16),
        ({"zero": "zero3-offload", "n_gpus": 4}, "deepspeed", Shards.EVERYTHING, Precision.MIXED_BF16),
        ({"framework": "DeepSpeed", "zero": "ZeRO-2", "n_gpus": 4}, "deepspeed", Shards.OPTIMIZER_AND_GRADIENTS,
         Precision.MIXED_BF16),
        ({"framework": "PyTorch", "fsdp": "FSDP2 full shard", "n_gpus": 8}, "pytorch", Shards.EVERYTHING,
         Precision.AMP_BF16),
        ({"framework": "torchtune", "n_gpus": 2}, "torchtune", Shards.EVERYTHING, Precision.BF16),
        ({"framework": "torchtune"}, "pytorch", Shards.NOTHING, Precision.BF16),
        ({"framework": "NeMo", "n_gpus": 8, "zero": "distributed optimizer"}, "megatron", Shards.OPTIMIZER,
         Precision.MIXED_BF16),
        ({"framework": "NeMo Automodel", "n_gpus": 8, "fsdp": "FSDP2"}, "huggingface", Shards.EVERYTHING,
         Precision.BF16),
        ({"framework": "TRL 0.9, FSDP", "n_gpus": 8, "fsdp": "full shard"}, "huggingface", Shards.EVERYTHING,
         Precision.BF16),
        ({"framework": "unsloth"}, "unsloth", Shards.NOTHING, Precision.BF16),
        ({"precision": "fp32"}, "huggingface", Shards.NOTHING, Precision.FP32),
    ],
)
def test_the_framework_names_engine_sharding_and_precision(
    change: dict[str, Any], engine: str, shards: Shards, precision: Precision
) -> None:
    job = job_of(ROW | change)
    assert (job.engine, job.plan.shards, job.plan.precision) == (engine, shards, precision)


@pytest.mark.parametrize(
    ("change", "sharded_by", "release"),
    [
        ({"framework": "transformers 4.52.4", "fsdp": "FSDP1 FULL_SHARD"}, "fsdp1", (4, 52)),
        ({"framework": "HF Trainer, torch 2.1", "fsdp": "full shard"}, None, (4, 45)),
        ({"framework": "NeMo Automodel"}, "fsdp2", None),
    ],
)
def test_who_shards_and_the_release_are_read(
    change: dict[str, Any], sharded_by: str | None, release: tuple[int, int] | None
) -> None:
    job = job_of(ROW | {"n_gpus": 8, "fsdp": "yes"} | change)
    assert (job.engine, job.plan.sharded_by, job.engine_version) == ("huggingface", sharded_by, release)


@pytest.mark.parametrize(
    ("peft", "method", "rank", "base", "targets"),
    [
        ("LoRA r=32 on ['q_proj', 'v_proj']", "lora", 32, "full", 2),
        ("QLoRA rank=16", "lora", 16, "nf4-dq", 7),
        ("Q-LoRA (GPTQ Int4 base)", "lora", 8, "gptq-int4", 7),
        ("DoRA r=4, all linear", "dora", 4, "full", 7),
        ('{"peft_type": "LORA", "r": 10, "target_modules": ["up_proj", "down_proj"]}', "lora", 10, "full", 2),
    ],
)
def test_adapters_are_read_from_words_and_configs(peft: str, method: str, rank: int, base: str, targets: int) -> None:
    found = job_of(ROW | {"peft": peft}).plan.peft
    assert found is not None
    assert (found.method, found.rank, found.base, len(found.targets)) == (method, rank, base, targets)


@pytest.mark.parametrize(
    ("change", "optimizer", "recompute"),
    [
        ({"optimizer": "paged_adamw_8bit"}, "paged-adamw-8bit", Recompute.NONE),
        ({"optimizer": "Adafactor", "recompute": "gradient checkpointing"}, "adafactor", Recompute.FULL),
        ({"optimizer": "SGD"}, "sgd", Recompute.NONE),
    ],
)
def test_optimizers_and_recomputation_are_read(change: dict[str, Any], optimizer: str, recompute: Recompute) -> None:
    plan = job_of(ROW | change).plan
    assert (plan.optimizer, plan.recompute) == (optimizer, recompute)


def test_a_quantised_base_is_read_from_the_name_of_its_checkpoint() -> None:
    for suffix, base in (("AWQ", "awq-int4"), ("GPTQ-Int4", "gptq-int4"), ("bnb-4bit", "nf4-dq")):
        peft = job_of(ROW | {"peft": "LoRA r=8", "model": f"{ROW['model']}-{suffix}"}).plan.peft
        assert peft is not None
        assert peft.base == base


@pytest.mark.parametrize("words", ["cut_cross_entropy", "cut cross-entropy", "CCE", "Liger kernels"])
def test_a_loss_without_logits_is_read_however_it_is_written(words: str) -> None:
    assert job_of(ROW | {"notes": f"plugins: {words}"}).plan.loss is Loss.FUSED_LINEAR


def test_a_second_level_is_predicted_where_the_row_states_it() -> None:
    found = list(predict(ROW | {"metric": "max_memory_allocated (GiB)", "measured_reserved_gib": 30.0}))
    assert [item.level for item in found] == ["allocated", "reserved"]


def test_gb_and_gib_are_both_scored_where_the_source_does_not_say() -> None:
    (unclear,), (clear,) = predict(ROW), predict(ROW | {"measured_raw": "25 GiB"})
    assert unclear.measured_alternative == 25e9
    assert clear.measured_alternative is None


def test_several_cards_that_replicas_would_not_fit_were_sharded() -> None:
    (item,) = predict(ROW | {"model": "llama-2-13b", "n_gpus": 8, "parallelism": {"dp": 8}})
    assert item.predicted < 80 * 2**30


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["tp", "pp", "sp"]), st.one_of(st.integers(), st.none(), st.text()), max_size=3),
)


@given(st.dictionaries(st.sampled_from(sorted({*ROW, "zero", "fsdp", "attention_impl", "params_b", "notes"})), JUNK))
@settings(max_examples=200, deadline=None)
def test_no_row_crashes_the_adapter(change: dict[str, Any]) -> None:
    try:
        job_of(ROW | change)
    except (Refused, VramcastError) as refusal:
        assert "\n" not in str(refusal).strip()
