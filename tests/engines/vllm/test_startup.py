"""vLLM's start-up arithmetic against figures its logs print, and against its rules."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import Capacity, ServeAnswer
from vramcast.errors import InvalidSpec


def ask(model: str, **options: Any) -> ServeAnswer:
    given = {"gpus": "h100", "engine": "vllm@0.19", "context": 8192, "memory_fraction": 0.95} | options
    return vramcast.serve(model, **given)


def capacity(answer: ServeAnswer) -> Capacity:
    assert answer.capacity is not None
    return answer.capacity


@pytest.mark.parametrize(("fraction", "serves"), [(0.90, True), (0.95, False)])
@pytest.mark.parametrize("gpus", ["h100", "2xh100"])
def test_a_high_fraction_leaves_no_room_for_the_sampler_of_a_large_vocabulary(
    gpus: str, fraction: float, serves: bool
) -> None:
    answer = ask("gpt-oss-20b", gpus=gpus, memory_fraction=fraction)
    assert answer.fits is serves
    safe = capacity(answer).safe_fraction
    assert safe is not None
    assert (safe >= fraction) is serves


def test_the_pool_does_not_depend_on_the_context() -> None:
    sizes = {ask("llama-3.1-8b", context=context).startup["KV cache"] for context in (2048, 8192, 32768)}
    assert len(sizes) == 1


def test_windows_save_nothing_while_a_batch_is_as_long_as_the_context() -> None:
    short = capacity(ask("gpt-oss-20b", context=8192))
    long = capacity(ask("gpt-oss-20b", context=131072))
    assert short.sequence_bytes / 8192 > 1.8 * long.sequence_bytes / 131072


def test_both_ways_of_counting_tokens_are_named_and_differ_for_hybrids() -> None:
    dense, hybrid = (capacity(ask(model)).tokens_by_count for model in ("llama-3.1-8b", "gemma-3-27b"))
    assert set(dense) == set(hybrid) == {"blocks per group", "concurrency x context"}
    assert abs(dense["blocks per group"] - dense["concurrency x context"]) < 8192
    assert hybrid["concurrency x context"] == pytest.approx(hybrid["blocks per group"], rel=0.05)
    newer = capacity(ask("gemma-3-27b", engine="vllm@0.24", context=65536)).tokens_by_count
    assert next(iter(newer)) == "concurrency x context"
    assert newer["concurrency x context"] > 2 * newer["blocks per group"]


def test_pipeline_stages_have_as_many_blocks_as_the_smallest() -> None:
    answer = ask("llama-3.1-8b", gpus="2xh100", pp=2, tp=1)
    pools = [entry.num_bytes for rank in answer.ranks for entry in rank.ledger if entry.category == "kv cache"]
    assert len(pools) == 2
    assert max(pools) - min(pools) < 512
    assert capacity(answer).kv_tokens == pytest.approx(1_075_312, rel=0.005)


def test_an_eagle_draft_adds_a_layer_to_the_pool() -> None:
    plain, draft = ask("llama-3.1-8b"), ask("llama-3.1-8b", draft="eagle")
    assert capacity(draft).sequence_bytes * 32 == capacity(plain).sequence_bytes * 33


def test_experts_whole_or_divided_weigh_the_same_in_all() -> None:
    divided = ask("qwen3-30b-a3b", gpus="4xh100")
    whole = ask("qwen3-30b-a3b", gpus="4xh100", expert_parallel=True)
    assert whole.startup["weights"] == pytest.approx(divided.startup["weights"], rel=0.01)


def test_a_draft_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="multi-token-prediction"):
        ask("llama-3.1-8b", draft="mtp")


def test_embedding_models_keep_no_cache() -> None:
    assert ask("bge-large-en-v1.5", context=512).capacity is None
