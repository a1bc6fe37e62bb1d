"""What a load needs is what an engine takes without the part of the pool that the load does not fill."""

from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import LoadMemory, ServeAnswer


def served(**options: Any) -> ServeAnswer:
    return vramcast.serve("llama-3.1-8b", **({"gpus": "h100", "context": 4096, "engine": "vllm@0.19"} | options))


def load(**options: Any) -> LoadMemory:
    found = served(**options).load
    assert found is not None
    return found


@pytest.mark.parametrize("engine", ["vllm@0.33", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_more_users_need_more_and_two_cards_more_in_all(engine: str) -> None:
    one, many = (load(engine=engine, concurrency=users).total_bytes for users in (1, 16))
    assert one < many
    both = load(engine=engine, concurrency=16, gpus="2xh100")
    assert both.total_bytes > many > both.per_gpu_bytes
