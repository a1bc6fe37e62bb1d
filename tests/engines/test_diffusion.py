"""Training of diffusion pipelines: peaks as traces of diffusers' own networks have them, and what is refused."""

from typing import Any

import pytest

import vramcast
from vramcast.blocks.diffusion.autoencoder_kl import encode
from vramcast.blocks.diffusion.unet import control_parameters
from vramcast.catalogue.pipelines import load_pipeline
from vramcast.domain.pipeline import AutoencoderKL, UNet
from vramcast.domain.program import extent
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.operators.eager import Tape
from vramcast.units import GIB

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
