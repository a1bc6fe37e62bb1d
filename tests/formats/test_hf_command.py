"""Command lines that start a script of the Trainer: who starts it, how many, and whose arguments follow."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.formats.test_readers import asked, refusal, written
from vramcast.domain.job import Job, Shards
from vramcast.errors import Unsupported, VramcastError
from vramcast.formats.read import read_files

TRL = "--model_name_or_path llama-3.2-1b --dataset_name a/b --output_dir x --max_length 2048"


def of(tmp_path: Path, command: str, *more: Path, gpus: str = "8xh100", **options: Any) -> Job:
    return asked(written(tmp_path, "run.sh", command + "\n"), *more, gpus=gpus, **options)


@pytest.mark.parametrize("command", [
    f"trl sft {TRL}", f"python trl/scripts/sft.py {TRL}", f"accelerate launch --num_processes 8 sft.py {TRL}",
    f"accelerate launch --multi_gpu --num_processes=8 examples/scripts/sft.py {TRL}",
    f"torchrun --nproc_per_node 8 -m trl.scripts.sft {TRL}", f"nohup python -u scripts/run_sft.py {TRL}",
    f"python -m accelerate.commands.launch --num_processes 8 trl/scripts/sft.py {TRL}",
    f"deepspeed --num_gpus 8 trl/scripts/sft.py {TRL}",
    f"trl sft {TRL.replace('_or_', '-or-').replace('max_length', 'max-length')}",
    f"MODEL=llama-3.2-1b\ntrl sft {TRL.replace('llama-3.2-1b', '$MODEL')}",
])
def test_who_starts_a_script_changes_nothing_of_it(command: str, tmp_path: Path) -> None:
    job = of(tmp_path, command)
    assert (job.engine, job.model.name, job.workload.objective) == ("huggingface", "llama-3.2-1b", "sft")
    assert (job.workload.seq_len, job.workload.micro_batch, job.plan.precision) == (2048, 8, "amp-bf16")
    assert (job.plan.shards, job.plan.peft) == (Shards.NOTHING, None)


@pytest.mark.parametrize("options, shards, by", [
    ("--accelerate_config zero2", Shards.OPTIMIZER_AND_GRADIENTS, "deepspeed"),
    ("--accelerate_config zero3", Shards.EVERYTHING, "deepspeed"),
    ("--accelerate_config fsdp2", Shards.EVERYTHING, "fsdp2"), ("--accelerate_config multi_gpu", Shards.NOTHING, None),
    ("--num_processes 8", Shards.NOTHING, None),
])
def test_trls_command_line_takes_accelerates_files_by_name(
    options: str, shards: Shards, by: str | None, tmp_path: Path
) -> None:
    job = of(tmp_path, f"trl sft {TRL} {options}")
    assert (job.plan.shards, job.plan.sharded_by) == (shards, by)


def test_a_command_wins_over_the_file_of_its_arguments(tmp_path: Path) -> None:
    file = written(tmp_path, "sft.yaml", yaml.safe_dump({
        "model_name_or_path": "llama-3.2-1b", "use_peft": True, "lora_r": 8, "packing": True, "max_length": 512}))
    job = of(tmp_path, "trl sft --config recipes/sft.yaml --lora_r 64 --num_processes 8", file)
    assert job.plan.peft is not None
    assert (job.plan.peft.rank, job.workload.seq_len) == (64, 512)
    with pytest.raises(Unsupported, match=r"sft\.yaml.*give it with another --from"):
        of(tmp_path, "trl sft --config recipes/sft.yaml --lora_r 64")


@pytest.mark.parametrize("command, asked", [
    ("python run_glue.py --model_name_or_path bert-base-cased --do_train --per_device_train_batch_size 32",
     ("bert-base-cased", "classification", 128, 32, ())),
    ("python run_glue_no_trainer.py --model_name_or_path bert-base-cased --max_length 64",
     ("bert-base-cased", "classification", 64, 8, ())),
    ("python run_qa.py --model_name_or_path bert-base-uncased --dataset_name squad --do_train",
     ("bert-base-uncased", "tagging", 384, 8, ())),
    ("accelerate launch run_ner_no_trainer.py --model_name_or_path bert-base-cased",
     ("bert-base-cased", "tagging", 128, 8, ())),
    ("python run_swag.py --model_name_or_path roberta-base --max_seq_length 80 --do_train "
     "--per_device_train_batch_size 16",
     ("roberta-base", "classification", 80, 64, ())),
    ("python run_image_classification.py --dataset_name beans --do_train --per_device_train_batch_size 8",
     ("vit-base-patch16-224-in21k", "classification", 197, 8, ())),
    ("python run_speech_recognition_seq2seq.py --model_name_or_path openai/whisper-small --do_train "
     "--freeze_feature_encoder=False --freeze_encoder", ("whisper-small", "pretrain", 1500, 8, ("encoder",))),
    ("python run_clip.py --model_name_or_path openai/clip-vit-base-patch32 --max_seq_length 77 --do_train "
     "--freeze_vision_model", ("clip-vit-base-patch32", "pretrain", 77, 8, ("vision",))),
])
def test_scripts_with_other_heads_say_whose_and_what_is_frozen(
    command: str, asked: tuple[object, ...], tmp_path: Path
) -> None:
    job = of(tmp_path, command)
    found = (job.workload.objective, job.workload.seq_len, job.workload.micro_batch, job.plan.freeze)
    assert (job.model.name, *found) == asked


@pytest.mark.parametrize("command, said", [
    ("python run_plm.py --model_name_or_path gpt2 --per_device_train_batch_size 8", "trains a network or head"),
    ("python run_clm.py --model_name_or_path gpt2 --block_size 256 --do_eval", "do_train: is not given"),
    ("accelerate launch train.py --per_device_train_batch_size 1 --use_lora true", "lora_r"),
    ("accelerate launch bco.py --model_name_or_path gpt2", "BCO is not modelled"),
    ("python examples/scripts/gold.py --model_name_or_path gpt2 --per_device_train_batch_size 8", "GOLD is not "),
    ("python examples/scripts/online_dpo.py --model_name_or_path gpt2 --per_device_train_batch_size 8",
     "ONLINE_DPO is not modelled"),
    ("accelerate launch dpo_online.py --model_name_or_path gpt2", "ONLINE_DPO is not modelled"),
    ("accelerate launch sdft.py --model_name_or_path gpt2", "SDFT is not modelled"),
    ("llamafactory-cli train --stage ppo --do_train --finetuning_type lora", "'ppo' is not one of"),
    (f"trl sft {TRL} --accelerate_config mine.yaml", "mine.yaml"),
    (f"accelerate launch --cpu --num_processes 2 sft.py {TRL}", "cpu"),
    (f"trl sft {TRL}\ntrl dpo {TRL}", "different commands"),
    ("python -m tuning.sft_trainer --model_name_or_path gpt2 --peft_method lora --fast_moe 2", "beside adapters"),
])
def test_what_is_not_modelled_is_named(command: str, said: str, tmp_path: Path) -> None:
    given = read_files([written(tmp_path, "run.sh", command + "\n")], command="train")
    assert said in refusal(given)


def test_what_the_command_says_is_not_assumed_of_deepspeeds_auto(tmp_path: Path) -> None:
    zero = written(tmp_path, "ds.json", '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, '
                   '"gradient_accumulation_steps": "auto", "train_micro_batch_size_per_gpu": "auto"}')
    line = "deepspeed train.py --model_name_or_path gpt2 --bf16 --per_device_train_batch_size 2 --deepspeed ds.json"
    alone, beside = (
        " ".join(read_files(files, command="train").assumptions)
        for files in ([zero], [written(tmp_path, "run.sh", line + "\n"), zero]))
    assert "--micro-batch 8 --precision fp32" in alone and "train_micro_batch_size_per_gpu is auto" in alone
    assert not any(wrong in beside for wrong in ("--micro-batch 8", "--precision fp32", "is auto"))


def test_a_script_with_a_file_of_arguments_names_that(tmp_path: Path) -> None:
    for command in ("accelerate launch -m open_r1.grpo --config a/grpo.yaml", "python mine.py --config=a/grpo.yaml"):
        with pytest.raises(VramcastError, match=r"--from a/grpo\.yaml reads the file of its arguments"):
            read_files([], command="train", line=command)


def test_llamafactorys_command_is_its_file(tmp_path: Path) -> None:
    words = {"model_name_or_path": "llama-3.2-1b", "stage": "sft", "do_train": True, "finetuning_type": "lora",
             "template": "llama3", "cutoff_len": 1024, "lora_rank": 16, "bf16": True,
             "packing": True, "neat_packing": True}
    file = written(tmp_path, "lora.yaml", yaml.safe_dump(words))
    line = "llamafactory-cli train " + " ".join(f"--{name} {value}" for name, value in words.items())
    same = [of(tmp_path, command, *more) for command, *more in (
        (line,), ("FORCE_TORCHRUN=1 llamafactory-cli train examples/lora.yaml", file),
        ("torchrun --nproc_per_node 8 src/train.py examples/lora.yaml", file))]
    assert all((job.plan, job.workload) == (asked(file, gpus="8xh100").plan, same[0].workload) for job in same)
    over = of(tmp_path, "llamafactory-cli train examples/lora.yaml lora_rank=64", file)
    assert over.plan.peft is not None and over.plan.peft.rank == 64


OWN = "finetune.py --model_name_or_path llama-3.2-1b --bf16 True --model_max_length 512 --per_device_train_batch_size 1"


@pytest.mark.parametrize("words, experts, ep", [("4", "fms", 4), ("1", "fms", 1), ("false", "fms", 1),
                                                ("true", "scattermoe", 1)])
def test_fms_hf_tuning_says_who_divides_experts(words: str, experts: str, ep: int, tmp_path: Path) -> None:
    fsdp = "--use_fsdp --fsdp_version 1 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
    job = of(tmp_path, f"accelerate launch --num_processes 8 {fsdp} -m tuning.sft_trainer "
             f"--model_name_or_path mixtral-8x7b --torch_dtype bfloat16 --fast_moe {words}")
    assert (job.engine_options["experts"], job.plan.ep, job.plan.sharded_by) == (experts, ep, "fsdp1")


@pytest.mark.parametrize("adapters, rank, targets, base", [
    ("--use_lora yes --lora_r 16 --lora_target_modules q_proj v_proj", 16, ("attention.q", "attention.v"), "full"),
    ("--lora_enable True --lora_rank 8 --lora_target [q_proj,k_proj]", 8, ("attention.q", "attention.k"), "full"),
    ("--use_lora --q_lora True --lora_r 4 --target_modules q_proj", 4, ("attention.q",), "nf4"),
])
def test_scripts_of_ones_own_are_read_with_their_adapters(
    adapters: str, rank: int, targets: tuple[str, ...], base: str, tmp_path: Path
) -> None:
    peft = of(tmp_path, f"NCCL_P2P_DISABLE=1 torchrun --nproc_per_node 8 {OWN} {adapters}").plan.peft
    assert peft is not None and (peft.rank, peft.targets, peft.base) == (rank, targets, base)


def test_what_such_a_script_leaves_to_itself_is_asked_for(tmp_path: Path) -> None:
    for adapters, missing in (("--use_lora", "--lora-rank"), ("--lora_r 8", "--lora-targets")):
        with pytest.raises(Unsupported, match=missing):
            of(tmp_path, f"torchrun --nproc_per_node 8 {OWN} {adapters}")
    assert of(tmp_path, f"torchrun --nproc_per_node 8 {OWN} --lora_enable False --lora_r 8").plan.peft is None


def test_another_projects_src_train_is_not_llamafactorys(tmp_path: Path) -> None:
    for arguments in ("--lr 3", "--dataset=allenai/c4 --num_layers=32 --hidden_width=4096"):
        with pytest.raises(Unsupported) as refused:
            of(tmp_path, f"python src/train.py {arguments}")
        assert "llamafactory" not in str(refused.value)


def test_the_beginning_of_an_argument_stands_for_it() -> None:
    given = read_files([], command="train", line="trl sft --model_name Qwen/Qwen3-0.6B --gradient_acc 4 --model_ x")
    assert given.options["model"] == "Qwen/Qwen3-0.6B" and given.batch["accumulation"] == 4
    assert "model_: trl" in refusal(given)
