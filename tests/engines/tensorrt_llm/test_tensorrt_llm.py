"""TensorRT-LLM: what its fraction is a fraction of, held to measured capacities."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import Capacity, ServeAnswer
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.units import GIB


def ask(model: str = "llama-3.1-8b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": "h100", "engine": "tensorrt-llm", "context": 8192} | options))


def capacity(answer: ServeAnswer) -> Capacity:
    assert answer.capacity is not None
    return answer.capacity


def entry(found: ServeAnswer, name: str) -> int:
    return sum(item.num_bytes for item in found.fullest.ledger if name in item.path)


def test_the_fraction_is_of_what_is_left() -> None:
    low, high = (ask(memory_fraction=fraction).startup["KV cache"] for fraction in (0.4, 0.8))
    assert high == pytest.approx(2 * low, rel=1e-6)


def test_a_built_engine_leaves_what_its_log_prints() -> None:
    # Llama-2-7B, SmoothQuant, 0.8 on A100 80GB, one sequence, max_num_tokens 4096: 69,524,783,104 bytes of cache
    found = ask(
        "llama-2-7b", gpus="a100-80gb", engine="tensorrt-llm@0.8", weights="int8", dtype="fp16", max_sequences=1,
        batched_tokens=4096, context=5120,
    )
    assert capacity(found).kv_bytes == pytest.approx(69_524_783_104, rel=0.01)


def test_a_sequence_takes_whole_blocks() -> None:
    assert capacity(ask(context=33)).sequence_bytes == pytest.approx(capacity(ask(context=64)).sequence_bytes, rel=1e-9)
    assert capacity(ask(context=65)).sequence_bytes > capacity(ask(context=64)).sequence_bytes
    built = ask(context=33, engine="tensorrt-llm@0.20")
    assert capacity(built).sequence_bytes == capacity(ask(context=64, engine="tensorrt-llm@0.20")).sequence_bytes


def test_a_larger_step_is_run_before_the_cache_is_sized() -> None:
    small, large = (ask(batched_tokens=tokens) for tokens in (2048, 16384))
    assert large.startup["activation peak"] > small.startup["activation peak"]
    assert large.startup["KV cache"] < small.startup["KV cache"]
    assert "warm-up" in large.fullest.phases


def test_bytes_and_tokens_given_lower_the_cache_but_never_raise_it() -> None:
    own = capacity(ask())
    assert capacity(ask(cache_bytes=GIB)).kv_bytes <= GIB
    assert capacity(ask(cache_bytes=10**12)).kv_bytes == own.kv_bytes
    assert capacity(ask(engine_option=("max-tokens=4096",))).kv_tokens == 4096


def test_a_builds_decoder_grows_with_its_sequences() -> None:
    few, many = (ask(engine="tensorrt-llm@0.12", max_sequences=count) for count in (8, 2048))
    assert entry(many, "runtime buffers") == 256 * entry(few, "runtime buffers") > 0
    assert entry(ask(), "runtime buffers") == 0


def test_drafts_and_adapters_come_out_of_the_cache() -> None:
    plain = ask()
    for options in ({"draft": "eagle3"}, {"lora_slots": 4, "lora_rank": 64}):
        assert capacity(ask(**options)).kv_tokens < capacity(plain).kv_tokens


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"offload": "model"}, Unsupported, "offload"),
        ({"kv_dtype": "q4_0"}, InvalidSpec, "none of tensorrt-llm's"),
        ({"engine_option": ("sliding=true",)}, UnknownName, "tensorrt-llm option"),
        ({"engine_option": ("sliding-windows=3",)}, InvalidSpec, "true or false"),
        ({"engine": "tensorrt-llm@0.4"}, InvalidSpec, "0.5 to 1.2"),
        ({"gpus": "2xh100", "tp": 2, "dcp": 2}, Unsupported, "dcp"),
    ],
)
def test_what_tensorrt_llm_does_not_offer_is_said(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ask(**options)
