"""DeepSpeed-Chat's scripts: which step they are of is asked for where their arguments do not say it."""

from pathlib import Path

import pytest

from vramcast.api import job_of
from vramcast.domain.job import Job, Phase, Precision
from vramcast.domain.program import Alloc
from vramcast.engines.deepspeed import ranks
from vramcast.estimate.training import answer
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

SCRIPT = """#!/bin/bash
OUTPUT=$1
ZERO_STAGE=$2
if [ "$OUTPUT" == "" ]; then
    OUTPUT=./output
fi
if [ "$ZERO_STAGE" == "" ]; then
    ZERO_STAGE=3
fi
deepspeed --num_gpus 8 main.py \\
   --data_path Dahoas/rm-static Dahoas/full-hh-rlhf --data_split 2,4,4 \\
   --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 --max_seq_len 1024 \\
   --gradient_accumulation_steps 2 --learning_rate 9.65e-6 --gradient_checkpointing --zero_stage $ZERO_STAGE \\
   --deepspeed --output_dir $OUTPUT &> $OUTPUT/training.log
"""


def read(tmp_path: Path, text: str = SCRIPT) -> Given:
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    return read_files([tmp_path / "run.sh"], command="train")


def job(tmp_path: Path, text: str = SCRIPT, **more: str) -> Job:
    read(tmp_path, text)
    return job_of({"from": (tmp_path / "run.sh",), "gpus": "8xa100-sxm4-80gb", **more})


def test_what_adapters_do_not_stand_beside_learns_where_they_are_not_all(tmp_path: Path) -> None:
    text = SCRIPT.replace("--deepspeed", "--lora_dim 64 --lora_module_name layers. --deepspeed")
    rest, alone = (job(tmp_path, one, objective="sft", zero="0") for one in (
        text, text.replace("--deepspeed", "--only_optimize_lora --deepspeed")))
    flat = [next(node.tensor.num_bytes for node in ranks(one)[0].phases[Phase.LOAD]
                 if isinstance(node, Alloc) and node.tensor.name == "flat weights") for one in (rest, alone)]
    assert flat[0] - flat[1] == 2 * (2 * 32000 * 4096 + (2 * 32 + 1) * 4096)  # both ends and norms, in fp16


def test_the_step_is_that_of_the_folder_wherever_the_question_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "step2_reward_model_finetuning" / "scripts"
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(folder)
    assert read_files(["run.sh"], command="train").options["objective"] == "reward"


@pytest.mark.parametrize("zero", ["0", "2", "3"])
def test_preferences_hold_two_networks_and_what_both_return(tmp_path: Path, zero: str) -> None:
    text = SCRIPT.replace("--deepspeed", "--beta 0.1 --lora_dim 64 --lora_module_name layers. --deepspeed")
    found = answer(job(tmp_path, text, zero=zero), with_changes=False)
    assert any("second network" in line for line in found.assumptions)
    held = next(entry for entry in found.ranks[0].ledger if "logits held by the loop" in entry.path)
    assert held.num_bytes == 2 * 2 * (2 * 4 * 1024) * 32000


def test_adapters_alone_are_those_within_the_named_module(tmp_path: Path) -> None:
    more = "--lora_dim 64 --lora_module_name layers. --only_optimize_lora --offload --dtype bf16 --deepspeed"
    found = job(tmp_path, SCRIPT.replace("--deepspeed", more), objective="sft")
    peft = found.plan.peft
    assert peft is not None
    assert (peft.rank, "mlp.down" in peft.targets, "head.output" in peft.targets) == (64, True, False)
    assert (found.plan.offload_optimizer, found.plan.offload_parameters) == ("cpu", "cpu")
    assert found.plan.precision is Precision.MIXED_BF16


@pytest.mark.parametrize(("more", "name"), [
    ("--actor_model_name_or_path a --critic_model_name_or_path b", "actor_model_name_or_path"),
    ("--compute_fp32_loss", "compute_fp32_loss"),
    ("--zero_stage 4", "zero_stage"),
    ("--use_something_new", "use_something_new"),
])
def test_what_is_another_run_is_named(tmp_path: Path, more: str, name: str) -> None:
    text = SCRIPT.replace("--deepspeed", f"{more} --deepspeed")
    assert name in [one.name for _, one in read(tmp_path, text).unread]
