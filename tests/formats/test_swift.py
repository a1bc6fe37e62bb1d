"""Commands of ms-swift, and the YAML of their `--config`."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.test_axolotl import figures
from tests.formats.test_readers import asked, refusal, written
from vramcast.api import job_of
from vramcast.errors import Unsupported
from vramcast.formats.merged import with_configs
from vramcast.formats.paths import Configs
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

SFT = """# 22GB
nproc_per_node=2
CUDA_VISIBLE_DEVICES=0,1 \\
NPROC_PER_NODE=$nproc_per_node \\
swift sft \\
    --model qwen3-0.6b \\
    --tuner_type lora \\
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' \\
              'swift/self-cognition#500' \\
    --torch_dtype bfloat16 \\
    --per_device_train_batch_size 1 \\
    --learning_rate 1e-4 \\
    --lora_rank 8 \\
    --target_modules all-linear \\
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \\
    --max_length 2048 \\
    --system 'You are a helpful assistant.' \\
    --model_author swift MORE
"""

FORMER = """swift sft --model_type qwen1half-0_5b-chat --sft_type lora --dataset blossom-math-zh --max_length 1024 \\
    --lora_target_modules DEFAULT --dtype bf16 --use_flash_attn true --batch_size 2 --gradient_accumulation_steps 8 MORE
"""


def given(folder: Path, more: str = "", text: str = SFT) -> Given:
    return read_files([written(folder, "train.sh", text.replace("MORE", more))], command="train")


def test_a_yaml_of_the_same_names_is_the_same_question(tmp_path: Path) -> None:
    table = {"model": "qwen3-0.6b", "tuner_type": "lora", "torch_dtype": "bfloat16", "max_length": 2048,
             "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "dataset": ["a", "b"],
             "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    script = written(tmp_path, "train.sh", SFT.replace("MORE", ""))
    config = written(tmp_path, "sft.yaml", table)
    assert figures(asked(config, gpus="1xh100", grad_accum=8)) == figures(asked(script, gpus="1xh100"))


@pytest.mark.parametrize(("before", "said"), [
    ("NPROC_PER_NODE=2\n", True), ("export NPROC_PER_NODE=2\n", False), ("NPROC_PER_NODE=2 \\\n", False),
    ("NPROC_PER_NODE=2\nexport NPROC_PER_NODE\n", False), ("set -a\nNPROC_PER_NODE=2\n", False),
])
def test_a_variable_that_no_command_sees_is_said(tmp_path: Path, before: str, said: bool) -> None:
    found = given(tmp_path, text=f"{before}swift sft --model qwen3-0.6b --max_length 512 --dataset a\n")
    assert any("without export" in one.why for _, one in found.unread) == said


@pytest.mark.parametrize("before, cards, pp", [
    ("NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1", 2, 1), ("CUDA_VISIBLE_DEVICES=0,1", 2, 2),
    ("CUDA_VISIBLE_DEVICES=0", 1, 1),
])
def test_a_command_whose_arguments_are_a_file_is_that_files(tmp_path: Path, before: str, cards: int, pp: int) -> None:
    command = f"{before} swift sft sft.yaml"
    assert "sft.yaml: is a file of its own" in refusal(given(tmp_path, text=f"{command}\n"))
    assert "--max_length: stands behind a file" in refusal(given(tmp_path, text=f"{command} --max_length 9\n"))
    table = {"model": "qwen3-0.6b", "tuner_type": "lora", "max_length": 512}
    files = [written(tmp_path, "train.sh", f"{command}\n"), written(tmp_path, "sft.yaml", table)]
    job = job_of({"from": files, "gpus": "h100"})
    assert (job.cluster.count, job.plan.pp, job.workload.seq_len) == (cards, pp, 512)
    preferences = [written(tmp_path, "rlhf.sh", f"{command}\n".replace("swift sft", "swift rlhf")), files[1]]
    assert job_of({"from": preferences, "gpus": "h100"}).workload.objective == "dpo"  # `rlhf_type`, where nobody says


@pytest.mark.parametrize("more, expected", [
    ("--tuner_type full", {"precision": "bf16", "peft": None}),
    ("--tuner_type full --deepspeed zero3", {"precision": "mixed-bf16", "zero": "3", "sharded-by": "deepspeed"}),
    ("--tuner_type full --deepspeed zero0", {"zero": "0", "sharded-by": None}),
    ("--deepspeed zero2_offload", {"zero": "2", "offload-optimizer": "cpu"}),
    ("--fsdp fsdp2", {"sharded-by": "fsdp2", "shards": "everything"}),
    ("--attn_impl flash_attn --packing true", {"attention": "flash"}),
    ("--quant_method bnb --quant_bits 4", {"base-weights": "nf4-dq"}),
    ("--quant_method bnb --quant_bits 8", {"base-weights": "int8"}),
    ("--gradient_checkpointing false", {"recompute": "none"}),
    ("--use_dora true --lora_rank 16", {"peft": "dora", "lora-rank": 16}),
    ("--optim adamw_8bit", {"optimizer": "adamw-8bit"}),
    ("--use_galore true --galore_rank 64", {"optimizer": "galore:64"}),
    ("--optimizer muon", {"optimizer": "muon"}),
    ("--use_liger_kernel true", {"loss": None}),
    ("--sequence_parallel_size 2", {"cp": 2, "cp-kind": "ulysses"}),
    ("--tuner_type full --lisa_activated_layers 2", {"peft": None}),
    ("--quant_bits 4 --bnb_4bit_compute_dtype bfloat16", {"base-weights": None}),  # nothing says by whom
    ("--tuner_backend unsloth", {"engine": "unsloth"}),
    ("--rlhf_type dpo", {"objective": "dpo"}),
    ("--rlhf_type kto", {"objective": "kto", "engine-option": (
        "trl=0.29", "log_probs=rows", "dtype=bfloat16", "reentrant=false")}),
    ("--rlhf_type simpo --use_liger_kernel true", {"objective": "dpo", "engine-option": (
        "trl=0.29", "precompute_ref_log_probs=true", "log_probs=rows+nll", "dtype=bfloat16", "reentrant=false",
        "liger=rope+rms_norm+swiglu")}),
])
def test_arguments_are_read_as_ms_swift_means_them(more: str, expected: dict[str, Any], tmp_path: Path) -> None:
    found = given(tmp_path, more).options
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("more, sentence", [
    ("--task_type embedding", "task_type"),
    ("--tuner_type llamapro", "'llamapro' is not modelled"),
    ("--rlhf_type ppo", "'ppo' is not one of dpo, grpo, rm"),
    ("--rlhf_type cpo --cpo_alpha 0", "cpo_alpha: 0 leaves out"),
    ("--fsdp my.json", "fsdp: is a file of its own"),
    ("--rlhf_type grpo --use_vllm true --vllm_mode colocate", "puts an engine on the same cards; vramcast rl answers"),
    ("--rlhf_type grpo --use_vllm true --vllm_mode colocate --async_generate true", "but with vllm_mode server"),
    ("--rlhf_type grpo --multi_turn_scheduler a", "in turns of max_completion_length tokens each"),
    ("--deepspeed my.json", "is a file of its own"),
    ("--lora_ranks 4", "did you mean lora_rank"),
    ("--quant_method hqq --quant_bits 4", "'hqq' of '4' bits is not modelled"),
])
def test_what_is_not_modelled_is_named(more: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal(given(tmp_path, more)).replace(" 4 bits", " '4' bits")


def test_bits_without_a_method_are_said_to_pack_nothing(tmp_path: Path) -> None:
    said = [sum("nothing is packed" in text for text in given(tmp_path, more).assumptions) for more in (
        "--quant_bits 4", "--quant_bits 4 --quant_method bnb")]
    assert said == [1, 0]


def test_a_file_of_fsdp_is_read_where_it_lies(tmp_path: Path) -> None:
    written(tmp_path, "offload.json", {"_note": "", "fsdp": "full_shard auto_wrap offload", "fsdp_config": {
        "fsdp_version": 2, "reshard_after_forward": False}})
    plan = asked(written(tmp_path, "a.sh", SFT.replace("MORE", "--fsdp './offload.json'")), gpus="2xh100").plan
    assert (plan.sharded_by, plan.reshard_after_forward, plan.offload_parameters) == ("fsdp2", False, "cpu")


@pytest.mark.parametrize(("launcher", "ranks", "nodes"), [
    ("torchrun --nproc_per_node=4 --nnodes=2 swift/cli/sft.py", 8, 2),
    ("accelerate launch --num_processes 2 --multi_gpu swift/cli/sft.py", 2, 1),
])
def test_launchers_say_how_many_processes_there_are(launcher: str, ranks: int, nodes: int, tmp_path: Path) -> None:
    text = SFT.replace("NPROC_PER_NODE=$nproc_per_node \\\n", "").replace("swift sft", launcher)
    found = given(tmp_path, text=text.replace("0,1", "0,1,2,3"))
    assert (found.ranks, found.nodes, refusal(found)) == ({"train.sh": ranks}, nodes, "")


def test_labels_of_samples_are_a_question_of_their_own(tmp_path: Path) -> None:
    path = written(tmp_path, "train.sh", SFT.replace("MORE", "--task_type seq_cls --num_labels 2"))
    job = asked(path, gpus="2xh100")
    assert (job.workload.objective, job.workload.min_seq_len) == ("classification", 1)


@pytest.mark.parametrize(("before", "task", "model", "texts"), [
    ("", "embedding", "qwen3-embedding-0.6b", 2), ("", "generative_reranker", "qwen3-reranker-0.6b", 8),
    ("MAX_NEGATIVE_SAMPLES=3 ", "reranker", "qwen3-0.6b", 4), ("", "seq_cls --num_labels 2", "qwen2.5-vl-3b", 1),
])
def test_a_sample_of_several_texts_is_as_many_rows(
    tmp_path: Path, before: str, task: str, model: str, texts: int
) -> None:
    text = before + SFT.replace("qwen3-0.6b", model).replace("MORE", f"--task_type {task}")
    job = asked(written(tmp_path, "train.sh", text), gpus="2xh100")
    assert (job.workload.objective, job.workload.micro_batch, job.workload.grad_accum) == ("classification", texts, 8)


def test_a_head_that_stays_unused_is_named(tmp_path: Path) -> None:
    text = SFT.replace("qwen3-0.6b", "Qwen/Qwen3-8B").replace("MORE", "--task_type embedding")
    with pytest.raises(Unsupported, match="a head of its own"):
        asked(written(tmp_path, "train.sh", text), gpus="2xh100")


def test_tuners_of_peft_are_as_wide_as_their_own_number(tmp_path: Path) -> None:
    def of(kind: str) -> dict[str, Any]:
        return given(tmp_path, text=SFT.replace("lora \\", f"{kind} \\").replace("MORE", "")).options

    assert [(of(kind)["peft"], of(kind)["lora-rank"]) for kind in ("bone", "boft")] == [("bone", 4), ("boft", 4)]


def test_a_batch_that_only_the_file_s_processes_share_is_answered_for_those(tmp_path: Path) -> None:
    text = ("NPROC_PER_NODE=2 megatron sft --model qwen3-0.6b --dataset a --micro_batch_size 8 "
            "--global_batch_size 16 --max_length 512\n")
    path = written(tmp_path, "train.sh", text)
    assert [asked(path, gpus=f"{count}xh100").cluster.count for count in (2, 8)] == [2, 2]
    assert asked(path, gpus="8xh100", micro_batch=2).cluster.count == 8


def test_arguments_before_release_3_are_read(tmp_path: Path) -> None:
    found = given(tmp_path, "", FORMER)
    assert refusal(found) == ""
    assert found.options["model"] == "Qwen/Qwen1.5-0.5B-Chat"
    assert (found.options["lora-targets"], found.options["adapter-dtype"]) == (
        "attention.q,attention.k,attention.v", "fp32")
    assert found.batch == {"micro": 2, "accumulation": 8}
    assert given(tmp_path, "--tuner_backend swift", FORMER).options["adapter-dtype"] == "bf16"
    assert given(tmp_path, "--quantization_bit 4", FORMER).options["base-weights"] == "nf4-dq"
    assert "is not known here; give MODEL" in refusal(given(tmp_path, "--model_type my-own-7b", FORMER))


def test_a_step_that_nobody_sizes_is_counted_beside_an_engine(tmp_path: Path) -> None:
    text = ("swift rlhf --rlhf_type grpo --model qwen3-0.6b --use_vllm true --vllm_mode colocate --num_generations 8 "
            "--per_device_train_batch_size 4 --max_completion_length 256 --tuner_type full --deepspeed zero3\n")
    path = written(tmp_path, "grpo.sh", text)
    found = [with_configs({"gpus": f"{cards}xh100"}, Configs((path,)), command="rl")[0] for cards in (2, 8)]
    assert [(one["mini-batch"], one["prompts"]) for one in found] == [(2, 2), (4, 4)]


TAUGHT = """NPROC_PER_NODE=2 swift rlhf --rlhf_type gkd --model qwen3-0.6b --teacher_model qwen3-1.7b \\
    --tuner_type full --dataset d --per_device_train_batch_size 2 --gradient_accumulation_steps 1 --max_length 1024 \\
    --deepspeed zero3 MORE
"""


def test_a_teacher_says_who_writes_and_how_much(tmp_path: Path) -> None:
    job = asked(written(tmp_path, "train.sh", TAUGHT.replace("MORE", "--beta 0 --max_completion_length 256")),
                gpus="2xh100")
    assert (job.teacher and job.teacher.name, job.workload.completion_len) == ("qwen3-1.7b", 256)
    assert job.engine_options["beta"] in (0, "0")
    alone = asked(written(tmp_path, "train.sh", TAUGHT.replace("MORE", "--lmbda 0")), gpus="2xh100")
    assert alone.workload.completion_len == 0


@pytest.mark.parametrize(("more", "sentence"), [
    ("--sft_alpha 0.1", "sft_alpha: adds a cross entropy"), ("--gkd_logits_topk 64", "gkd_logits_topk: compares"),
    ("--teacher_model qwen3-0.6b", "teacher_model: is the student itself"),
    ("--teacher_deepspeed zero3_offload", "teacher_deepspeed: other than"),
    ("--offload_teacher_model true", "offload_teacher_model: moves"),
])
def test_teachers_that_are_not_modelled_are_named(more: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal(given(tmp_path, more, text=TAUGHT))
