"""diffusers deployments: what is on the card when, and what options change."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.api import serve, serve_job_of
from vramcast.domain.serving import PipelineJob
from vramcast.engines.diffusers import step_of
from vramcast.errors import InvalidSpec
from vramcast.units import GIB


def allocated(model: str, **options: Any) -> int:
    return serve(model, gpus="h100", **options).ranks[0].peak.allocated_bytes


def job(model: str, **options: Any) -> PipelineJob:
    found = serve_job_of({"model": model, "gpus": "4xh100", **options})
    assert isinstance(found, PipelineJob)
    return found


@pytest.mark.parametrize("model", ["flux.1-dev", "stable-diffusion-xl-base", "cogvideox-5b", "qwen-image"])
def test_each_step_of_offloading_takes_less(model: str) -> None:
    whole = allocated(model)
    by_model = allocated(model, offload="model")
    assert allocated(model, offload="sequential") <= allocated(model, offload="group") <= by_model < whole


def test_a_decoder_that_is_upcast_from_fp16_is_not_where_all_is_fp32_already() -> None:
    sixteen, whole = (allocated("stable-diffusion-xl-refiner", dtype=dtype) for dtype in ("fp16", "fp32"))
    assert sixteen < whole < 2.1 * sixteen


def test_weights_are_those_of_the_components() -> None:
    # FLUX.1-dev: 11.90 + 4.76 + 0.12 + 0.08 billion parameters in bf16
    weights = sum(entry.num_bytes for entry in serve("flux.1-dev", gpus="h100").ranks[0].ledger
                  if entry.category == "weights")
    assert weights == pytest.approx(2 * 16_870_599_139, rel=1e-4)


def test_t5_keeps_its_second_linear_in_fp32_when_it_is_quantised() -> None:
    ledger = serve("flux.1-dev", gpus="h100", weights="nf4").ranks[0].ledger
    kept = next(entry for entry in ledger if "text_encoder_2" in entry.path and "mlp.down" in entry.path)
    assert "fp32" in kept.formula


def test_flux_in_four_bits_peaks_as_its_decoding_does() -> None:
    # transformer and T5 in nf4, T5's `wo` in fp32, CLIP and the autoencoder in bf16, 1.61 GB of decoding
    assert allocated("flux.1-dev", weights="nf4") / 1e9 == pytest.approx(15.0, rel=0.02)


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


def test_guidance_doubles_the_batch_and_ranks_share_the_rows() -> None:
    guided = step_of(job("stable-diffusion-xl-base", concurrency=3), 2)
    assert guided.batch == 6
    shared = step_of(job("flux.1-dev", **{"engine-option": ["context-parallel=4"]}), 2)
    assert (shared.batch, shared.height, shared.width) == (1, 32, 128)


def test_video_latents_are_a_quarter_of_the_frames() -> None:
    assert step_of(job("cogvideox-5b", frames=49), 2).frames == 13


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 1001}, "height=1001 is not a multiple of 16 pixels; use 992 or 1008"),
        ({"kv_dtype": "fp8"}, "--kv-dtype says nothing about a diffusion pipeline"),
        ({"engine": "vllm"}, "flux.1-dev is a diffusion pipeline, vllm runs language models"),
        ({"engine_option": ["context-parallel=8"]}, "context-parallel=8 needs as many GPUs"),
    ],
)
def test_bad_questions_are_answered_in_a_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        serve("flux.1-dev", gpus="h100", **options)


def test_parts_of_the_ledger_add_up() -> None:
    rank = serve("flux.1-dev", gpus="h100").ranks[0]
    assert sum(entry.num_bytes for entry in rank.ledger) == rank.peak.device_bytes
    assert rank.peak.device_bytes < 40 * GIB
