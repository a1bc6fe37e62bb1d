"""Questions about post-training, searches, calibration and tracing."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.api import tracing
from vramcast.api.answers import post_training_job_of
from vramcast.domain.calibration import Calibration, Correction, Plan
from vramcast.domain.post_training import Episodes, PostTrainingJob
from vramcast.engines.post_training.batches import part_of
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.estimate.post_training import answer
from vramcast.question.files import read_calibration, write_calibration
from vramcast.question.planning import PlanQuestion, build_planning
from vramcast.question.tables import PLAN_OPTIONS
from vramcast.question.tracing import (
    DEFAULT_GPU,
    build_script,
    build_trace,
    is_command,
    notebook_code,
    parse_arguments,
    parse_input,
)
from vramcast.sources.resolve import resolve_checkpoint

# Questions about post-training, calibration and tracing.

# Post-training: how batches are cut for a rank, what is refused and how, and what is asked of which release.

BASE = {"model": "qwen2.5-0.5b", "gpus": "8xh100-sxm-80gb", "prompt-len": 300, "response-len": 700}


def job(**options: Any) -> PostTrainingJob:
    return post_training_job_of(BASE | {name.replace("_", "-"): value for name, value in options.items()})


@pytest.mark.parametrize(("options", "sentence"), [
    ({"gpus": "7xh100-sxm-80gb"}, "must be multiples of 7 data-parallel ranks"),
    ({"mini_batch": 2048}, "mini-batch no larger than the step"),
    ({"ulysses": 3}, "ulysses=3 does not divide 8 data-parallel ranks; use a divisor of 8"),
    ({"micro_tokens": 512}, "fewer than the 1000 tokens of the longest sequence; use at least 1000"),
    ({"micro_tokens": 512, "ulysses": 2, "response_len": 1000}, "use at least 650"),
    ({"rollout_tp": 3}, "rollout-tp=3 does not divide 8 GPUs"),
    ({"rollout_gpus": 8}, "rollout-gpus=8 leaves none of 8 GPUs"),
    ({"gpus": "2x8xh100-sxm-80gb", "rollout_gpus": 5}, "cards of one's own leave 11 of 16 GPUs"),
    ({"context": 512}, "context=512 is shorter than the 1000 tokens"),
    ({"mean_response_len": 800}, "mean-response-len=800 is longer than response-len=700"),
    ({"mean_prompt_len": 301}, "mean-prompt-len=301 is longer than prompt-len=300"),
    ({"framework": "verrl"}, "unknown framework 'verrl'; did you mean verl"), ({"framework": "verl@0.1"}, "verl 0.1"),
    ({"algorithm": "dpo"}, "dpo"), ({"rollout": "llama.cpp"}, "--rollout llama.cpp"),
    ({"model": "qwen2.5-vl-7b", "framework": "nemo-rl"}, "--images 0 answers for prompts of text"),
    ({"image_size": 800}, "reads no images"),
    ({"model": "qwen2.5-vl-7b", "images": 2, "image_size": 1024}, "prompt-len=300 is less than the 2,664 tokens"),
    ({"no_such_thing": 1}, "unknown option 'no-such-thing'"),
    ({"peft": "dora"}, "trains LoRA and no other adapters"),
    ({"lora_rank": 8}, "--lora-rank needs --peft, for example --peft lora"),
    ({"precision": "fp32"}, "--precision fp32 is none of them"), ({"offload_optimizer": "nvme"}, "use cpu"),
    ({"recompute": "selective"}, "use --recompute full or none"), ({"tp": 2}, "--tp splits the trainer under Megatron"),
    ({"engine": "megatron", "peft": "lora"}, "adapters under Megatron"),
    ({"memory_fraction": 1.5}, "memory-fraction=1.5 must lie above 0"), ({"memory_fraction": "nan"}, "memory-fraction"),
    ({"ahead": True}, "--ahead needs --rollout-gpus"),
    ({"model": "bert-base"}, "generates no tokens; use a language model"),
    ({"micro_batch": 4, "micro_tokens": 16384}, "--micro-batch and --micro-tokens say the same"),
    ({"critic_micro_batch": 4}, "--critic-micro-batch needs --algorithm ppo"),
    ({"layered_summon": True}, "--layered-summon needs --peft lora"),
    ({"fused_loss": True, "entropy_kernel": "eager"}, "--entropy-kernel needs logits, which --fused-loss never makes"),
    ({"engine": "huggingface"}, "verl's trainer does not run with --engine huggingface"),
    ({"framework": "trl", "engine": "pytorch"}, "trl's trainer does not run with --engine pytorch"),
    ({"framework": "trl", "ulysses": 2}, "--ulysses is not asked of TRL's trainers"),
    ({"framework": "trl", "padded": False}, "--padded is not asked of TRL's trainers"),
    ({"framework": "trl", "fused_loss": True}, "--fused-loss is not asked of TRL's trainers"),
    ({"framework": "ms-swift", "engine": "megatron", "micro_tokens": 9216}, "is not asked of ms-swift's trainers"),
    ({"framework": "trl", "rollout": "sglang"}, "TRL's trainers generate with vLLM"),
    ({"framework": "ms-swift", "rollout": "sglang"}, "ms-swift's trainers generate with vLLM"),
    ({"framework": "ms-swift", "engine": "megatron", "rollout": "sglang"}, "ms-swift's trainers generate with vLLM"),
    ({"framework": "ms-swift", "engine": "megatron", "algorithm": "ppo"}, "ppo is not modelled with ms-swift"),
    ({"framework": "openrlhf", "peft": "lora"}, "--peft is not modelled with OpenRLHF"),
    ({"framework": "openrlhf", "trainer_option": ("overlap=1",)}, "unknown trainer option 'overlap'"),
    ({"framework": "openrlhf@0.8", "trainer_sleep": True}, "moves the states of stage 3 alone; add --zero 3"),
    ({"framework": "openrlhf", "own_gpus": ("reference=2",)}, "--own-gpus needs --rollout-gpus"),
    ({"framework": "openrlhf", "own_gpus": ("critic=2",), "rollout_gpus": 2}, "there is no critic"),
    ({"own_gpus": ("reference=2",), "reference": True}, "--own-gpus is not modelled with verl"),
    ({"trainer_sleep": True}, "--trainer-sleep is asked of OpenRLHF's trainers alone"),
    ({"engine": "megatron", "reward_model": "qwen2.5-1.5b", "framework": "verl@0.7"},
     "a reward network beside --engine megatron"),
    ({"reward_model": "qwen2.5-1.5b", "rollout_gpus": 4}, "the engine of a reward network beside cards"),
    ({"reward_model": "qwen2.5-1.5b", "reward_micro_batch": 4}, "--reward-micro-batch says nothing of how"),
    ({"reward_model": "qwen2.5-1.5b", "reward_fraction": 2}, "reward-fraction=2.0 must lie above 0"),
    ({"trainer_option": ("steps_on_host=true",)}, "steps_on_host is FSDP2's CPUOffloadPolicy"),
    ({"reward_tp": 2}, "--reward-tp needs --reward-model"),
    ({"rollout_gpus": 99}, "rollout-gpus=99 leaves none of 8 GPUs to the trainer"),
    ({"lengths": "900,70", "mean_response_len": 3}, "--lengths and --mean-response-len both say"),
    ({"lengths": "none.txt"}, "none.txt: cannot be read as a list of lengths"),
    ({"lengths": "900,x"}, "lengths"), ({"lengths": "9000,1"}, "is longer than response-len=700"),
    ({"lengths": "600,500"}, "answers of at most 700 tokens and 600 in the mean deviate by at most 244, not by 500"),
    ({"gpus": None}, "which GPUs?"), ({"prompts": 0}, "prompts"), ({"samples": -1}, "samples"),
], ids=str)
def test_what_no_run_can_be_is_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VramcastError) as caught:
        answer(job(**options))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_the_longest_micro_batch_of_a_run_lies_between_the_mean_and_the_limit() -> None:
    episodes = Episodes(samples=8, prompt_len=512, response_len=4096, mean_prompt_len=100, mean_response_len=1000)
    sizes = [episodes.most_tokens(count) / count for count in (1, 4, 16, 64, 4096)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= episodes.longest and sizes[-1] == pytest.approx(episodes.usual, rel=0.1)


def test_micro_batches_of_balanced_ranks_deviate_less() -> None:
    """Each rank of 8 has 40 of 320 sequences: answers to a prompt lie apart, and all 40 are the rank's whole step."""
    episodes = Episodes(prompts=64, samples=5, prompt_len=512, response_len=4096, mean_prompt_len=100,
                        mean_response_len=300)
    apart, together = ([episodes.most_tokens(count, balanced=ranks) for count in (8, 40)] for ranks in (8, 0))
    assert apart[0] < together[0] and apart[1] < together[1]
    assert apart[1] == pytest.approx(40 * 400, rel=0.15)


def test_lengths_of_a_log_are_their_mean_and_deviation(tmp_path: Path) -> None:
    """Ten answers of 100 and ten of 500: 300 +- 200; a limit cuts those that are longer."""
    plain, table = tmp_path / "lengths.txt", tmp_path / "log.jsonl"
    plain.write_text("100\n500\n" * 10)
    table.write_text('{"output": 100}\n{"output": 500}\n' * 10)
    for path in (plain, table):
        episodes = job(lengths=str(path), response_len=None).episodes
        assert (episodes.mean_response_len, episodes.response_deviation, episodes.response_len) == (300, 200.0, 500)
        assert job(lengths=str(path), response_len=300).episodes.mean_response_len == 200
    even, wide = (job(lengths=f"300,{spread}").episodes.most_tokens(4) for spread in (0, 150))
    assert even < wide == job(mean_response_len=300).episodes.most_tokens(4)


@pytest.mark.parametrize("options, tokens", [
    ({}, 16384), ({"response_len": 28672}, 28972), ({"response_len": 28672, "ulysses": 2}, 16384),
    ({"response_len": 65236, "ulysses": 2}, 32768),
])
def test_a_micro_batch_that_nobody_sizes_holds_the_longest_sequence(options: dict[str, Any], tokens: int) -> None:
    found = answer(job(**options), with_changes=False)
    assert any(text.startswith(f"dynamic micro-batches of {tokens:,} tokens") for text in found.assumptions)


@pytest.mark.parametrize("framework", ["slime", "ms-swift", "openrlhf"])
def test_a_framework_with_a_default_takes_it(framework: str) -> None:
    engine = {"engine": "megatron"} if framework == "ms-swift" else {}
    asked = job(framework=framework, **engine)
    assert asked.updates.micro_batch == 1
    assert not any("dynamic micro-batches" in said for said in answer(asked, with_changes=False).assumptions)


def test_prompts_without_room_for_an_image_are_of_text() -> None:
    asked = {"model": "qwen3-vl-8b", "gpus": "8xh100-sxm-80gb"}
    assert (job(**asked).episodes.images, job(**asked, prompt_len=576).episodes.images) == (0, None)
    assert any("prompts of text" in text for text in job(**asked).assumed)


def test_cards_of_ones_own_are_whole_machines_or_as_many_of_each() -> None:
    """One step off runs with 6 cards of each of two machines, and 2 for the engine."""
    cluster = job(gpus="2x8xh100-sxm-80gb").cluster
    assert [(part.num_nodes, part.gpus_per_node) for part in (part_of(cluster, gpus) for gpus in (12, 8, 4))] == [
        (2, 6), (1, 8), (1, 4)]


# What can be asked of a trace, and the sentences for what cannot.

@given(st.text(max_size=40))
def test_any_text_is_an_input_or_one_sentence(text: str) -> None:
    try:
        assert all(isinstance(dim, (int, str)) for dim in parse_input(text).dims)
    except VramcastError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["", "x", "3x", "0x4", "4x-1", "4x5:notatype", "a b=3", "9" * 30])
def test_wrong_inputs_are_refused(text: str) -> None:
    with pytest.raises((InvalidSpec, UnknownName)):
        parse_input(text)


def test_arguments_of_factories_are_literals_where_they_read_as_such() -> None:
    assert parse_arguments(["a=1", "b=[1, 2]", "c=None", "d=text", "e=a=b"]) == {
        "a": 1, "b": [1, 2], "c": None, "d": "text", "e": "a=b",
    }
    with pytest.raises(InvalidSpec, match="name=value"):
        parse_arguments(["12"])


def test_the_cpu_is_not_simulated() -> None:
    with pytest.raises(Unsupported, match="traces are of cards"):
        build_trace("m:f", {"device": "cpu"})
    assert build_trace("m:f", {"device": "cuda"}).gpu.name == DEFAULT_GPU


@pytest.mark.parametrize(("options", "words"), [
    ({"nosuch": 1}, "unknown option"),
    ({"sandbox": True}, "scripts"),
    ({"eval": True, "optimizer": "adam"}, "--optimizer"),
    ({"world-size": 4, "rank": 4}, "0 to 3"),
    ({"parallel": "fsdp"}, "--world-size"),
    ({"input": ("BxS",)}, "--batch"),
    ({"input": ("x=3", "x=4")}, "twice"),
    ({"steps": 1000}, "at most 100"),
    ({"batch": 0}, "whole number"),
    ({"amp": "fp8"}, "bf16, fp16"),
    ({"capacity": "much"}, "24GiB"),
])
def test_contradictions_get_a_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(VramcastError, match=words):
        build_trace("m:f", options)


def test_scripts_take_their_own_options(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("pass")
    job = build_script(str(path), {"value": ("train.py:3=0.5",), "sandbox": True}, arguments=["--lr", "1"])
    assert job.values == {"train.py:3": "0.5"} and job.is_sandboxed and job.arguments == ("--lr", "1")
    for options, words in (
        ({"amp": "bf16"}, "itself"), ({"value": ("3=4",)}, "FILE:LINE"), ({"time-limit": 10**6}, "a day"),
    ):
        with pytest.raises(InvalidSpec, match=words):
            build_script(str(path), options)
    with pytest.raises(SourceError, match="no such script"):
        build_script(str(tmp_path / "other.py"), {})


@pytest.mark.parametrize(("target", "arguments", "path", "rest", "is_module"), [
    ("python", ("-u", "-m", "pkg.train", "--lr", "1"), "pkg.train", ("--lr", "1"), True),
    ("python3.11", ("run.py", "--lr", "1"), "run.py", ("--lr", "1"), False),
    ("run.py", ("-m",), "run.py", ("-m",), False),
])
def test_a_command_of_python_is_its_script(tmp_path, monkeypatch, target, arguments, path, rest, is_module):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").touch()
    job = build_script(target, {}, arguments=arguments)
    assert (job.path, job.arguments, job.is_module, job.is_command) == (path, rest, is_module, False)


def test_a_notebook_is_its_cells_of_python(tmp_path):
    cells = [["%matplotlib inline\n", "import torch"], ["%%bash\n", "ls"], ["if True:\n", "    !pip install x\n"]]
    cells.append(["from __future__ import annotations\n", "print(1)"])  # any cell may have it
    given = [{"cell_type": "code", "source": cell} for cell in cells]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [*given, {"cell_type": "markdown", "source": ["x"]}]}))
    job = build_script(str(tmp_path / "a.ipynb"), {})
    assert job.text == "from __future__ import annotations\npass\nimport torch\nif True:\n    pass\n\nprint(1)\n"
    with pytest.raises(SourceError, match="no notebook"):
        notebook_code("{}", "a.ipynb")


@pytest.mark.parametrize(("words", "path", "behind", "ranks"), [
    (("deepspeed", "--num_gpus", "4", "t.py", "-b", "2"), "t.py", ("--local_rank=0", "-b", "2"), 4),
    (("deepspeed", "t.py"), "t.py", ("--local_rank=0",), 1),
])
def test_a_launcher_of_which_only_the_words_are_read(monkeypatch, words, path, behind, ranks):
    asked = []
    monkeypatch.setattr(tracing, "_traced_by", lambda *given: asked.append(given[-1]))
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    tracing.traced_target(words[0], {"gpu": "t4", "data": ("seq=2k", "rows=64")}, arguments=words[1:])
    job, = asked
    assert (job.path, job.arguments, job.world_size) == (path, behind, ranks)
    assert job.data == {"seq": 2048, "rows": 64}


@pytest.mark.parametrize("name", ["torchrun", "accelerate"])
def test_a_launcher_is_known_where_no_environment_is_activated(monkeypatch, name):
    monkeypatch.setenv("PATH", "")
    job = build_script(name, {"gpu": "t4"}, arguments=["x.py"])
    assert is_command(name) and job.is_command and job.is_module


def test_data_has_sizes_alone():
    with pytest.raises(InvalidSpec, match="must be seq=COUNT, rows=COUNT, image=COUNT"):
        build_script("-m", {"data": ("len=3",)}, is_module=True)


def test_python_without_a_script_is_refused():
    with pytest.raises(InvalidSpec, match="python of -c print"):
        build_script("python", {}, arguments=("-c", "print()"))


# Calibration files: written, read back, and refused where they make no sense.

SAVED = Calibration(
    engine="vllm", oldest=(0, 19), newest=(0, 20, 1), gpu="h100-sxm-80gb",
    plan=Plan(model="a \"b\"\\c", weights="fp8", tp=2),
    corrections={"kv cache": Correction(measured_bytes=3, predicted_bytes=2, apportioned=True)}, log="x\n.log",
    date="2026-11-20",
)

GOOD = """
engine = "vllm"
oldest = "0.19"
newest = "0.19"
gpu = "h100-sxm-80gb"
[plan]
model = "llama-3.1-8b"
[corrections.weights]
measured_bytes = 2
predicted_bytes = 1
"""


def test_a_saved_calibration_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_calibration(path, SAVED)
    assert read_calibration(path) == replace(SAVED, source="run.toml")


@pytest.mark.parametrize(("text", "words"), [
    ("engine = ", "not TOML"),
    ("", "no calibration: .*engine"),
    (GOOD + "extra = 1\n", "no calibration: .*extra"),
    ("speed = 3\n" + GOOD, "no calibration: .*speed"),
    (GOOD.replace("measured_bytes = 2", "measured_bytes = -2"), "must measure 0 or more"),
    (GOOD.replace("predicted_bytes = 1", "predicted_bytes = 0"), "predicted at least 1"),
    (GOOD.replace("predicted_bytes = 1", "predicted_bytes = 1.5"), "no calibration"),
    (GOOD.replace("corrections.weights", "corrections.wieghts"), "did you mean weights"),
    (GOOD.replace('oldest = "0.19"', 'oldest = "new"'), "must be written like 0.19"),
    (GOOD.replace('newest = "0.19"', 'newest = "0.11"'), "oldest=0.19 is newer"),
])
def test_a_bad_calibration_gets_one_sentence_that_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=rf"run\.toml: .*{words}") as caught:
        read_calibration(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\0x", b"x" * 100_000])
def test_a_file_that_is_no_calibration_at_all_gets_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"run\.toml"):
        read_calibration(path)
    with pytest.raises(SourceError, match=r"none\.toml"):
        read_calibration(tmp_path / "none.toml")


# From options to a space: what is named is fixed, what is forbidden is gone, and contradictions are one sentence.

def ask(**options: Any) -> PlanQuestion:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return build_planning({"model": "llama-3.2-1b", "on": ("8xh100-sxm-80gb",)} | named, resolve=resolve_checkpoint)


def test_the_batch_assumed_has_a_sample_for_every_card() -> None:
    assert ask(on=("64x8xh100-sxm-80gb",)).space.global_batch == 512


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"on": ()}, InvalidSpec, "--on"),
    ({"on": ("8xh1000",)}, UnknownName, "h100"),
    ({"on": ("aws:p5.48xlarge",), "max_gpus": 4}, InvalidSpec, "leaves none"),
    ({"goal": "best"}, InvalidSpec, "fastest"),
    ({"budget": "100usd"}, InvalidSpec, "--tokens"),
    ({"budget": "100", "tokens": "1T"}, InvalidSpec, "currency"),
    ({"deadline": "soon", "tokens": "1T"}, InvalidSpec, "30d"),
    ({"headroom": "150%"}, InvalidSpec, "below 100%"),
    ({"tp": "two"}, InvalidSpec, "whole number"),
    ({"tp": ","}, InvalidSpec, "names nothing"),
    ({"zero": "1", "shards": "nothing"}, InvalidSpec, "give one"),
    ({"allow": "magic"}, UnknownName, "technique"),
    ({"allow": "fp8", "forbid": "fp8"}, InvalidSpec, "contradict"),
    ({"forbid": "pipeline", "pp": "4"}, InvalidSpec, "leaves nothing of 4"),
    ({"forbid": "recompute", "recompute": "full"}, InvalidSpec, "leaves nothing of full"),
    ({"engine": "horovod"}, UnknownName, "engine"),
    ({"lora_rank": "8"}, InvalidSpec, "--peft"),
    ({"grad_accum": 4}, UnknownName, "grad-accum"),
    ({"top": 0}, InvalidSpec, "top=0"),
    ({"global_batch": -1}, InvalidSpec, "global-batch"),
])
def test_an_impossible_space_is_refused_by_name(
    options: dict[str, Any], error: type[VramcastError], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        ask(**options)
    assert "\n" not in str(raised.value)


@given(
    options=st.dictionaries(
        st.sampled_from(sorted(PLAN_OPTIONS)),
        st.text(max_size=12) | st.integers(-2, 2**70) | st.booleans() | st.lists(st.text(max_size=5), max_size=3),
        max_size=4,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_options_are_understood_or_refused_in_one_sentence(options: dict[str, Any]) -> None:
    if isinstance(options.get("prices"), str) or isinstance(options.get("hardware"), str):
        return  # files of the user
    try:
        build_planning({"model": "llama-3.2-1b", "on": ("h100-sxm-80gb",)} | options, resolve=resolve_checkpoint)
    except VramcastError as error:
        assert "\n" not in str(error)
