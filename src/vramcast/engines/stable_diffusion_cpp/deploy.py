"""One stable-diffusion.cpp process: weights in the types it stores them in, one compute buffer after the other.

[linear] ggml_extend.hpp `Linear::init_params`: a matrix whose rows do not divide into blocks is fp32
[conv] ggml_extend.hpp `Conv2d::init_params`: fp16; biases and norms fp32. [embeddings] clip.hpp `CLIPEmbeddings`: fp32
[convolved] common.hpp `SpatialTransformer`, vae.hpp `AttnBlock`: fp16 convolutions in place of linears
[kept] model.cpp `tensor_should_be_converted`, since commit 79c9fe95 (build 138): embedders and the last layer keep the
checkpoint's type, and bf16 is read as fp32. All at 10c6501.
[run] leejet/stable-diffusion.cpp stable-diffusion.cpp `generate_image` at 10c6501: encoders, denoiser and autoencoder
each reserve a compute buffer for their graph and free it when they are done.
[t5] the T5 encoder runs on the host where its weights are not fp32 (`clip_on_cpu`).
[tiles] `decode_first_stage`: latents in tiles of 32 x 32 with `--vae-tiling`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT, buffer_elements, weights_of
from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Attention, Model, Parameter
from vramcast.domain.pipeline import SD3, AutoencoderKL, Component, Flux, Pipeline, UNet
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Deployment, PipelineJob, ServingRank, Version
from vramcast.engines.ggml.ops import Tensor as Node
from vramcast.engines.serving.requests import typed_options
from vramcast.engines.stable_diffusion_cpp.graphs import flux_graph, mmdit_graph, text_graph, unet_graph, vae_graph
from vramcast.engines.stable_diffusion_cpp.ops import compute_buffer_bytes
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.states.ggml import QUANTISED, TYPES
from vramcast.states.storage import format_of

CONVERTER_SOURCE: Final = "leejet/stable-diffusion.cpp ggml_extend.hpp, model.cpp at 10c6501"

KEEPS_EMBEDDERS: Final = (138,)
"""First build whose converter leaves embedders and the last layer alone."""

CONVOLVED: Final[dict[str, tuple[str, ...]]] = {
    "UNet2DConditionModel": ("proj_in", "proj_out"), "AutoencoderKL": ("attention.",),
}
"""Matrices that the engine holds as 1 x 1 convolutions."""

NAMES: Final = {"f32": "fp32", "f16": "fp16", "bf16": "fp32", "fp32": "fp32", "fp16": "fp16"}
"""Types of a file that are held as another: bf16 is read as fp32."""


def component_tensors(component: Component, stored: str, version: Version) -> Iterator[tuple[Tensor, int]]:
    """The component's weights with how many equal ones there are."""
    network = component.network
    if isinstance(network, Model):
        yield from _text_tensors(component.name, network, stored)
        return
    convolved = CONVOLVED.get(str(network.__struct_config__.tag), ())
    for owner, parameter, count in weights_of(network):
        kept = owner in (EMBEDDERS, OUTPUT) and version >= KEEPS_EMBEDDERS
        held = "f16" if parameter.path.startswith(convolved) else "bf16" if kept else stored
        yield _tensor(component.name, owner, parameter, held), count
    elements = buffer_elements(network)
    if elements:
        yield _tensor(component.name, "buffers", Parameter(path="positions", shape=(elements,)), "fp32"), 1


def _text_tensors(name: str, model: Model, stored: str) -> Iterator[tuple[Tensor, int]]:
    relative = isinstance(model.main.layers[0].mixer, Attention) and model.main.layers[0].mixer.position_bias != "none"
    for owned in named_parameters(model):
        owner, parameter, count = owned.owner, owned.parameter, owned.repeats
        table = parameter.kind == "embedding" or owner == "embedding" or len(parameter.shape) < 2
        keeps = table and not (relative and owner == "embedding")
        yield _tensor(name, owner, parameter, "fp32" if keeps else stored), count


def _tensor(name: str, owner: str, parameter: Parameter, stored: str) -> Tensor:
    held = held_type(parameter, stored)
    return Tensor(
        name=parameter.path, num_bytes=format_of(held).num_bytes(_matrix(parameter)), category=Category.WEIGHTS,
        owner=f"{name}.{owner}", formula=f"{' x '.join(f'{size:,}' for size in parameter.shape)} in {held}",
        source=CONVERTER_SOURCE,
    )


def _matrix(parameter: Parameter) -> tuple[int, ...]:
    return parameter.shape if len(parameter.shape) == 2 else (parameter.elements,)


def held_type(parameter: Parameter, stored: str) -> str:
    """The type a weight has in the buffer."""
    if parameter.kind == "conv":
        return "fp16"
    if len(parameter.shape) < 2 or parameter.kind in ("norm", "bias", "scalar"):
        return "fp32"
    named = NAMES.get(stored, stored)
    if named in QUANTISED and parameter.shape[-1] % TYPES[named].block:
        return "fp32"
    return named


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
        notes.append(Note("{} run on the host, as the engine does with T5", ", ".join(hidden)))
    return Deployment(ranks=(ServingRank(program=program),), assumptions=tuple(notes))


def on_host(pipeline: Pipeline, component: Component) -> bool:
    """Encoders of pipelines with T5 run on the host."""
    return component.role == "encoder" and any(
        denoiser.network.__class__ in (SD3, Flux) for denoiser in pipeline.denoisers
    )


def _together(job: PipelineJob, component: Component) -> Tensor:
    """A component's weights lie in one buffer."""
    stored = job.plan.weights or "f16"
    size = sum(tensor.num_bytes * count for tensor, count in component_tensors(component, stored, job.version))
    return Tensor(
        name="weights", num_bytes=size, category=Category.WEIGHTS, owner=component.name,
        formula=Note(
            "matrices in {}, convolutions in fp16, vectors and tables in fp32", stored
        ), source=CONVERTER_SOURCE,
    )


def buffer(job: PipelineJob, component: Component) -> Tensor:
    """The compute buffer of a component."""
    flash = job.plan.attention == "flash"
    if flash and job.version < FLASH_SINCE:
        raise Unsupported("flash attention works from build {} on, not in {}", FLASH_SINCE[0], job.version[0])
    size = compute_buffer_bytes(graph(job, component, flash=flash))
    return Tensor(
        name="compute buffer", num_bytes=size, category=Category.ACTIVATIONS, owner=component.name,
        formula=Note("graph of {} packed by ggml's allocator", component.name), source=SOURCE,
    )


def graph(job: PipelineJob, component: Component, *, flash: bool) -> Node:
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
    raise Unsupported(
        "{} of {} is not modelled for stable-diffusion.cpp; use --engine diffusers", name, job.pipeline.name
    )


def _tokens(network: SD3 | Flux) -> int:
    return TEXT_TOKENS[str(network.__struct_config__.tag)]


def latent_sizes(job: PipelineJob) -> tuple[int, int]:
    """Columns and rows of the latent.

    Raises: InvalidSpec for sizes that are no multiple of 64
    """
    sizes = job.size[::-1]
    for name, size in zip(("width", "height"), sizes, strict=True):
        if size % MULTIPLE:
            raise InvalidSpec("{}={} is not a multiple of {} pixels", name, size, MULTIPLE)
    return sizes[0] // SCALE, sizes[1] // SCALE
