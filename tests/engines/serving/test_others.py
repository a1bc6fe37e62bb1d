"""SGLang and TensorRT-LLM: what their fractions are fractions of."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import Capacity, ServeAnswer
from vramcast.units import GIB


def ask(engine: str, model: str = "llama-3.1-8b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": "h100", "engine": engine, "context": 8192} | options))


def capacity(answer: ServeAnswer) -> Capacity:
    assert answer.capacity is not None
    return answer.capacity


def test_sglangs_fraction_is_of_what_was_free_before_the_load() -> None:
    low, high = (ask("sglang", memory_fraction=fraction) for fraction in (0.5, 0.9))
    more = high.startup["KV cache"] - low.startup["KV cache"]
    assert more / GIB == pytest.approx(0.4 * (79.19 - 0.66), abs=0.1)


def test_sglang_sets_aside_at_least_ten_gib_on_large_cards() -> None:
    assert "0.874" in ask("sglang", batched_tokens=2048).assumptions[0]  # (79.19 - 10) / 79.19


def test_sglangs_older_fractions_follow_the_tensor_parallelism() -> None:
    assert "0.850" in ask("sglang@0.4.3", gpus="4xh100").assumptions[0]
    assert "0.880" in ask("sglang@0.4.3").assumptions[0]


def test_sglangs_windows_have_a_pool_of_four_fifths() -> None:
    counts = capacity(ask("sglang", "mimo-v2-flash", gpus="4xb200")).tokens_by_count
    assert counts["tokens of sliding windows"] == pytest.approx(0.8 * counts["tokens"], rel=1e-4)


def test_an_unused_copy_of_a_drafts_tables_shrinks_sglangs_pool() -> None:
    plain, draft = ask("sglang", "qwen3.5-27b"), ask("sglang", "qwen3.5-27b", draft="eagle")
    assert (plain.startup["KV cache"] - draft.startup["KV cache"]) / GIB > 2 * 248320 * 5120 * 2 / 2**30


def test_tensorrt_llms_fraction_is_of_what_is_left() -> None:
    low, high = (ask("tensorrt-llm", memory_fraction=fraction).startup["KV cache"] for fraction in (0.4, 0.8))
    assert high == pytest.approx(2 * low, rel=1e-6)


def test_tensorrt_llm_holds_as_many_sequences_as_measured() -> None:
    # Llama-3.1-8B on two H100: 2,048 in, 4,096 out, max_seq_len 7,144, fraction 0.8: 124 sequences
    answer = ask("tensorrt-llm", gpus="2xh100", context=7144, memory_fraction=0.8, batched_tokens=4096)
    assert capacity(answer).concurrency == pytest.approx(124, rel=0.02)
