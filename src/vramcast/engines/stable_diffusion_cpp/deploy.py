"""One stable-diffusion.cpp process: buffers of weights, and one compute buffer after the other.

[run] leejet/stable-diffusion.cpp stable-diffusion.cpp `generate_image` at 10c6501: encoders, denoiser and autoencoder
each reserve a compute buffer for their graph and free it when they are done.
[t5] the T5 encoder runs on the host where its weights are not fp32 (`clip_on_cpu`).
[tiles] `decode_first_stage`: latents in tiles of 32 x 32 with `--vae-tiling`.
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.autoencoders import AutoencoderKL
from vramcast.domain.denoisers import SD3, Flux, UNet
from vramcast.domain.job import Phase
from vramcast.domain.model import Model
from vramcast.domain.pipeline import Component, Pipeline
from vramcast.domain.program import Category
from vramcast.domain.program import Tensor as Entry
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Deployment, PipelineJob, ServingRank
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.serving.choices import typed_options
from vramcast.engines.stable_diffusion_cpp.flux import flux_graph
from vramcast.engines.stable_diffusion_cpp.mmdit import mmdit_graph
from vramcast.engines.stable_diffusion_cpp.ops import compute_buffer_bytes
from vramcast.engines.stable_diffusion_cpp.text import text_graph
from vramcast.engines.stable_diffusion_cpp.unet import unet_graph
from vramcast.engines.stable_diffusion_cpp.vae import vae_graph
from vramcast.engines.stable_diffusion_cpp.weights import SOURCE as WEIGHTS_SOURCE
from vramcast.engines.stable_diffusion_cpp.weights import component_tensors
from vramcast.errors import InvalidSpec, Unsupported

SOURCE: Final = "leejet/stable-diffusion.cpp ggml_extend.hpp GGMLRunner; ggml src/ggml-alloc.c"

FLASH_SINCE: Final = (166,)
"""Build with commit 1c168d9, "repair flash attention support"."""

TILE: Final = 32
SCALE: Final = 8
MULTIPLE: Final = 64
TEXT_TOKENS: Final = {"SD3Transformer2DModel": 154, "FluxTransformer2DModel": 256}
"""Tokens the denoiser reads; others read CLIP's 77."""
CLIP_TOKENS: Final = 77


def deploy(job: PipelineJob) -> Deployment:
    """The process of a pipeline on one card."""
    typed_options(job, {})
    if job.plan.offload != "none":
        raise Unsupported("stable-diffusion.cpp keeps components on the card or on the host: leave out --offload")
    parts = [component for component in job.pipeline.components if not on_host(job.pipeline, component)]
    weights = [_together(job, component) for component in parts]
    largest = max((buffer(job, component) for component in parts), key=lambda tensor: tensor.num_bytes)
    # buffers come from the driver itself, so everything stands beside PyTorch's allocator
    program = RankProgram(role="all", count=1, phases={Phase.SERVING: ()}, outside=(*weights, largest))
    notes = ["the graphs of build 211; cuBLAS's pool of the CUDA backend is not counted"]
    hidden = [component.name for component in job.pipeline.components if component not in parts]
    if hidden:
        notes.append(f"{', '.join(hidden)} run on the host, as the engine does with T5")
    return Deployment(ranks=(ServingRank(program=program),), assumptions=tuple(notes))


def on_host(pipeline: Pipeline, component: Component) -> bool:
    """Encoders of pipelines with T5 run on the host."""
    return component.role == "encoder" and any(
        denoiser.network.__class__ in (SD3, Flux) for denoiser in pipeline.denoisers
    )


def _together(job: PipelineJob, component: Component) -> Entry:
    """A component's weights lie in one buffer."""
    stored = job.plan.weights or "f16"
    size = sum(tensor.num_bytes * count for tensor, count in component_tensors(component, stored, job.version))
    return Entry(
        name="weights", num_bytes=size, category=Category.WEIGHTS, owner=component.name,
        formula=f"matrices in {stored}, convolutions in fp16, vectors and tables in fp32", source=WEIGHTS_SOURCE,
    )


def buffer(job: PipelineJob, component: Component) -> Entry:
    """The compute buffer of a component."""
    flash = job.plan.attention == "flash"
    if flash and job.version < FLASH_SINCE:
        raise Unsupported(f"flash attention works from build {FLASH_SINCE[0]} on, not in {job.version[0]}")
    size = compute_buffer_bytes(graph(job, component, flash=flash))
    return Entry(
        name="compute buffer", num_bytes=size, category=Category.ACTIVATIONS, owner=component.name,
        formula=f"graph of {component.name} packed by ggml's allocator", source=SOURCE,
    )


def graph(job: PipelineJob, component: Component, *, flash: bool) -> Tensor:
    """The component's graph at the job's sizes.

    Raises: Unsupported for networks of later builds
    """
    width, height = latent_sizes(job)
    network = component.network
    match network:
        case Model():
            return text_graph(network, tokens=component.tokens or CLIP_TOKENS)
        case UNet():
            return unet_graph(network, width=width, height=height, tokens=CLIP_TOKENS, flash=flash)
        case SD3():
            return mmdit_graph(network, width=width, height=height, tokens=_tokens(network))
        case Flux():
            return flux_graph(network, width=width, height=height, tokens=_tokens(network), flash=flash)
        case AutoencoderKL():
            tiles = (TILE, TILE) if job.plan.tiling else (width, height)
            return vae_graph(network, width=min(width, tiles[0]), height=min(height, tiles[1]))
    name = network.__struct_config__.tag
    raise Unsupported(f"{name} of {job.pipeline.name} is not modelled for stable-diffusion.cpp; use --engine diffusers")


def _tokens(network: SD3 | Flux) -> int:
    return TEXT_TOKENS[str(network.__struct_config__.tag)]


def latent_sizes(job: PipelineJob) -> tuple[int, int]:
    """Columns and rows of the latent.

    Raises: InvalidSpec for sizes that are no multiple of 64
    """
    sizes = job.size[::-1]
    for name, size in zip(("width", "height"), sizes, strict=True):
        if size % MULTIPLE:
            raise InvalidSpec(f"{name}={size} is not a multiple of {MULTIPLE} pixels")
    return sizes[0] // SCALE, sizes[1] // SCALE
