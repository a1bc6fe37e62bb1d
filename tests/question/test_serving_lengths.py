"""Prompts and answers go into the longest sequence, or the question is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.errors import InvalidSpec


def serve(**options: Any) -> Any:
    return vramcast.serve("llama-3.1-8b", **({"gpus": "2xh100"} | options))


def test_those_that_just_go_in_are_answered() -> None:
    assert serve(context=2300, input_len=2000, output_len=300).fits
    assert serve(input_len=131_071, output_len=1).speed.prompt_tokens == 131_071


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"),
        ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"),
        ("tensorrt-llm", "cuts max_seq_len"),
    ],
)
def test_a_context_beyond_the_model_is_refused_where_the_engine_refuses_it(engine: str, words: str) -> None:
    asked = {"engine": engine, "context": 200_300, "input_len": 200_000}
    with pytest.raises(InvalidSpec, match=words) as refused:
        serve(**asked)
    assert "131072 positions" in str(refused.value) and "--engine-option allow-long=true" in str(refused.value)
    told = serve(**asked, engine_option="allow-long=true")
    assert "131072 positions" in told.cautions[0]
    assert not serve(engine=engine, context=131_072).cautions


def test_shorter_sequences_that_are_proposed_can_be_asked_for() -> None:
    load = {"concurrency": 40, "input_len": 20_000, "output_len": 500, "context": 20_500, "gpus": "h100"}
    change = next(change for change in serve(**load).changes if change.change.startswith("--context"))
    words = change.change.split()
    shorter = dict(zip((name[2:].replace("-", "_") for name in words[::2]), map(int, words[1::2]), strict=True))
    assert set(shorter) == {"context", "input_len"}
    assert serve(**(load | shorter)).fits is change.fits


def test_the_longest_context_is_found_with_lengths_that_can_be_asked_for() -> None:
    load = {"concurrency": 40, "input_len": 20_000, "output_len": 500, "gpus": "h100"}
    found = serve(find="longest-context", **load).found
    words = found.what.split()
    best = dict(zip((name[2:].replace("-", "_") for name in words[::2]), map(int, words[1::2]), strict=True))
    assert serve(**(load | best)).fits


def test_a_context_that_a_command_limits_is_no_load_where_prompts_and_answers_are_named() -> None:
    line = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32768"
    whole = vramcast.serve(from_command=line, gpus="2xh100", concurrency=32)
    assert not whole.fits and "of 32 sequences of 32,768 tokens" in whole.shortfall
    asked = vramcast.serve(from_command=line, gpus="2xh100", concurrency=32, input_len=1024, output_len=1024)
    assert asked.fits and asked.capacity == whole.capacity
    assert not vramcast.serve(from_command=line, gpus="2xh100", concurrency=999, input_len=1024, output_len=1024).fits


def test_a_mix_of_ggufs_asks_llama_cpp() -> None:
    asked = {"gpus": "rtx-4090", "weights": "q4_k_m", "context": 4096}
    assert vramcast.serve("qwen3-8b", **asked).ranks == vramcast.serve("qwen3-8b", engine="llama.cpp", **asked).ranks
