"""Scripts that are written for post-training: read back they ask the same question, or they are not written."""

from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.api.answers import post_training_job_of
from vramcast.cli.main import group
from vramcast.engines.post_training import rollout
from vramcast.errors import Unsupported, VramcastError
from vramcast.formats.post_training_write import script_of

CARDS: Final = "8xh100-sxm-80gb"
BASE: Final[dict[str, Any]] = {"model": "qwen2.5-1.5b", "gpus": CARDS}

QUESTIONS: Final[tuple[dict[str, Any], ...]] = (
    {}, {"reference": True, "samples": 5, "micro-batch": 8, "mean-response-len": 300},
    {"peft": "lora", "lora-rank": 32, "framework": "verl@0.5"}, {"rollout-gpus": 4, "ahead": True, "micro-batch": 2},
    {"algorithm": "ppo", "micro-batch": 2, "critic-micro-batch": 4, "sharded-by": "fsdp2", "offload-optimizer": "cpu"},
    {"engine": "megatron", "tp": 2, "pp": 2, "micro-batch": 2, "recompute": "full", "offload-parameters": "cpu"},
    {"engine": "megatron", "tp": 2, "pp": 2, "micro-batch": 2, "recompute": "full", "algorithm": "ppo",
     "offload-optimizer": "cpu"},
    {"reward-model": "qwen2.5-0.5b", "reward-micro-batch": 4, "micro-batch": 2, "framework": "verl@0.7"},
    {"reward-model": "qwen2.5-0.5b", "reward-tp": 1, "reward-fraction": 0.3, "micro-batch": 2, "framework": "verl@0.9"},
    {"sharded-by": "fsdp2", "offload-parameters": "cpu", "offload-optimizer": "cpu", "micro-batch": 2,
     "trainer-option": ("steps_on_host=true",)},
    {"precision": "pure-bf16", "graphs": False, "sleep": False, "padded": True, "framework": "verl@0.5"},
    {"framework": "openrlhf", "micro-batch": 2}, {"framework": "openrlhf", "zero": "3", "trainer-sleep": True},
    {"framework": "openrlhf", "algorithm": "ppo", "reward-model": "qwen2.5-0.5b", "rollout-gpus": 2,
     "own-gpus": ("critic+reward=2",), "offload-optimizer": "cpu", "zero": "3"},
    {"framework": "slime", "tp": 2, "reference": True, "micro-tokens": 9216, "memory-fraction": 0.6},
    {"framework": "slime", "tp": 4, "rollout-gpus": 4, "ahead": True, "micro-batch": 2},
    {"framework": "slime", "tp": 2, "micro-batch": 2, "trainer-option": ("precision_aware=true",)},
)


@pytest.mark.parametrize("options", QUESTIONS, ids=str)
def test_a_script_that_is_read_back_needs_the_same_bytes(options: dict[str, Any], tmp_path: Path) -> None:
    script, _ = script_of(post_training_job_of({**BASE, **options}))
    (tmp_path / script.name).write_text(script.text)
    named = {name.replace("-", "_"): value for name, value in options.items() if name.startswith("mean")}
    asked = vramcast.rl(BASE["model"], gpus=CARDS, **{name.replace("-", "_"): value for name, value in options.items()})
    again = vramcast.rl(None, from_=(str(tmp_path / script.name),), gpus=CARDS, **named)
    assert [rank.phases for rank in again.ranks] == [rank.phases for rank in asked.ranks]
    assert (again.host, again.time) == (asked.host, asked.time)


@settings(max_examples=40, deadline=None)
@given(st.fixed_dictionaries({"framework": st.sampled_from([f"verl@0.{minor}" for minor in (4, 6, 8, 9)])}, optional={
    "prompts": st.sampled_from([256, 1024]), "samples": st.sampled_from([1, 8]), "mini-batch": st.just(128),
    "prompt-len": st.sampled_from([300, 2048]), "response-len": st.sampled_from([512, 8192]),
    "micro-batch": st.sampled_from([1, 8]), "log-prob-micro-batch": st.just(16), "ulysses": st.sampled_from([1, 2]),
    "entropy": st.booleans(), "entropy-kernel": st.sampled_from(["chunked", "eager"]), "reference": st.booleans(),
    "sharded-by": st.sampled_from(["fsdp1", "fsdp2"]), "offload-parameters": st.just("cpu"),
    "recompute": st.sampled_from(["none", "full"]), "rollout-tp": st.sampled_from([1, 4]), "graphs": st.booleans(),
    "rollout": st.sampled_from(["vllm", "sglang"]), "max-sequences": st.just(64), "epochs": st.just(2),
    "offload-reference": st.booleans(), "sleep": st.booleans(), "context": st.just(16384), "shard-group": st.just(4),
}))
def test_whatever_is_written_is_the_question(options: dict[str, Any]) -> None:
    """`script_of` holds what it writes against the question: verl has a word for all of these."""
    try:
        job = post_training_job_of({**BASE, **options})
        rollout.serve_job(job)
    except VramcastError:
        return
    script, _ = script_of(job)
    assert "python3 -m verl.trainer.main_ppo" in script.text


@pytest.mark.parametrize(("options", "sentence"), [
    ({"framework": "trl"}, "no scripts are written for trl"),
    ({"rollout-gpus": 4, "micro-batch": 2}, "only where it works ahead"),
    ({"micro-batch": 2, "engine-option": ("cuda-graphs=3",)}, "--engine-option"),
    ({"framework": "openrlhf@0.9"}, "written in the names of 0.11"),
])
def test_what_no_script_can_say_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Unsupported, match=sentence):
        script_of(post_training_job_of({**BASE, **options}))


def test_the_command_line_writes_the_plan_that_a_search_found(tmp_path: Path) -> None:
    words = ["plan", "rl", "qwen2.5-0.5b", "--gpus", "2xh100-sxm-80gb", "--rollout-tp", "1", "--write", str(tmp_path)]
    result = CliRunner().invoke(group, words)
    assert result.exit_code == 0 and f"written to {tmp_path}: run.sh" in result.output
    assert "gpu_memory_utilization=" in (tmp_path / "run.sh").read_text()
    assert CliRunner().invoke(group, words).exit_code != 0  # it is there already
