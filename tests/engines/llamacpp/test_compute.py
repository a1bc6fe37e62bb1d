"""Compute buffers against figures that follow from the graph, and what holds for every question."""

from __future__ import annotations

from itertools import product

import pytest

from tests.engines.llamacpp._jobs import MIB, context, job
from vramcast.engines.llamacpp import context as compute
from vramcast.engines.llamacpp.context import Context, card_bytes

LOGITS_30B = 512 * 151936 * 4 / MIB


def card_mib(model: str, **more: object) -> float:
    return max(context(model, **more).reserved.cards) / MIB


def test_logits_and_the_last_states_decide_where_the_vocabulary_is_large() -> None:
    """Qwen3-30B-A3B with 32k of context: 512 rows of 151,936 logits and of 2,048 states, 300.75 MiB."""
    assert card_mib("qwen3-30b-a3b", context=32768) == LOGITS_30B + 512 * 2048 * 4 / MIB == 300.75


def test_the_host_keeps_mask_and_embedded_tokens() -> None:
    found = context("qwen3-30b-a3b", context=32768).reserved.host / MIB
    assert found == pytest.approx(32768 * 512 * 4 / MIB + 512 * 2048 * 4 / MIB, abs=0.05)


def test_newer_builds_compute_one_row_of_logits_per_slot() -> None:
    assert card_mib("qwen3-30b-a3b", context=32768, build=9500) < LOGITS_30B / 2


def test_without_flash_attention_scores_of_all_heads_are_kept() -> None:
    flash = card_mib("llama-3.1-8b", context=16384, attention="flash")
    eager = card_mib("llama-3.1-8b", context=16384, attention="eager")
    assert eager > 16384 * 512 * 32 * 4 / MIB > flash


def test_ik_llama_cpp_decompresses_as_many_heads_at_once_as_amb_allows() -> None:
    all_heads = card_mib("deepseek-v3", fork=True, mla=3, attention="flash", context=32768, gpu_layers=62)
    some = card_mib("deepseek-v3", fork=True, mla=3, amb=512, attention="flash", context=32768, gpu_layers=62)
    assert all_heads > 32768 * 128 * 256 * 4 / MIB > some


def test_large_batches_bring_host_experts_to_the_card_and_short_ones_do_not() -> None:
    expert = 128 * 2048 * 768 * 34 // 32  # one matrix of Qwen3-30B-A3B's experts in q8_0
    stays = context("qwen3-30b-a3b", cpu_moe=True, weights="q8_0", micro_batch=16)
    moves = context("qwen3-30b-a3b", cpu_moe=True, weights="q8_0", micro_batch=512)
    kept = context("qwen3-30b-a3b", cpu_moe=True, weights="q8_0", micro_batch=512, op_offload=False)
    assert moves.reserved.cards[0] > expert > stays.reserved.cards[0]
    assert kept.reserved.cards[0] < moves.reserved.cards[0] + LOGITS_30B
    assert kept.reserved.host > stays.reserved.host


MODELS = ("llama-3.1-8b", "gemma-3-4b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3.5-27b", "mamba-2.8b")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("flash", ["flash", "eager"])
def test_more_context_larger_batches_and_more_slots_never_take_less_of_a_card(model: str, flash: str) -> None:
    for name, values in (
        ("context", (2048, 8192, 32768)), ("micro_batch", (32, 128, 512, 2048)), ("concurrency", (1, 2, 4)),
    ):
        asked = [{"context": 8192, "attention": flash} | {name: value} for value in values]
        sizes = [card_bytes(context(model, **more), 0) for more in asked]
        assert sizes == sorted(sizes), (name, sizes)


@pytest.mark.parametrize(("model", "more"), [
    *product(("llama-3.1-8b", "gemma-3-4b", "deepseek-v2-lite", "qwen3-30b-a3b", "qwen3.5-27b"),
             ({}, {"cards": 3}, {"gpu_layers": 10}, {"attention": "eager"})),
    ("deepseek-v2-lite", {"cpu_moe": True}), ("qwen3-30b-a3b", {"cpu_moe": True}),
])
def test_equal_layers_need_not_all_be_written_down(
    model: str, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = job(model, context=8192, **more)
    short = Context(question).reserved
    monkeypatch.setattr(compute, "representative", lambda layers, placement: layers)
    assert Context(question).reserved == short


def test_several_cards_overlap_batches_and_keep_copies_of_inputs() -> None:
    copies = context("llama-3.1-8b", cards=2, context=16384)
    single = context("llama-3.1-8b", cards=2, context=16384, parallel_copies=False)
    assert copies.pipelined and not single.pipelined
    assert copies.reserved.host > single.reserved.host
