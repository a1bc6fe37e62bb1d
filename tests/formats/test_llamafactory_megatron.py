"""LLaMA-Factory's files for Megatron: its own names beside those of mcore_adapter, whose fusions are off unasked."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.test_readers import asked, refusal, written
from vramcast.domain.job import Recompute
from vramcast.formats.read import read_files

TABLE: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen3-30B-A3B-Instruct-2507", "stage": "sft", "do_train": True,
    "finetuning_type": "full", "dataset": "alpaca_en_demo", "template": "qwen3_nothink", "cutoff_len": 4096,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "bf16": True,
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4,
    "expert_model_parallel_size": 2, "use_distributed_optimizer": True, "bias_activation_fusion": True,
    "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall", "recompute_granularity": "full",
}


def test_names_of_both_are_one_job(tmp_path: Path) -> None:
    job = asked(written(tmp_path, "full.yaml", TABLE), gpus="8xh100-sxm-80gb")
    plan, workload, options = job.plan, job.workload, job.engine_options
    assert (job.engine, plan.pp, plan.ep, plan.recompute) == ("megatron", 4, 2, Recompute.FULL)
    assert (workload.seq_len, workload.micro_batch, workload.grad_accum) == (4096, 2, 8)
    assert (options["accumulate_in_fp32"], options["gradient_accumulation_fusion"], options["rope_fusion"]) == (
        False, False, False)
    assert "bias_swiglu_fusion" not in options  # on, as the file says


@pytest.mark.parametrize(("more", "said"), [
    ({"finetuning_type": "lora"}, "finetuning_type"),
    ({"stage": "dpo"}, "stage: dpo is not modelled for megatron"),
    ({"moe_grouped_gems": True}, "moe_grouped_gems"),
])
def test_what_is_not_modelled_is_named(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = read_files([written(tmp_path, "full.yaml", TABLE | more)], command="train")
    assert said in refusal(found)
