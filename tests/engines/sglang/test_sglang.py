"""SGLang, and TensorRT-LLM."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import vramcast
from vramcast.catalogue.gpus import load_gpu, parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Capacity, ServeAnswer
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.sglang.settings import (
    Capture,
    card_bytes,
    default_fraction,
    draft_mib,
    vision_factor,
)
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.estimate.serving import answer
from vramcast.units import GIB

# SGLang: pools that the driver's free memory leaves, held to start-up logs.


def ask(model: str = "llama-3.1-8b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": "h100", "engine": "sglang", "context": 8192} | options))


def capacity(answer: ServeAnswer) -> Capacity:
    assert answer.capacity is not None
    return answer.capacity


def entry(found: ServeAnswer, name: str) -> int:
    return sum(item.num_bytes for item in found.fullest.ledger if name in item.path)


def test_a_log_of_recurrent_states_is_met_pool_by_pool() -> None:
    # LFM2-700M on a card of 16 GB that shows 15.33 GiB free before the load: 1.52 GB of weights, 473,854 tokens in
    # twice 2.71 GB, 85,292 states of 4.88 GB
    cluster = parse_gpus("rtx-4080")
    gpu = replace(cluster.gpu, visible_bytes=round(15.33 * GIB), context_bytes=0)
    job = ServeJob(
        model=load_model("lfm2-700m"), requests=Requests(), plan=ServePlan(), engine="sglang", version=(0, 5, 6),
        cluster=replace(cluster, gpu=gpu),
    )
    found = answer(job)
    printed = {name: size / GIB for name, size in found.startup.items()}
    assert printed["weights"] == pytest.approx(1.52, rel=0.008)
    assert printed["keys"] == pytest.approx(2.71, rel=0.004)
    assert printed["values"] == pytest.approx(2.71, rel=0.004)
    assert printed["convolution states"] == pytest.approx(4.88, rel=0.004)
    counts = capacity(found).tokens_by_count
    assert counts["tokens"] == pytest.approx(473_854, rel=0.003)
    assert counts["recurrent states"] == pytest.approx(85_292, rel=0.003)


def test_windows_have_a_pool_of_four_fifths_in_whole_pages() -> None:
    counts = capacity(ask("mimo-v2-flash", gpus="4xb200", block_tokens=64)).tokens_by_count
    assert counts["tokens of sliding windows"] == int(0.8 * counts["tokens"]) // 64 * 64
    wider = ask("mimo-v2-flash", gpus="4xb200", engine_option=("swa-full-tokens-ratio=0.5",))
    assert capacity(wider).kv_tokens > counts["tokens"]


def test_states_in_16_bits_are_half_as_large() -> None:
    wide, narrow = (
        ask("qwen3-next-80b-a3b", gpus="4xh200", engine_option=(f"mamba-ssm-dtype={dtype}",)).startup
        for dtype in ("float32", "bfloat16")
    )
    assert ask("qwen3-next-80b-a3b", gpus="4xh200").startup == wide
    a_state = {dtype: found["recurrent states"] / found["convolution states"]
               for dtype, found in (("float32", wide), ("bfloat16", narrow))}
    assert a_state["float32"] == pytest.approx(2 * a_state["bfloat16"])


def test_prefixes_kept_take_states_of_their_own() -> None:
    kept, dropped = (ask("qwen3-next-80b-a3b", gpus="4xh200", prefix_caching=flag) for flag in (True, False))
    assert capacity(kept).concurrency < capacity(dropped).concurrency


def test_drafts_lie_beside_the_pools_until_they_are_counted() -> None:
    before, after = (ask(engine=f"sglang@{v}", draft="eagle", memory_fraction=0.8) for v in ("0.5.6", "0.5.23"))
    plain = ask(engine="sglang@0.5.6", memory_fraction=0.8)
    assert before.startup["KV cache"] == plain.startup["KV cache"]
    assert entry(before, "draft pool") > 0
    assert entry(after, "draft pool") == 0
    assert after.startup["KV cache"] < before.startup["KV cache"]


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"gpu_layers": 3}, Unsupported, "gpu-layers"),
    ({"kv_dtype": "q8_0"}, InvalidSpec, "none of sglang's"),
    ({"engine_option": ("mem-fraction=3",)}, UnknownName, "sglang option"),
    ({"engine_option": ("max-total-tokens=many",)}, InvalidSpec, "whole number"),
    ({"gpus": "2xh100", "tp": 2, "dcp": 2}, Unsupported, "dcp"),
    ({"engine": "sglang@0.2"}, InvalidSpec, "0.3 to 0.5.23"),
    ({"model": "whisper-large-v3"}, Unsupported, "transformers"),
])
def test_what_sglang_does_not_offer_is_said(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ask(**options)


# The static fraction that SGLang chooses by itself, release by release.

H100 = card_bytes(load_gpu("h100"))

PLAIN = Capture(chunk=8192, sequences=256, ranks=1, data_parallel=1, latent=False, draft=None)


def test_a_draft_is_set_aside_until_it_is_counted() -> None:
    drafted = PLAIN._replace(draft="eagle")
    assert default_fraction((0, 5, 6), H100, drafted) < default_fraction((0, 5, 6), H100, PLAIN)
    counted = default_fraction((0, 5, 23), H100, PLAIN)
    assert default_fraction((0, 5, 23), H100, drafted) == counted
    assert default_fraction((0, 5, 6), H100, PLAIN._replace(draft="ngram")) > default_fraction((0, 5, 6), H100, drafted)


@pytest.mark.parametrize(
    ("version", "mib"), [((0, 5, 1), 2048), ((0, 5, 9), 2048), ((0, 5, 10), 4096), ((0, 5, 13), 4096), ((0, 5, 14), 0)]
)
def test_what_is_set_aside_for_a_draft_by_release(version: tuple[int, ...], mib: int) -> None:
    assert draft_mib(version, "eagle") == mib
    assert draft_mib(version, "ngram") == draft_mib(version, None) == 0


@pytest.mark.parametrize(("version", "size", "fraction"), [
    ((0, 4, 5), 141 * GIB, 0.88), ((0, 4, 6), 141 * GIB, 1 - 13 / 141), ((0, 4, 7), 141 * GIB, 1 - 18 / 141),
    ((0, 4, 7), 180 * GIB, 0.79), ((0, 4, 8), 141 * GIB, 1 - 12.5 / 141),
])
def test_cards_above_80_gib_in_the_releases_of_0_4(version: tuple[int, ...], size: int, fraction: float) -> None:
    assert default_fraction(version, size, PLAIN) == pytest.approx(fraction, abs=6e-4)


def test_networks_that_read_images_get_less() -> None:
    model = load_model("gemma-3-27b")
    assert vision_factor(model, (0, 4, 5), given=True) == 0.9
    assert vision_factor(model, (0, 5, 6), given=True) == 1.0
    assert 0.95 * 0.8 <= vision_factor(model, (0, 5, 6), given=False) < 0.95 * 1.05
    assert vision_factor(load_model("llama-3.1-8b"), (0, 4, 5), given=False) == 1.0


@given(
    version=st.sampled_from([(0, 3), (0, 4, 3), (0, 4, 7), (0, 5, 2), (0, 5, 3), (0, 5, 10), (0, 5, 23)]),
    gib=st.integers(8, 300), ranks=st.sampled_from([1, 2, 4, 8, 16]), chunk=st.integers(0, 1 << 20),
    sequences=st.integers(0, 4096), copies=st.sampled_from([1, 2, 8]), latent=st.booleans(),
    draft=st.sampled_from([None, "eagle", "model", "ngram"]),
)
def test_a_fraction_is_always_one(
    version: tuple[int, ...], gib: int, ranks: int, chunk: int, sequences: int, copies: int, latent: bool,
    draft: str | None,
) -> None:
    capture = Capture(chunk, sequences, ranks, copies, latent, draft)
    assert 0.05 <= default_fraction(version, gib * GIB, capture) < 1


# TensorRT-LLM: what its fraction is a fraction of, held to measured capacities.

def trt_ask(model: str = "llama-3.1-8b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": "h100", "engine": "tensorrt-llm", "context": 8192} | options))


def test_a_built_engine_leaves_what_its_log_prints() -> None:
    # Llama-2-7B, SmoothQuant, 0.8 on A100 80GB, one sequence, max_num_tokens 4096: 69,524,783,104 bytes of cache
    found = trt_ask(
        "llama-2-7b", gpus="a100-80gb", engine="tensorrt-llm@0.8", weights="int8", dtype="fp16", max_sequences=1,
        batched_tokens=4096, context=5120,
    )
    assert capacity(found).kv_bytes == pytest.approx(69_524_783_104, rel=0.01)
