"""Caches: bytes per cell by type, padding by build, windows, compressed and recurrent states."""

from __future__ import annotations

import pytest

from tests.engines.llamacpp._jobs import MIB, context, job, kv_mib
from vramcast.engines.llamacpp.settings import settings_of
from vramcast.errors import InvalidSpec, UnknownName


@pytest.mark.parametrize(
    ("k_type", "v_type", "mib"),
    [("f16", "f16", 4096.0), ("q8_0", "q8_0", 2176.0), ("q8_0", "q4_0", 1664.0), ("f32", "f32", 8192.0)],
)
def test_an_8b_llama_keeps_128_kib_a_token_in_16_bits(k_type: str, v_type: str, mib: float) -> None:
    found = context("llama-3.1-8b", context=32768, kv_dtype=k_type, v_dtype=v_type, attention="flash")
    assert kv_mib(found) == mib


def test_contexts_are_padded_to_256_and_once_were_to_32() -> None:
    assert settings_of(job("llama-3.1-8b", context=1000)).context == 1024
    assert settings_of(job("llama-3.1-8b", context=1000, build=6000)).context == 1024  # 32 x 32
    assert settings_of(job("llama-3.1-8b", context=1025, build=6000)).context == 1056
    assert settings_of(job("llama-3.1-8b", context=1025, build=6000, attention="flash")).context == 1280


def test_each_slot_has_a_stream_of_its_own_unless_unified() -> None:
    apart = settings_of(job("llama-3.1-8b", context=1000, concurrency=3))
    assert (apart.streams, apart.context) == (3, 3 * 1024)
    assert settings_of(job("llama-3.1-8b", context=1000, concurrency=3, kv_unified=True)).streams == 1
    assert settings_of(job("llama-3.1-8b", context=1000, concurrency=3, build=5800)).streams == 1


def test_a_sliding_window_keeps_the_window_and_one_micro_batch() -> None:
    """gemma-3-4b: 5 layers of the whole context, 29 of 1024 + 512 cells, 4 KiB a token and layer: 814 MiB at 32k."""
    assert kv_mib(context("gemma-3-4b", context=32768)) == 5 * 32768 * 4096 / MIB + 29 * 1536 * 4096 / MIB
    whole = 34 * 32768 * 4096 / MIB
    assert kv_mib(context("gemma-3-4b", context=32768, swa_full=True)) == whole
    assert kv_mib(context("gemma-3-4b", context=32768, build=5400)) == whole


def test_families_whose_windows_llama_cpp_does_not_know_attend_to_everything() -> None:
    assert kv_mib(context("mistral-7b-v0.1", context=32768)) == 32 * 32768 * 4096 / MIB


def test_deepseek_is_cached_compressed_by_mode_and_build() -> None:
    """61 layers of 576 elements; decompressed 128 heads of 192 and 128."""
    compressed, whole = 61 * 4096 * 576 * 2 / MIB, 61 * 4096 * 128 * (192 + 128) * 2 / MIB
    assert kv_mib(context("deepseek-v3")) == compressed
    assert kv_mib(context("deepseek-v3", build=5000)) == whole
    assert kv_mib(context("deepseek-v3", fork=True, mla=0)) == whole
    assert kv_mib(context("deepseek-v3", fork=True, mla=3, attention="flash")) == compressed
    assert kv_mib(context("deepseek-v3", fork=True, mla=1)) == compressed + 61 * 4096 * 512 * 2 / MIB


def test_recurrent_states_grow_with_slots_and_not_with_the_context() -> None:
    one, long = context("qwen3.5-27b", context=4096), context("qwen3.5-27b", context=8192)
    two = context("qwen3.5-27b", context=4096, concurrency=2)
    states = [sum(cache.state for cache in found.caches) for found in (one, long, two)]
    assert states[0] == states[1] == states[2] // 2 > 0


def test_bad_types_and_options_are_named() -> None:
    with pytest.raises(UnknownName, match="q8_0"):
        context("llama-3.1-8b", kv_dtype="q8_1x")
    with pytest.raises(UnknownName, match="swa-full"):
        context("llama-3.1-8b", swa_ful=True)
    with pytest.raises(InvalidSpec, match="true or false"):
        context("llama-3.1-8b", swa_full="yes")
