"""SGLang: pools that the driver's free memory leaves, held to start-up logs."""

from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Capacity, ServeAnswer
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.estimate.serving import answer
from vramcast.units import GIB


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
