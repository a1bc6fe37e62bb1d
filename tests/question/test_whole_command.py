"""The command of a winner, typed, asks for the winner; tests/search/test_lines_again.py asks more plans again."""

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

import vramcast
from vramcast.cli.main import group
from vramcast.domain.planning import PlanAnswer


def run(command: str) -> dict[str, Any]:
    program, *arguments = shlex.split(command)
    assert program == "vramcast"
    result = CliRunner().invoke(group, [*arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.mark.parametrize(("model", "options"), [
    ("qwen3-8b", {"on": "2x4xh100-sxm-80gb", "engine": "megatron", "pp": "2", "cp": "2"}),
    ("qwen3-8b", {"on": "2xa100-sxm4-40gb", "engine": "deepspeed", "allow": "offload", "precision": "mixed-fp16"}),
    ("qwen3-8b", {"on": "lambda:gpu_1x_b200_sxm6", "engine": "megatron", "price": "2usd", "tokens": "1B"}),
    (None, {"params": "3B", "layers": 32, "hidden": 2560, "on": "2xa100-sxm4-80gb", "engine": "torchtitan",
            "compile": True, "goal": "least-memory"}),
])
def test_a_training_command_reproduces_its_plan(model: str | None, options: dict[str, Any]) -> None:
    found = vramcast.plan("train", model, seq_len=2048, global_batch=64, top=1, **options)
    assert isinstance(found, PlanAnswer) and found.plans
    again, best = run(found.command), found.plans[0]
    assert best.time is not None
    assert again["peak"]["device_bytes"] == best.peak.device_bytes
    assert again["time"]["step_s"] == pytest.approx(best.time.step_s, rel=1e-9)
