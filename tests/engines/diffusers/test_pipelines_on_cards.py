"""diffusers deployments: what is on the card when, and what options change."""

from typing import Any

import pytest

from vramcast.api import serve
from vramcast.errors import InvalidSpec


def allocated(model: str, **options: Any) -> int:
    return serve(model, gpus="h100", **options).ranks[0].peak.allocated_bytes


@pytest.mark.parametrize("model", ["flux.1-dev", "stable-diffusion-xl-base", "cogvideox-5b", "qwen-image"])
def test_each_step_of_offloading_takes_less(model: str) -> None:
    whole = allocated(model)
    by_model = allocated(model, offload="model")
    assert allocated(model, offload="sequential") <= allocated(model, offload="group") <= by_model < whole


def test_tiles_and_slices_bound_decoding() -> None:
    whole = allocated("cogvideox-5b", offload="sequential")
    assert allocated("cogvideox-5b", offload="sequential", tiling=True) < whole / 2
    several = allocated("flux.1-dev", concurrency=4, offload="model", weights="nf4", height=2048, width=2048)
    assert allocated(
        "flux.1-dev", concurrency=4, offload="model", weights="nf4", height=2048, width=2048, slicing=True
    ) < several


def test_fp16_autoencoders_of_xl_decode_in_fp32() -> None:
    found = serve("stable-diffusion-xl-base", gpus="h100", offload="model", height=2048, width=2048)
    assert any("weights upcast to fp32" in entry.path for entry in found.ranks[0].ledger)


def test_larger_pictures_and_more_of_them_take_no_less() -> None:
    sizes = [allocated("stable-diffusion-1.5", height=size, width=size) for size in (512, 768, 1024)]
    assert sizes == sorted(sizes)
    assert allocated("stable-diffusion-1.5", concurrency=2) > allocated("stable-diffusion-1.5")


@pytest.mark.parametrize(("options", "message"), [
    ({"height": 1001}, "height=1001 is not a multiple of 16 pixels; use 992 or 1008"),
    ({"kv_dtype": "fp8"}, "--kv-dtype says nothing about a diffusion pipeline"),
    ({"engine": "vllm"}, "flux.1-dev is a diffusion pipeline, vllm runs language models"),
    ({"engine_option": ["context-parallel=8"]}, "context-parallel=8 needs as many GPUs"),
])
def test_bad_questions_are_answered_in_a_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        serve("flux.1-dev", gpus="h100", **options)
