"""What must hold for every serving plan, whatever the engine."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.domain.answer import Capacity, ServeAnswer

ENGINES = ["vllm", "sglang", "tensorrt-llm"]
"""Engines that give what a fraction of the card leaves to a cache."""

FEW = settings(max_examples=15, deadline=None)


def ask(engine: str, model: str = "llama-3.2-1b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": "h100", "engine": engine, "context": 4096} | options))


def capacity(answer: ServeAnswer) -> Capacity:
    assert answer.capacity is not None
    return answer.capacity


@pytest.mark.parametrize("engine", ENGINES)
@given(context=st.integers(1, 64), sequences=st.integers(1, 64))
@FEW
def test_longer_or_more_sequences_never_leave_more_room(engine: str, context: int, sequences: int) -> None:
    here = capacity(ask(engine, context=256 * context, concurrency=sequences))
    longer = capacity(ask(engine, context=256 * (context + 1), concurrency=sequences))
    more = capacity(ask(engine, context=256 * context, concurrency=sequences + 1))
    assert longer.concurrency <= here.concurrency
    assert more.longest_context <= here.longest_context


@pytest.mark.parametrize("engine", ENGINES)
def test_an_fp8_cache_holds_twice_the_tokens_and_fp8_weights_do_not_imply_it(engine: str) -> None:
    base, quantised = ask(engine, "qwen3-8b"), ask(engine, "qwen3-8b", weights="fp8")
    cached = ask(engine, "qwen3-8b", kv_dtype="fp8")
    assert capacity(cached).kv_tokens == pytest.approx(2 * capacity(base).kv_tokens, rel=0.01)
    assert capacity(quantised).sequence_bytes == capacity(base).sequence_bytes
