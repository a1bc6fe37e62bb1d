"""Prompts and answers go into the longest sequence, or the question is refused in one sentence."""

from typing import Any

import vramcast


def serve(**options: Any) -> Any:
    return vramcast.serve("llama-3.1-8b", **({"gpus": "2xh100"} | options))


def test_a_context_that_a_command_limits_is_no_load_where_prompts_and_answers_are_named() -> None:
    line = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32768"
    whole = vramcast.serve(from_command=line, gpus="2xh100", concurrency=32)
    assert not whole.fits and "of 32 sequences of 32,768 tokens" in whole.shortfall
    asked = vramcast.serve(from_command=line, gpus="2xh100", concurrency=32, input_len=1024, output_len=1024)
    assert asked.fits and asked.capacity == whole.capacity
    assert not vramcast.serve(from_command=line, gpus="2xh100", concurrency=999, input_len=1024, output_len=1024).fits
