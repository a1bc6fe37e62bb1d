"""Weights of a pipeline's components as diffusers and transformers load them.

[bnb] huggingface/transformers quantizers/base.py `get_modules_to_not_convert`, models/t5 `_keep_in_fp32_modules`: what
T5 keeps in fp32 (`wo`) no quantiser converts, and it is fp32 then. [quantizers] huggingface/diffusers quantizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.diffusion.networks import buffer_elements, weights_of
from vramcast.domain.autoencoders import Autoencoder
from vramcast.domain.denoisers import Denoiser
from vramcast.domain.model import Attention, Model, Parameter
from vramcast.domain.pipeline import Component
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor
from vramcast.engines.serving.stages import Stage
from vramcast.engines.serving.weights import Formats, weight_tensors
from vramcast.parallel.layout import Layout
from vramcast.states.storage import format_for, format_of

SOURCE: Final = "tensors of the component's class under its config; docs/serving.md"

LARGE_ENCODER: Final = 10**9
"""Encoders above this many parameters are quantised with the denoiser; CLIP's are not."""

DTYPES: Final = ("bf16", "fp16", "fp32")


def quantised_by_default(component: Component, elements: int) -> bool:
    """Whether a quantised pipeline quantises that component: the denoiser and large encoders, as examples do."""
    return component.role == "denoiser" or (component.role == "encoder" and elements > LARGE_ENCODER)


def formats_of_component(*, weights: str | None, dtype: str, quantised: bool) -> Formats:
    """The formats of one component."""
    if weights is None or weights in DTYPES or not quantised:
        return Formats(weights if weights in DTYPES and weights is not None else dtype, dtype)
    return Formats(weights, dtype)


def component_tensors(component: Component, formats: Formats) -> Iterator[tuple[Tensor, int]]:
    """The component's weights, with how many equal ones there are."""
    network = component.network
    if isinstance(network, Model):
        yield from _model_tensors(component.name, network, formats)
    else:
        yield from _network_tensors(component.name, network, formats)


def _model_tensors(name: str, model: Model, formats: Formats) -> Iterator[tuple[Tensor, int]]:
    stage = Stage(0, model.num_layers, first=True, last=True)
    found = weight_tensors(model, layout=Layout(), formats=formats, stage=stage)
    kept_wide = formats.quantised not in DTYPES and _is_t5(model)
    for tensor, count in found:
        if kept_wide and tensor.name == "mlp.down":
            shape = (model.hidden, _inner(model))
            yield _tensor(name, tensor.owner, Parameter(path=tensor.name, shape=shape), "fp32"), count
        else:
            yield _renamed(tensor, name), count


def _is_t5(model: Model) -> bool:
    mixer = model.main.layers[0].mixer
    return isinstance(mixer, Attention) and mixer.position_bias == "relative"


def _inner(model: Model) -> int:
    return getattr(model.main.layers[0].channel, "width", 0)


def _network_tensors(
    name: str, network: Denoiser | Autoencoder, formats: Formats
) -> Iterator[tuple[Tensor, int]]:
    for owner, parameter, count in weights_of(network):
        stored = format_for(parameter, quantised=formats.quantised, whole=formats.whole)
        yield _tensor(name, owner, parameter, stored), count
    elements = buffer_elements(network)
    if elements:
        yield _tensor(name, "buffers", Parameter(path="positions", shape=(elements,), kind="bias"), formats.whole), 1


def _tensor(name: str, owner: str, parameter: Parameter, stored: str) -> Tensor:
    shape = parameter.shape if parameter.kind == "matrix" else (parameter.elements,)
    return Tensor(
        name=parameter.path, num_bytes=format_of(stored).num_bytes(shape), category=Category.WEIGHTS,
        owner=f"{name}.{owner}", formula=f"{' x '.join(f'{size:,}' for size in parameter.shape)} in {stored}",
        source=SOURCE,
    )


def _renamed(tensor: Tensor, name: str) -> Tensor:
    return Tensor(
        name=tensor.name, num_bytes=tensor.num_bytes, category=tensor.category, owner=f"{name}.{tensor.owner}",
        formula=tensor.formula, source=tensor.source,
    )


def loaded(tensors: list[tuple[Tensor, int]]) -> Program:
    """Weights come to the card one by one."""
    return tuple(Loop(count, (Alloc(tensor),), label="layers") for tensor, count in tensors)


def unloaded(tensors: list[tuple[Tensor, int]]) -> Program:
    """Weights leave the card."""
    return tuple(Loop(count, (Free(tensor),), label="layers") for tensor, count in tensors)


def largest_module(tensors: list[tuple[Tensor, int]]) -> int:
    """Bytes of the largest single weight: what sequential offloading brings in at once."""
    return max(tensor.num_bytes for tensor, _ in tensors)


def largest_group(tensors: list[tuple[Tensor, int]]) -> int:
    """Bytes of the largest block beside everything outside blocks: what block-level group offloading brings in."""
    blocks: dict[str, int] = {}
    outside = 0
    for tensor, count in tensors:
        if count > 1:
            blocks[tensor.owner] = blocks.get(tensor.owner, 0) + tensor.num_bytes
        else:
            outside += tensor.num_bytes
    return outside + max(blocks.values(), default=0)
