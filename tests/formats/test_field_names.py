"""Options and values in the names of other tools mean what those tools mean by them."""

from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import vramcast
from vramcast.cli.main import group
from vramcast.cli.question_command import split_names
from vramcast.errors import InvalidSpec, UnknownName, Unsupported

TRAIN: dict[str, Any] = {"model": "llama-3.2-1b", "gpus": "rtx-4090", "seq_len": 512}
SERVE: dict[str, Any] = {"model": "llama-3.1-8b", "gpus": "2xl40s"}


@pytest.mark.parametrize(("theirs", "ours"), [
    ({"peft": "qlora"}, {"peft": "lora", "base_weights": "nf4"}),
    *[({name: 512}, {}) for name in ("max_seq_length", "max_seq_len", "model_max_length", "block_size")],
    ({"optimizer": "adamw_torch_fused"}, {"optimizer": "adamw", "optimizer_kernel": "fused"}),
    ({"optimizer": "adamw_bnb_8bit"}, {"optimizer": "adamw-8bit"}),
    ({"precision": "bfloat16"}, {"precision": "bf16"}),
    ({"precision": "bf16-mixed"}, {"precision": "amp-bf16"}),
    ({"per_device_train_batch_size": 2}, {"engine": "huggingface", "micro_batch": 2}),
    ({"per_device_train_batch_size": 8}, {"engine": "huggingface", "micro_batch": 8}),  # as Transformers has it unasked
    ({"bf16": True, "gradient_checkpointing": True, "engine": "huggingface"},
     {"precision": "amp-bf16", "recompute": "full", "engine": "huggingface"}),
    ({"optim": "adamw_bnb_8bit", "learning_rate": 1e-4}, {"engine": "huggingface", "optimizer": "adamw-8bit"}),
    ({"tensor_model_parallel_size": 2, "gpus": "2xh100-sxm-80gb"},
     {"engine": "megatron", "tp": 2, "gpus": "2xh100-sxm-80gb"}),
])
def test_training_in_other_words_is_the_same_job(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    said, plain = (vramcast.train(**TRAIN | options) for options in (theirs, ours))
    assert (said.question, said.ranks) == (plain.question, plain.ranks)
    assert set(plain.assumptions) < set(said.assumptions)  # how it was read is said


@pytest.mark.parametrize(("word", "stored"), [("AWQ", "awq-int4"), ("gptq", "gptq-int4"), ("bnb-4bit", "nf4")])
def test_formats_of_weights_are_called_as_in_the_field(word: str, stored: str) -> None:
    said, plain = (vramcast.serve(**SERVE, weights=name) for name in (word, stored))
    assert (said.question, said.ranks) == (plain.question, plain.ranks)


def test_a_rank_of_adapters_is_no_training_of_all_weights() -> None:
    """TRL passes over lora_r where use_peft is not said."""
    with pytest.raises(InvalidSpec, match="--lora-r needs --peft"):
        vramcast.train(**TRAIN, lora_r=16)


def test_two_words_for_one_thing_must_agree() -> None:
    assert vramcast.train(**TRAIN, micro_batch=2, per_device_train_batch_size=2, engine="huggingface")
    with pytest.raises(InvalidSpec, match="--per-device-train-batch-size says --micro-batch 2, and --micro-batch 4"):
        vramcast.train(**TRAIN, micro_batch=4, per_device_train_batch_size=2)


def test_what_may_change_the_answer_and_is_not_modelled_is_refused() -> None:
    with pytest.raises(Unsupported, match="--auto-find-batch-size: leaves the batch to the run"):
        vramcast.train(**TRAIN, auto_find_batch_size=True)
    with pytest.raises(UnknownName, match="unknown option 'no-such-thing'"):
        vramcast.train(**TRAIN, no_such_thing=1)
    for ask, asked in ((vramcast.train, TRAIN), (vramcast.serve, SERVE)):
        with pytest.raises(InvalidSpec, match="--batch-size is another thing to every tool; write --micro-batch"):
            ask(**asked, batch_size=8)


def test_what_takes_no_memory_decides_no_engine() -> None:
    plain = vramcast.train(**TRAIN)
    assert vramcast.train(**TRAIN, lr=1e-4).question == plain.question  # Megatron's name
    mixed = vramcast.train(**TRAIN, lr=1e-4, per_device_train_batch_size=2)
    assert mixed.question == vramcast.train(**TRAIN, per_device_train_batch_size=2).question
    assert vramcast.serve(**SERVE, temp=0.3).question == vramcast.serve(**SERVE).question  # llama.cpp's


@pytest.mark.parametrize(("line", "words"), [
    ("train llama-3.2-1b --gpus rtx-4090 --per_device_train_batch_size 2 --seq_len 512", "--micro-batch 2"),
    ("train --gradient-checkpointing llama-3.2-1b --gpus rtx-4090 --bf16 true", "--recompute full"),
    ("serve llama-3.1-8b --gpus 2xl40s -tp 2 --max-model-len=8192", "--context 8192"),
    ("plan serve llama-3.1-8b --on l40s --max-model-len 8192", "--context 8192"),
])
def test_a_command_takes_them_as_well(line: str, words: str) -> None:
    found = CliRunner().invoke(group, line.split(), standalone_mode=False)
    assert found.exception is None
    assert words in found.output


@pytest.mark.parametrize(("name", "instead"), [
    ("--lora", "--peft lora"), ("--ddp", "--shards nothing"), ("--num-gpus", "--gpus 8xh100"),
])
def test_a_name_of_several_things_is_answered_with_what_to_write(name: str, instead: str) -> None:
    found = CliRunner().invoke(group, ["train", "llama-3.2-1b", "--gpus", "rtx-4090", name, "2"])
    assert found.exit_code == 2 and instead in found.output


@given(st.lists(st.sampled_from([
    "llama", "--gpus", "t4", "--tp", "-tp", "2", "--bf16", "true", "--no-such", "--", "-1", "--x=", "-",
    "--lora-rank=3",
])))
def test_no_word_of_a_command_line_is_lost(words: list[str]) -> None:
    kept, theirs = split_names(words, {"--gpus", "--tp", "--lora-rank"}, "train")
    taken = sum(1 + (value is not True) for value in theirs.values())
    assert len(kept) + taken >= len(words) - words.count("--bf16") * 2


@pytest.mark.parametrize(("said", "model", "weights"), [
    ("qwen3 32b q4_k_m", "qwen3-32b", "q4_k_m"), ("Qwen3-14B-Q8_0", "qwen3-14b", "q8_0"),
    ("llama 3.1 8b IQ4_XS", "llama-3.1-8b", "iq4_xs"),
])
def test_a_name_with_a_type_of_files_is_model_and_weights(said: str, model: str, weights: str) -> None:
    assert vramcast.serve(said, gpus="h100") == vramcast.serve(model, gpus="h100", weights=weights)


@pytest.mark.parametrize("said", ["deepseek-r1 q4", "qwen3-8b 4bit", "qwen3-8b-int4"])
def test_bits_alone_do_not_say_how_weights_are_stored(said: str) -> None:
    with pytest.raises(InvalidSpec, match=r"leaves open how its weights are stored; write [\w-]+ with --weights"):
        vramcast.serve(said, gpus="h100")
