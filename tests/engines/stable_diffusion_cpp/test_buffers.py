"""stable-diffusion.cpp: buffers as its log prints them."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.api import serve, serve_job_of
from vramcast.catalogue.pipelines import load_pipeline
from vramcast.domain.serving import PipelineJob
from vramcast.engines.stable_diffusion_cpp.deploy import buffer, component_tensors
from vramcast.errors import Unsupported
from vramcast.units import MIB


def denoiser_mib(model: str, width: int, height: int, **options: Any) -> float:
    found = serve_job_of({
        "model": model, "gpus": "h100", "engine": "stable-diffusion.cpp", "width": width, "height": height, **options,
    })
    assert isinstance(found, PipelineJob)
    return buffer(found, found.pipeline.denoisers[0]).num_bytes / MIB


@pytest.mark.parametrize(
    ("model", "width", "height", "flash", "logged"),
    [
        ("stable-diffusion-1.5", 1024, 1792, False, 25377.96),
        ("stable-diffusion-2.1", 512, 512, False, 367.98),
        ("stable-diffusion-2.1", 512, 512, True, 130.48),
        ("stable-diffusion-xl-base", 1792, 1792, True, 1554.33),
        ("stable-diffusion-3-medium", 512, 512, False, 169.64),
        ("stable-diffusion-3.5-medium", 1024, 1024, False, 1834.11),
        ("stable-diffusion-3.5-large", 1536, 1792, False, 17859.31),
    ],
)
def test_compute_buffers_are_those_of_the_log(
    model: str, width: int, height: int, flash: bool, logged: float
) -> None:
    options = {"attention": "flash"} if flash else {}
    assert denoiser_mib(model, width, height, **options) == pytest.approx(logged, abs=0.011)


def test_autoencoders_are_fp16_whatever_the_file_says() -> None:
    part = load_pipeline("flux.1-dev").autoencoder
    assert part is not None
    sizes = {
        stored: sum(tensor.num_bytes * count for tensor, count in component_tensors(part, stored, (211,)))
        for stored in ("q4_0", "f16")
    }
    assert sizes["q4_0"] == sizes["f16"]


def test_tiling_bounds_the_largest_buffer() -> None:
    options = {"gpus": "h100", "engine": "stable-diffusion.cpp", "weights": "q8_0"}
    whole = serve("stable-diffusion-1.5", **options).ranks[0].peak.device_bytes
    assert serve("stable-diffusion-1.5", tiling=True, **options).ranks[0].peak.device_bytes < whole


def test_networks_of_later_builds_are_refused() -> None:
    with pytest.raises(Unsupported, match="use --engine diffusers"):
        serve("qwen-image", gpus="h100", engine="stable-diffusion.cpp", height=1024, width=1024)
