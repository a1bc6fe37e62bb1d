"""Compute buffers against figures that follow from the graph, and what holds for every question."""

from itertools import product

import pytest

from tests.engines.llamacpp._jobs import MIB, context, job
from vramcast.engines.llamacpp import context as compute
from vramcast.engines.llamacpp.context import Context, card_bytes


def card_mib(model: str, **more: object) -> float:
    return max(context(model, **more).reserved.cards) / MIB


def test_ik_llama_cpp_decompresses_as_many_heads_at_once_as_amb_allows() -> None:
    all_heads = card_mib("deepseek-v3", fork=True, mla=3, attention="flash", context=32768, gpu_layers=62)
    some = card_mib("deepseek-v3", fork=True, mla=3, amb=512, attention="flash", context=32768, gpu_layers=62)
    assert all_heads > 32768 * 128 * 256 * 4 / MIB > some


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
