"""A search that starts from somebody's configuration: what is trained stays, how it is split is looked for."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import vramcast
from tests.formats.test_readers import DEEPSPEED, LAUNCHER, MEGATRON, VLLM, written
from vramcast.cli.main import group
from vramcast.domain.answer import Answer
from vramcast.domain.planning import PlanAnswer
from vramcast.errors import InvalidSpec, SourceError


def planned(kind: str, *args: Any, **options: Any) -> PlanAnswer:
    found = vramcast.plan(kind, *args, **options)
    assert isinstance(found, PlanAnswer)
    return found


def test_the_command_of_a_script_s_network_names_the_script(tmp_path: Path) -> None:
    path = written(tmp_path, "run.sh", MEGATRON)
    found = planned("train", on="4xh100-sxm-80gb", from_=path, top=1, micro_batch="1", recompute="full")
    program, *arguments = shlex.split(found.command)
    assert (program, arguments[:2]) == ("vramcast", ["train", str(path)])
    again = json.loads(CliRunner().invoke(group, [*arguments, "--json"]).output)
    assert again["peak"]["device_bytes"] == found.plans[0].peak.device_bytes
    assert again["parameters"] == found.plans[0].num_parameters


def test_a_script_without_a_network_is_no_model(tmp_path: Path) -> None:
    script = "torchrun pretrain_gpt.py --micro-batch-size 1 --seq-length 8 --tensor-model-parallel-size 2\n"
    path = written(tmp_path, "run.sh", script)
    with pytest.raises(SourceError, match="no network"):
        vramcast.train(str(path), gpus="8xh100-sxm-80gb")


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "ds.json", DEEPSPEED)
    found = planned(
        "train", "llama-3.2-1b", on="2xa100-sxm4-40gb", from_=path, seq_len=1024, engine="torchtitan", top=1,
        precision="mixed-bf16", zero="3", global_batch=64,
    )
    assert found.plans[0].question["engine"] == "torchtitan"
    assert found.plans[0].question["plan"]["precision"] == "mixed-bf16"
    assert found.question["global_batch"] == 64


def test_a_plan_that_the_file_has_and_the_machine_has_not_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "run.sh", LAUNCHER.replace("TP=2", "TP=4").replace("-size 1 --save", "-size 4 --save"))
    found = planned("train", on="4xh100-sxm-80gb", from_=path, top=1, micro_batch="1", recompute="full")
    assert any("own plan is not possible" in text and "16" in text for text in found.assumptions)


def test_an_inverse_question_starts_from_the_plan_of_the_file(tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
    path = written(tmp_path, "ds.json", config)
    found = vramcast.plan(
        "train", "llama-3.2-1b", on="2xa100-sxm4-40gb", from_=path, seq_len=1024, find="largest-batch"
    )
    assert isinstance(found, Answer)
    assert found.question["plan"]["shards"] == "everything"
    assert found.question["engine"] == "deepspeed"


def test_a_server_s_command_gives_model_and_cache(tmp_path: Path) -> None:
    path = written(tmp_path, "serve.sh", VLLM.replace("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"))
    found = planned("serve", on="8xl40s", from_=path, concurrency=8, top=3)
    assert found.question["requests"]["context"] == 16384
    assert all(plan.question["plan"]["kv_dtype"] == "fp8" for plan in found.plans)
    assert any("left to the search" in text and "--tp 2" in text for text in found.assumptions)
    with pytest.raises(InvalidSpec, match="use vramcast serve"):
        vramcast.plan("train", on="8xl40s", from_=path)
