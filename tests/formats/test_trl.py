"""TRL's YAML files and the alignment-handbook's: what a trainer does unasked, and what is not modelled is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.formats.test_readers import asked, refusal, written
from vramcast.domain.job import Job, Phase
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer
from vramcast.formats.read import read_files

QLORA = {
    "model_name_or_path": "llama-3.2-1b", "torch_dtype": "bfloat16", "attn_implementation": "flash_attention_2",
    "use_peft": True, "load_in_4bit": True, "lora_r": 16, "lora_alpha": 16, "lora_dropout": 0.05,
    "lora_target_modules": ["q_proj", "v_proj"], "dataset_mixture": {"datasets": [{"id": "a/b"}]}, "bf16": True,
    "gradient_accumulation_steps": 2, "gradient_checkpointing": True, "max_seq_length": 2048,
    "gradient_checkpointing_kwargs": {"use_reentrant": False}, "per_device_train_batch_size": 4,
    "chat_template": "{% for message in messages %}{{ message }}{% endfor %}", "learning_rate": 2e-4,
}
"""A file as the alignment-handbook has them."""


def of(tmp_path: Path, table: dict[str, Any], name: str = "config.yaml", head: str = "", **options: Any) -> Job:
    return asked(written(tmp_path, name, head + yaml.safe_dump(table)), gpus="h100", **options)


OF_ADAPTERS = ("lora_", "load_", "use_peft", "max_seq", "torch")
FULL = {name: value for name, value in QLORA.items() if not name.startswith(OF_ADAPTERS)}


@pytest.mark.parametrize("table, name, head, objective", [
    ({"packing": True}, "config.yaml", "", "sft"), ({"rpo_alpha": None}, "config.yaml", "", "dpo"),
    ({"beta": 0.1}, "config.yaml", "# DPOTrainer arguments\n", "dpo"), ({}, "dpo_smol.yaml", "", "dpo"),
    ({"center_rewards_coefficient": 0.01}, "x.yaml", "", "reward"), ({"num_generations": 8}, "x.yaml", "", "grpo"),
])
def test_the_trainer_of_a_file_is_what_it_says(
    table: dict[str, Any], name: str, head: str, objective: str, tmp_path: Path
) -> None:
    assert of(tmp_path, FULL | table, name, head).workload.objective == objective


def test_a_file_that_may_be_anybodys_is_asked_for_its_trainer(tmp_path: Path) -> None:
    table = FULL | {"beta": 0.1}
    with pytest.raises(Unsupported, match="does not say whose arguments it holds"):
        of(tmp_path, table)
    assert of(tmp_path, table, objective="dpo").workload.objective == "dpo"
    path = written(tmp_path, "config.yaml", yaml.safe_dump(table))
    script = written(tmp_path, "run.sh", "python scripts/dpo.py --config recipes/x/config.yaml --beta 0.2\n")
    assert asked(path, script, gpus="h100").workload.objective == "dpo"


@pytest.mark.parametrize("changes, said", [
    ({"use_peft": False}, "load_in_4bit: trains packed weights"), ({"padding_free": True}, "padding_free"),
    ({"loss_type": "dft"}, "loss_type"), ({"max_length": None, "max_seq_length": None}, "max_length: is null"),
    ({"lora_target_parameters": ["mlp.experts"]}, "lora_target_parameters"), ({"lora_rank": 8}, "lora_rank"),
    ({"attn_implementation": "flex_attention"}, "flex_attention"), ({"dtype": "int8"}, "dtype"),
])
def test_what_may_change_the_answer_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    table = {name: value for name, value in (QLORA | changes).items() if name != "max_seq_length" or value}
    path = written(tmp_path, "sft.yaml", yaml.safe_dump(table))
    assert said in refusal(read_files([path], command="train"))


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("orpo", {}, ("dpo", "bf16", "rows+nll")), ("cpo", {"loss_type": "simpo"}, ("dpo", "bf16", "rows+nll")),
    ("prm", {}, ("tagging", "bf16", None)),
])
def test_scripts_that_load_what_the_checkpoint_has(
    name: str, changes: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    table = {key: value for key, value in (FULL | changes).items() if "dtype" not in key}
    job = of(tmp_path, table, f"{name}.yaml")
    assert (job.workload.objective, job.plan.precision, job.engine_options.get("log_probs")) == expected
    assert job.plan.recompute == "full"


def test_an_evaluation_of_more_samples_than_a_step_has_is_counted(tmp_path: Path) -> None:
    table = FULL | {"packing": True, "per_device_train_batch_size": 1, "loss_type": "nll", "max_length": 4096}
    found = [answer(of(tmp_path, table | changes)) for changes in (
        {}, {"eval_strategy": "steps", "per_device_eval_batch_size": 1},
        {"eval_strategy": "steps", "per_device_eval_batch_size": 16})]
    evaluation = [one.fullest.phases[Phase.EVALUATION].allocated_bytes for one in found]
    assert evaluation[0] == evaluation[1] < evaluation[2]
    assert [one.fits for one in found] == [True, True, False]
    assert len({one.fullest.peak for one in found}) == 1  # of a step


GKD = {"model_name_or_path": "qwen3-0.6b", "teacher_model_name_or_path": "qwen3-1.7b", "per_device_train_batch_size": 2,
       "max_length": 640, "beta": 0.25}


@pytest.mark.parametrize(("changes", "lengths", "pairs"), [
    ({}, (512, 128), {"teacher_dtype": "float32"}),
    ({"lmbda": 0.0, "dtype": "bfloat16", "use_peft": True}, (640, 0), {"dtype": "bfloat16"}),
    ({"max_new_tokens": 40, "dtype": "bfloat16"}, (600, 40), {"autocast": True}),
])
def test_a_student_reads_what_it_wrote_within_the_length_of_samples(
    changes: dict[str, Any], lengths: tuple[int, int], pairs: dict[str, Any], tmp_path: Path
) -> None:
    job = of(tmp_path, GKD | changes)
    assert job.teacher is not None
    assert (job.workload.objective, job.teacher.name) == ("gkd", "qwen3-1.7b")
    assert (job.workload.seq_len, job.workload.completion_len) == lengths
    assert {name: value for name, value in job.engine_options.items() if name != "beta"} == pairs
    assert job.engine_options["beta"] == "0.25"


@pytest.mark.parametrize(("changes", "said"), [
    ({"teacher_model_name_or_path": None}, "teacher_model_name_or_path: is not given"),
    ({"use_peft": True, "load_in_4bit": True}, "load_in_4bit: packs the teacher, too"),
    ({"packing": True}, "packing: beside GKD's own collator"), ({"use_liger_kernel": True}, "Liger's loss of GKD"),
    ({"teacher_model_init_kwargs": {"dtype": "auto"}}, "teacher_model_init_kwargs"),
    ({"max_new_tokens": 2048}, "max_new_tokens: leaves no prompt within max_length"),
    ({"max_length": 128, "lmbda": 0.0, "seq_kd": True}, "max_new_tokens: leaves no prompt within max_length"),
])
def test_a_teacher_that_is_another_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=said):
        of(tmp_path, GKD | changes)
