"""TensorRT-LLM: what its fraction is a fraction of, held to measured capacities."""

from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import Capacity, ServeAnswer


def ask(model: str = "llama-3.1-8b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": "h100", "engine": "tensorrt-llm", "context": 8192} | options))


def capacity(answer: ServeAnswer) -> Capacity:
    assert answer.capacity is not None
    return answer.capacity


def test_a_built_engine_leaves_what_its_log_prints() -> None:
    # Llama-2-7B, SmoothQuant, 0.8 on A100 80GB, one sequence, max_num_tokens 4096: 69,524,783,104 bytes of cache
    found = ask(
        "llama-2-7b", gpus="a100-80gb", engine="tensorrt-llm@0.8", weights="int8", dtype="fp16", max_sequences=1,
        batched_tokens=4096, context=5120,
    )
    assert capacity(found).kv_bytes == pytest.approx(69_524_783_104, rel=0.01)
