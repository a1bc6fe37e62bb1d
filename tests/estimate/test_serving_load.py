"""What a load needs is what an engine takes without the part of the pool that the load does not fill."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.domain.answer import LoadMemory, ServeAnswer


def served(**options: Any) -> ServeAnswer:
    return vramcast.serve("llama-3.1-8b", **({"gpus": "h100", "context": 4096, "engine": "vllm@0.19"} | options))


def load(**options: Any) -> LoadMemory:
    found = served(**options).load
    assert found is not None
    return found


@given(users=st.integers(1, 60), context=st.integers(64, 8192))
@settings(max_examples=15, deadline=None)
def test_a_load_needs_its_sequences_beside_what_none_would_need(users: int, context: int) -> None:
    answer = served(concurrency=users, context=context)
    assert answer.load is not None and answer.capacity is not None
    unused = answer.capacity.kv_bytes - users * answer.capacity.sequence_bytes
    assert answer.load.total_bytes == answer.load.per_gpu_bytes
    if answer.fits and unused >= 0:
        assert answer.load.total_bytes == answer.fullest.needed_bytes - unused


def test_what_the_engine_may_take_says_nothing_of_the_load() -> None:
    assert abs(load(memory_fraction=0.6).total_bytes - load(memory_fraction=0.9).total_bytes) < 64 << 20
    assert load(gpus="h200").total_bytes < 1.05 * load(gpus="h100").total_bytes
    assert served(gpus="h200").fullest.needed_bytes > 1.5 * served(gpus="h100").fullest.needed_bytes


@pytest.mark.parametrize("engine", ["vllm@0.33", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_more_users_need_more_and_two_cards_more_in_all(engine: str) -> None:
    one, many = (load(engine=engine, concurrency=users).total_bytes for users in (1, 16))
    assert one < many
    both = load(engine=engine, concurrency=16, gpus="2xh100")
    assert both.total_bytes > many > both.per_gpu_bytes


def test_an_engine_without_a_pool_needs_what_it_takes() -> None:
    answer = served(engine="transformers", concurrency=8)
    assert answer.load is not None and answer.load.per_gpu_bytes == answer.fullest.needed_bytes
