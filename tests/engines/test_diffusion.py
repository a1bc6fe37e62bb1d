"""Diffusion: pipelines trained and served."""

from typing import Any

import pytest

import vramcast
from vramcast.api import serve, serve_job_of
from vramcast.blocks.diffusion.autoencoder_kl import encode
from vramcast.blocks.diffusion.unet import control_parameters
from vramcast.catalogue.pipelines import load_pipeline
from vramcast.domain.pipeline import AutoencoderKL, UNet
from vramcast.domain.program import extent
from vramcast.domain.serving import PipelineJob
from vramcast.engines.stable_diffusion_cpp.deploy import buffer
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.operators.eager import Tape
from vramcast.units import GIB, MIB

# Training of diffusion pipelines: peaks as traces of diffusers' own networks have them, and what is refused.

ALONE = ("vae=none", "text=none")
LORA: dict[str, Any] = {"peft": "lora", "lora_rank": 16, "precision": "amp-bf16"}


def trained(model: str, *options: str, size: int = 512, **asked: Any) -> Any:
    return vramcast.train(
        model, gpus="h100-sxm-80gb", image_size=size, engine_option=(*ALONE, *options), **asked
    )


@pytest.mark.parametrize(("traced_gib", "model", "options", "asked"), [
    (12.486, "sdxl", (), LORA | {"size": 1024}),
    (5.915, "sdxl", (), LORA | {"size": 1024, "recompute": "full"}),
    (34.208, "sdxl", (), LORA | {"size": 1024, "micro_batch": 4}),
    (8.019, "sdxl", (), LORA | {"size": 1024, "micro_batch": 4, "recompute": "full"}),
    (48.311, "sdxl", (), {"size": 1024, "precision": "amp-bf16"}),
    (2.818, "sd-1.5", (), LORA),
    (16.194, "sd-1.5", (), {"micro_batch": 4, "precision": "amp-bf16"}),
    (18.490, "sd-1.5", ("text_learns=true",), {"micro_batch": 2, "precision": "fp32", "recompute": "full"}),
    (4.212, "sd-1.5", ("text_learns=true",), LORA | {"micro_batch": 2, "precision": "amp-fp16"}),
    (6.949, "sd-1.5", ("trains=embedding",), {"micro_batch": 2, "precision": "fp32"}),
    (14.422, "sd-1.5", ("trains=controlnet",), {"micro_batch": 4, "precision": "fp32"}),
    (25.387, "flux.1-dev", (), LORA | {"size": 1024, "recompute": "full"}),
    (40.810, "qwen-image", ("tokens=256",), LORA | {"size": 1024, "recompute": "full"}),
    (4.716, "sd3", ("tokens=154",), LORA | {"size": 1024, "recompute": "full"}),
])
def test_a_step_peaks_as_its_trace(traced_gib: float, model: str, options: tuple[str, ...], asked: Any) -> None:
    """`vramcast.tracing` over diffusers 0.42.1, peft 0.21.2 and torch 2.13, second step, cuBLAS for Hopper."""
    answer = trained(model, *options, **asked)
    assert answer.peak.allocated_bytes / GIB == pytest.approx(traced_gib, rel=0.02)


def test_an_encoder_peaks_as_its_trace() -> None:
    network = load_pipeline("sdxl").autoencoder
    assert network is not None
    assert isinstance(network.network, AutoencoderKL)
    tape = Tape("vae", "")
    pixels = tape.new("pixels", (1, 3, 1024, 1024), 4)
    encode(tape, network.network, pixels)
    assert extent(tape.program).peak / GIB == pytest.approx(2.5117, rel=1e-4)


def test_a_controlnet_has_its_published_parameters() -> None:
    network = load_pipeline("sd-1.5").denoisers[0].network
    assert isinstance(network, UNet)
    assert sum(parameter.elements * count for _, parameter, count in control_parameters(network)) == 361_279_120


@pytest.mark.parametrize(("more", "less"), [
    ({}, {"recompute": "full"}), ({"micro_batch": 16}, {}), ({"optimizer": "adamw"}, {"optimizer": "adamw-8bit"}),
    ({"grad_accum": 2}, {}),
])
def test_more_is_never_less(more: dict[str, Any], less: dict[str, Any]) -> None:
    larger, smaller = (trained("sd-1.5", precision="amp-fp16", **asked) for asked in (more, less))
    assert larger.fullest.needed_bytes > smaller.fullest.needed_bytes


def test_what_makes_latents_before_the_first_step_counts() -> None:
    answer = vramcast.train("flux.1-dev", gpus="h100", engine_option=("vae=cached", "text=cached"), recompute="full",
                            peft="lora")
    assert answer.fullest.phases["load"].device_bytes > answer.peak.device_bytes


@pytest.mark.parametrize(("asked", "error", "text"), [
    ({"seq_len": 4096}, InvalidSpec, "--seq-len says nothing about training a diffusion pipeline"),
    ({"peft": "lora", "lora_targets": "q_proj"}, Unsupported, "adapters on q_proj"),
    ({"peft": "ia3"}, InvalidSpec, "--peft ia3 is not modelled for diffusion"),
    ({"engine": "deepspeed"}, Exception, "stable-diffusion"),
    ({"image_size": 500}, InvalidSpec, "height=500 is not a multiple of 8"),
])
def test_what_is_not_modelled_is_refused(asked: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        vramcast.train("stable-diffusion-1.5", gpus="h100", **asked)


def test_changes_that_fit_together_are_said() -> None:
    found = vramcast.train("flux.1-dev", gpus="rtx-4090", peft="lora")
    first, *alone = found.changes
    assert first.fits and not any(change.fits for change in alone)
    assert all(option in first.change for option in ("--recompute full", "--base-weights nf4"))


# diffusers deployments: what is on the card when, and what options change.

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


# stable-diffusion.cpp: buffers as its log prints them.

def denoiser_mib(model: str, width: int, height: int, **options: Any) -> float:
    found = serve_job_of({
        "model": model, "gpus": "h100", "engine": "stable-diffusion.cpp", "width": width, "height": height, **options,
    })
    assert isinstance(found, PipelineJob)
    return buffer(found, found.pipeline.denoisers[0]).num_bytes / MIB


@pytest.mark.parametrize(("model", "width", "height", "flash", "logged"), [
    ("stable-diffusion-1.5", 1024, 1792, False, 25377.96),
    ("stable-diffusion-2.1", 512, 512, False, 367.98),
    ("stable-diffusion-2.1", 512, 512, True, 130.48),
    ("stable-diffusion-xl-base", 1792, 1792, True, 1554.33),
    ("stable-diffusion-3-medium", 512, 512, False, 169.64),
    ("stable-diffusion-3.5-medium", 1024, 1024, False, 1834.11),
    ("stable-diffusion-3.5-large", 1536, 1792, False, 17859.31),
])
def test_compute_buffers_are_those_of_the_log(
    model: str, width: int, height: int, flash: bool, logged: float
) -> None:
    options = {"attention": "flash"} if flash else {}
    assert denoiser_mib(model, width, height, **options) == pytest.approx(logged, abs=0.011)
