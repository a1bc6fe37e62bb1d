"""Unequal cards: what engines would do by themselves is said where it is not what is counted."""

import pytest

import vramcast

CARDS = "rtx-4090+rtx-3060-12gb"


@pytest.mark.parametrize(
    ("engine", "words"), [("llama.cpp", "--tensor-split 1,1"), ("transformers", "max_memory"), ("vllm", "")]
)
def test_an_even_split_is_said(engine: str, words: str) -> None:
    answer = vramcast.serve("qwen3-8b", gpus=CARDS, engine=engine, context=4096)
    least = vramcast.serve("qwen3-8b", gpus="2xrtx-3060-12gb", engine=engine, context=4096)
    assert words in " ".join(answer.cautions) and "unequal cards" in " ".join(answer.cautions)
    assert answer.capacity_bytes == least.capacity_bytes
    assert [rank.peak.allocated_bytes for rank in answer.ranks] == [rank.peak.allocated_bytes for rank in least.ranks]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_what_others_hold_is_beside_what_an_engine_takes(engine: str) -> None:
    alone = vramcast.serve("qwen3-4b", gpus="rtx-4090", engine=engine, context=4096)
    held = vramcast.serve("qwen3-4b", gpus="rtx-4090", engine=engine, context=4096, used="3GiB")
    assert held.fullest.needed_bytes <= alone.fullest.needed_bytes + (3 << 30)
    assert any("held by others" in entry.path and entry.num_bytes == 3 << 30 for entry in held.fullest.ledger)
    assert engine != "vllm" or held.fullest.needed_bytes == alone.fullest.needed_bytes + (3 << 30)
