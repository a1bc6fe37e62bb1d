"""stable-diffusion.cpp: buffers as its log prints them."""

from typing import Any

import pytest

from vramcast.api import serve_job_of
from vramcast.domain.serving import PipelineJob
from vramcast.engines.stable_diffusion_cpp.deploy import buffer
from vramcast.units import MIB


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
