"""Which files a plan asks for, how they are written, and what is said beside them."""

from pathlib import Path

import msgspec
import pytest

from tests.formats.plans import files, serving, training
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.formats.files import File, Part, defects
from vramcast.formats.write import unsaid, write_configs


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy", "llama.cpp"])
def test_a_serving_plan_is_a_command_and_services(engine: str) -> None:
    found = set(files(serving("llama-3.1-8b", "h100", engine=engine, context="8k")))
    assert found >= {"serve.sh", "deployment.yaml", "skypilot.yaml", "pai_eas_service.json", "README.md"}


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


def test_a_name_that_its_tool_does_not_know_is_a_defect() -> None:
    file = File(
        "run.sh",
        "\nARGS=(\n  --tensor-parallel 8\n  --recompute-granularity some\n)\n",
        (Part("megatron", "arguments"),),
    )
    found = defects(file)
    assert "run.sh: tensor-parallel: Megatron-LM d98e8a64 knows no such name" in found[0]
    assert "run.sh: recompute-granularity: 'some' is none of full, selective" in found[1]
