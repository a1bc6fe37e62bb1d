"""ms-swift's `megatron` commands: their defaults are their own, what they set is Megatron-LM's."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.test_readers import asked, refusal, written
from vramcast.domain.job import Job
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given
from vramcast.formats.tools.swift_megatron import ELSEWHERE_COUNTED

SFT = """PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
NPROC_PER_NODE=4 \\
CUDA_VISIBLE_DEVICES=0,1,2,3 \\
megatron sft \\
    --model Qwen/Qwen3-30B-A3B \\
    --dataset 'swift/self-cognition#500' \\
    --expert_model_parallel_size 4 \\
    --max_length 4096 \\
    --packing true \\
    --sequence_parallel true \\
    --lr 1e-5 MORE
"""


def given(folder: Path, more: str = "", text: str = SFT) -> Given:
    return read_files([written(folder, "train.sh", text.replace("MORE", more))], command="train")


def job(folder: Path, more: str = "", **options: Any) -> Job:
    path = written(folder, "train.sh", SFT.replace("MORE", more))
    return asked(path, gpus="4xh100-sxm-80gb", **options)


@pytest.mark.parametrize(("more", "expected"), [
    ("--recompute_granularity none", {"recompute": None}),
    ("--optimizer_cpu_offload true --use_precision_aware_optimizer true --optimizer_offload_fraction 1.",
     {"offload-optimizer": "cpu"}),
    ("--optimizer_cpu_offload true --optimizer_offload_fraction 0.4", {"offload-optimizer": "cpu"}),
    ("--rlhf_type kto", {"objective": "kto", "seq-len": 2048}),
    ("--rlhf_type rm", {"objective": "reward", "seq-len": 2048}),
    ("--task_type seq_cls", {"objective": "classification", "freeze": "towers,projectors"}),
    ("--task_type embedding", {"objective": "classification", "micro-batch": 2}),
    ("--optimizer muon", {"shards": "nothing"}),
    ("--optimizer dist_muon", {"shards": "optimizer"}),
    ("--torch_dtype float16", {"precision": "mixed-fp16"}),
    ("--fp8_format hybrid --fp8_recipe blockwise", {"precision": "fp8"}),
    ("--pipeline_model_parallel_size 2 --decoder_last_pipeline_num_layers 20", {"pp": 2, "last-stage-layers": 20}),
    ("--context_parallel_size 2", {"cp": 2}),
    ("--train_type lora --load_safetensors true --max_epochs 1 --num_workers 4 --save out --eval_interval 9",
     {"peft": "lora", "lora-rank": 8}),
    ("--no_masked_softmax_fusion true --num_virtual_stages_per_pipeline_rank 2 --pipeline_model_parallel_size 2",
     {"pp": 2, "virtual-stages": 2}),
    ("--tuner_type lora --target_modules linear_qkv linear_proj --lora_rank 16",
     {"peft": "lora", "lora-rank": 16, "lora-dropout": 0.05, "lora-targets": ("linear_qkv", "linear_proj")}),
    ("--packing false", {"min-seq-len": 1}),
])
def test_arguments_are_read_as_ms_swift_means_them(more: str, expected: dict[str, Any], tmp_path: Path) -> None:
    found = given(tmp_path, more).options
    assert {name: found.get(name) for name in expected} == expected


def test_degrees_that_need_several_cards_take_those_of_the_question(tmp_path: Path) -> None:
    text = "megatron sft --model qwen3-8b --max_length 1024 --micro_batch_size 1 MORE\n"
    for degree, alone in ((1, True), (2, False)):
        read = given(tmp_path, f"--tensor_model_parallel_size {degree}", text)
        assert (bool(read.alone), any(ELSEWHERE_COUNTED in str(one) for one in read.assumptions)) == (alone, not alone)


@pytest.mark.parametrize(("more", "sentence"), [
    ("--rlhf_type gkd", "rlhf_type: 'gkd' is not modelled for megatron"),
    ("--task_type generative_reranker", "task_type: 'generative_reranker' is not modelled"),
    ("--model qwen3-vl-8b --tuner_type lora --freeze_vit false", "freeze_vit: false adapts towers"),
    ("--model qwen3-vl-8b --freeze_llm true", "freeze_llm: leaves towers alone"),
    ("--mtp_num_layers 1 --mtp_shared_weights true", "mtp_shared_weights: modules that share"),
    ("--per_device_train_batch_size 1", "knows no such name"),
    ("--tuner_type lora_llm", "'lora_llm' is not modelled"),
])
def test_what_is_not_modelled_is_named(more: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal(given(tmp_path, more))


def test_a_run_on_ascend_is_another(tmp_path: Path) -> None:
    text = SFT.replace("CUDA_VISIBLE", "ASCEND_RT_VISIBLE").replace("MORE", "")
    assert "runs on no GPU of NVIDIA or AMD" in refusal(given(tmp_path, text=text))


def test_a_yaml_is_asked_for_and_settles_the_command(tmp_path: Path) -> None:
    command = "NPROC_PER_NODE=4 megatron sft sft.yaml\n"
    assert "sft.yaml: is a file of its own" in refusal(given(tmp_path, text=command))
    table = {"ENV": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "model": "qwen3-0.6b", "dataset": ["a"],
             "micro_batch_size": 2, "max_length": 2048, "tensor_model_parallel_size": 2}
    files = (written(tmp_path, "train.sh", command), written(tmp_path, "sft.yaml", table))
    found = asked(*files, gpus="4xh100-sxm-80gb")
    assert (found.plan.tp, found.workload.micro_batch, found.alloc_conf) == (2, 2, "expandable_segments:True")


def test_embedding_and_head_learn_in_copies_beside_adapters(tmp_path: Path) -> None:
    def held(more: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in answer(job(tmp_path, f"--tuner_type lora {more}"), with_changes=False).fullest.ledger:
            group = entry.path.partition("/")[0]
            found[group] = found.get(group, 0) + entry.num_bytes
        return found

    alone, beside = held(""), held("--modules_to_save word_embeddings output_layer")
    copies = 2 * 151_936 * 2048  # elements
    assert beside["weights"] - alone["weights"] == pytest.approx(2 * copies, rel=0.01)
    assert beside["optimizer"] - alone["optimizer"] == pytest.approx(12 * copies / 4, rel=0.01)


def test_each_expert_has_adapters_of_its_own(tmp_path: Path) -> None:
    """mcore-bridge's are grouped products; 32 of 128 experts are a rank's."""
    entries = answer(job(tmp_path, "--tuner_type lora"), with_changes=False).fullest.ledger
    buffers = sum(one.num_bytes for one in entries if one.path.endswith("experts/gradient buffer"))
    assert buffers == 4 * 48 * 32 * 8 * ((2048 + 2 * 768) + (768 + 2048))


def test_release_3_has_its_own_names_and_defaults(tmp_path: Path) -> None:
    text = SFT.replace("--model Qwen/Qwen3-30B-A3B", "--load Qwen2.5-7B-Instruct-mcore").replace("expert", "tensor")
    former = given(tmp_path, "--load_safetensors true", text)
    assert former.options["model"] == "Qwen2.5-7B-Instruct" and refusal(former) == ""
    fused = "cross_entropy=native"
    assert fused not in former.options["engine-option"] and fused in given(tmp_path).options["engine-option"]


GRPO: str = SFT.rstrip().replace("megatron sft", "megatron rlhf --rlhf_type grpo").replace("MORE", """\\
    --global_batch_size 128 --steps_per_generation 4 --max_completion_length 2048 --vllm_max_model_len 5000 \\
    --offload_model true --offload_optimizer true --sleep_level 2 --tuner_type lora""").replace("--packing true", "")


@pytest.mark.parametrize(("text", "expected"), [
    (f"{GRPO} --vllm_mode colocate",
     {"framework": "ms-swift", "prompts": 64, "mini-batch": 16, "prompt-len": 2952, "response-len": 2048,
      "sleep-level": 2, "trainer-leaves": True, "reference": True, "rollout-gpus": None, "peft": "lora"}),
    (f"{GRPO} --vllm_mode colocate --multi_turn_scheduler gym_scheduler --beta 0",
     {"prompt-len": 4096, "response-len": 904, "reference": False}),
    (f"{GRPO} --vllm_mode colocate --recompute_granularity none", {"recompute": "none"}),  # else all is recomputed
    (f"CUDA_VISIBLE_DEVICES=4,5 swift rollout --model m &\n{GRPO} --vllm_mode server",
     {"rollout-gpus": 2, "sleep": False, "trainer-leaves": None}),
], ids=["colocated", "turns", "kept", "a server of its own"])
def test_an_engine_that_answers_is_read_beside_its_trainer(text: str, expected: dict[str, Any], tmp_path: Path) -> None:
    found = read_files([written(tmp_path, "train.sh", text)], command="rl")
    assert {name: found.options.get(name) for name in expected} == expected
    assert not found.unread
    with pytest.raises(Unsupported, match="vramcast rl answers"):
        read_files([tmp_path / "train.sh"], command="train")


@pytest.mark.parametrize("more", ["--optimizer muon", "--use_distributed_optimizer false"])
def test_whole_states_are_refused_beside_an_engine(more: str, tmp_path: Path) -> None:
    path = written(tmp_path, "train.sh", f"{GRPO} --vllm_mode colocate {more}")
    assert "whole optimizer states" in refusal(read_files([path], command="rl"))


def test_cards_of_rays_groups_are_the_trainers_or_the_engines(tmp_path: Path) -> None:
    text = """rlhf_type: grpo
model: Qwen/Qwen3-4B
dataset: d
micro_batch_size: 2
colocate_groups: GROUPS
train: {gpus: 4, tuner_type: lora}
rollout: {gpus: 2, vllm_tensor_parallel_size: 2}
"""
    for groups, apart in (("[[train, rollout]]", None), ("[]", 2)):
        found = read_files([written(tmp_path, "ray.yaml", text.replace("GROUPS", groups))], command="rl")
        assert (found.options.get("rollout-gpus"), found.ranks) == (apart, {"ray.yaml": 4 + (apart or 0)})
        assert found.options["rollout-tp"] == 2
