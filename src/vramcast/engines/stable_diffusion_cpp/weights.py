"""Weights in stable-diffusion.cpp: matrices in the file's type, convolutions fp16, vectors and tables fp32.

[linear] ggml_extend.hpp `Linear::init_params`: a matrix whose rows do not divide into blocks is fp32
[conv] ggml_extend.hpp `Conv2d::init_params`: fp16; biases and norms fp32. [embeddings] clip.hpp `CLIPEmbeddings`: fp32
[convolved] common.hpp `SpatialTransformer`, vae.hpp `AttnBlock`: fp16 convolutions in place of linears
[kept] model.cpp `tensor_should_be_converted`, since commit 79c9fe95 (build 138): embedders and the last layer keep the
checkpoint's type, and bf16 is read as fp32. All at 10c6501.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT
from vramcast.blocks.diffusion.networks import buffer_elements, weights_of
from vramcast.blocks.parameters import named_parameters
from vramcast.domain.model import Attention, Model, Parameter
from vramcast.domain.pipeline import Component
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Version
from vramcast.states.ggml import QUANTISED, TYPES
from vramcast.states.storage import format_of

SOURCE: Final = "leejet/stable-diffusion.cpp ggml_extend.hpp, model.cpp at 10c6501"

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
    for owner, parameter, count in named_parameters(model):
        table = parameter.kind == "embedding" or owner == "embedding" or len(parameter.shape) < 2
        keeps = table and not (relative and owner == "embedding")
        yield _tensor(name, owner, parameter, "fp32" if keeps else stored), count


def _tensor(name: str, owner: str, parameter: Parameter, stored: str) -> Tensor:
    held = held_type(parameter, stored)
    return Tensor(
        name=parameter.path, num_bytes=format_of(held).num_bytes(_matrix(parameter)), category=Category.WEIGHTS,
        owner=f"{name}.{owner}", formula=f"{' x '.join(f'{size:,}' for size in parameter.shape)} in {held}",
        source=SOURCE,
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
