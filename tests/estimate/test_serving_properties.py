"""What must hold for every serving plan, whatever the engine."""

from __future__ import annotations

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


def weights(answer: ServeAnswer) -> int:
    return sum(entry.num_bytes for entry in answer.fullest.ledger if entry.category == "weights")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["llama-3.2-1b", "gemma-3-4b", "deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b"])
def test_every_ledger_adds_up_to_the_device_peak(engine: str, model: str) -> None:
    answer = ask(engine, model)
    for rank in answer.ranks:
        assert sum(entry.num_bytes for entry in rank.ledger) == rank.peak.device_bytes
        assert rank.peak.allocated_bytes <= rank.peak.reserved_bytes <= rank.peak.device_bytes
    low, high = answer.interval_bytes
    assert low <= answer.peak.device_bytes <= high


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
def test_the_longest_context_fits_and_one_more_block_does_not(engine: str) -> None:
    sequences = 64
    longest = capacity(ask(engine, "llama-3.1-8b", gpus="l40s", concurrency=sequences)).longest_context
    assert 0 < longest < 131072
    assert ask(engine, "llama-3.1-8b", gpus="l40s", concurrency=sequences, context=longest).fits
    assert not ask(engine, "llama-3.1-8b", gpus="l40s", concurrency=sequences, context=longest + 256).fits


@pytest.mark.parametrize("engine", ENGINES)
def test_quantised_weights_are_smaller_and_leave_more_cache(engine: str) -> None:
    whole, eight, four = (ask(engine, "llama-3.1-8b", weights=name) for name in ("bf16", "fp8", "int4"))
    assert weights(whole) > weights(eight) > weights(four)
    assert capacity(whole).kv_bytes < capacity(eight).kv_bytes < capacity(four).kv_bytes


@pytest.mark.parametrize("engine", ENGINES)
def test_an_fp8_cache_holds_twice_the_tokens_and_fp8_weights_do_not_imply_it(engine: str) -> None:
    base, quantised = ask(engine, "qwen3-8b"), ask(engine, "qwen3-8b", weights="fp8")
    cached = ask(engine, "qwen3-8b", kv_dtype="fp8")
    assert capacity(cached).kv_tokens == pytest.approx(2 * capacity(base).kv_tokens, rel=0.01)
    assert capacity(quantised).sequence_bytes == capacity(base).sequence_bytes


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_latent_caches_are_copied_to_every_tensor_parallel_rank(engine: str, tp: int) -> None:
    alone, split = (ask(engine, "deepseek-v2-lite", gpus=f"{n}xh100", tp=n) for n in (1, tp))
    assert capacity(split).sequence_bytes == capacity(alone).sequence_bytes


@pytest.mark.parametrize("engine", ENGINES)
def test_key_value_heads_are_copied_when_there_are_more_ranks_than_heads(engine: str) -> None:
    halved, copied = (ask(engine, "qwen2.5-1.5b", gpus=f"{n}xh100", tp=n) for n in (2, 4))  # two key/value heads
    assert capacity(copied).sequence_bytes == capacity(halved).sequence_bytes
