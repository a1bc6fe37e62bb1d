"""Which files a plan asks for, how they are written, and what is said beside them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.formats.plans import files, notes, serving, training
from vramcast.catalogue.formats import format_names
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported
from vramcast.estimate.training import answer
from vramcast.formats.files import File, Part, defects, needed
from vramcast.formats.write import EMITTERS, files_of, unsaid, write_configs

LAUNCHERS = {"pai_dlc_job.json", "pai_dlc_submit.sh", "pytorchjob.yaml", "trainjob.yaml", "skypilot.yaml", "README.md"}


@pytest.mark.parametrize(
    ("engine", "gpus", "options", "wanted"),
    [
        ("pytorch", "h100", {}, {"train.py", "run.sh"}),
        (
            "huggingface",
            "8xh100",
            {},
            {"accelerate.yaml", "training_args.yaml", "train_trainer.py", "run.sh", "llamafactory.yaml"},
        ),
        (
            "deepspeed",
            "8xh100",
            {"zero": "3"},
            {
                "ds_config.json",
                "accelerate.yaml",
                "training_args.yaml",
                "train_trainer.py",
                "run.sh",
                "llamafactory.yaml",
            },
        ),
        ("torchtitan", "8xh100", {}, {"vramcast_plan.py", "run.sh"}),
        ("megatron", "8xh100", {"tp": 2}, {"run.sh"}),
        ("unsloth", "h100", {"peft": "lora"}, {"llamafactory.yaml"}),
        ("litgpt", "8xh100", {"zero": "3"}, {
            "accelerate.yaml", "training_args.yaml", "train_trainer.py", "run.sh", "litgpt.yaml"}),
    ],
)
def test_a_training_plan_is_written_for_its_own_engine_and_every_launcher(
    engine: str, gpus: str, options: dict[str, object], wanted: set[str]
) -> None:
    assert set(files(training("llama-3.1-8b", gpus, engine=engine, **options))) == wanted | LAUNCHERS


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy", "llama.cpp"])
def test_a_serving_plan_is_a_command_and_services(engine: str) -> None:
    found = set(files(serving("llama-3.1-8b", "h100", engine=engine, context="8k")))
    assert found >= {"serve.sh", "deployment.yaml", "skypilot.yaml", "pai_eas_service.json", "README.md"}


@pytest.mark.parametrize(("engine", "gpus"), [("colossalai", "8xh100")])
def test_an_engine_without_a_format_is_refused_with_those_that_have_one(engine: str, gpus: str) -> None:
    with pytest.raises(Unsupported, match=r"use .*deepspeed"):
        files(training("llama-3.1-8b", gpus, engine=engine))


def test_an_unknown_format_and_one_for_another_engine_are_refused() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="megatron")
    with pytest.raises(UnknownName, match="did you mean deepspeed"):
        files(job, "deepsped")
    with pytest.raises(InvalidSpec, match="format deepspeed is not for plans of engine megatron; use megatron"):
        files(job, "deepspeed")


def test_two_formats_that_write_the_same_file_are_refused() -> None:
    job = training("llama-3.2-1b", "8xh100", engine="pytorch")
    with pytest.raises(InvalidSpec, match=r"both write run\.sh; choose one"):
        files(job, "pytorch", "transformers")


def test_files_that_are_there_are_kept_unless_force_is_given(tmp_path: Path) -> None:
    job = training("llama-3.2-1b", "h100", engine="pytorch")
    (tmp_path / "run.sh").write_text("mine")
    with pytest.raises(SourceError, match=r"run\.sh is there already; --force overwrites"):
        write_configs(job, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]
    assert (tmp_path / "run.sh").read_text() == "mine"
    written = write_configs(job, tmp_path, force=True)
    assert sorted(path.name for path in written.files) == sorted(path.name for path in tmp_path.iterdir())
    assert (tmp_path / "run.sh").stat().st_mode & 0o111


def test_a_setting_that_no_file_says_is_told() -> None:
    job = training("llama-3.2-1b", "8xh100", engine="torchtitan")
    assert "--seq-len=4096 stands in none of the files" in notes(job, "accelerate-fsdp2")
    assert "--seq-len" not in notes(job)


def test_every_setting_that_differs_from_the_neutral_one_is_said_or_told() -> None:
    job = training("llama-3.2-1b", "8xh100", engine="deepspeed", zero="3", recompute="full", recompute_layers=3)
    found, told = files_of(job)
    said = frozenset().union(*(file.said for file in found))
    for name in needed(job):
        assert name in said or any(name.replace("_", "-") in note for note in told)
    assert any("--recompute-layers=3 stands in none" in note for note in told)


def test_environment_and_allocator_settings_reach_the_script() -> None:
    job = msgspec.structs.replace(
        training("llama-3.2-1b", "h100", engine="pytorch"),
        alloc_conf="expandable_segments:True",
        env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )
    text = files(job)["run.sh"].text
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert "export CUBLAS_WORKSPACE_CONFIG=:4096:8" in text
    assert unsaid(job, files(job).values()) == ()


def test_the_readme_holds_verdict_settings_and_reasons_of_files_without_comments() -> None:
    job = training("llama-3.2-1b", "8xh100", engine="deepspeed", zero="2")
    found, _ = files_of(job, answer=answer(job))
    text = found[-1].text
    assert "It fits: " in text and "| `--shards` | optimizer+gradients |" in text
    assert "| `zero_optimization.stage` | optimizer states and gradients are split over 8 ranks |" in text


def test_a_name_that_its_tool_does_not_know_is_a_defect() -> None:
    file = File(
        "run.sh",
        "\nARGS=(\n  --tensor-parallel 8\n  --recompute-granularity some\n)\n",
        (Part("megatron", "arguments"),),
    )
    found = defects(file)
    assert "run.sh: tensor-parallel: Megatron-LM d98e8a64 knows no such name" in found[0]
    assert "run.sh: recompute-granularity: 'some' is none of full, selective" in found[1]


def test_every_framework_format_is_held_against_a_snapshot_or_compiled() -> None:
    with_snapshot = {emitter.module for name, emitter in EMITTERS.items() if name in format_names()}
    assert with_snapshot >= {
        "deepspeed",
        "accelerate",
        "transformers",
        "llamafactory",
        "torchtitan",
        "megatron",
        "vllm",
        "sglang",
        "tensorrt_llm",
    }
