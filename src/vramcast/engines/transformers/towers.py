"""Encoders that run before the main stack: vision towers, audio and text encoders.

[HF] transformers models/qwen2_vl/modeling_qwen2_vl.py `Qwen2VisionTransformerPretrainedModel`, models/whisper, t5
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.blocks.ends import boundary, chained
from vramcast.blocks.projection import project
from vramcast.blocks.sizes import Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.model import Model, Stack
from vramcast.domain.program import Alloc, Loop, Node, Program, Tensor
from vramcast.engines.transformers.settings import Settings, sizes_of
from vramcast.errors import InvalidSpec
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import lower_inference


class Encoded(NamedTuple):
    """Towers' programs, and the states they leave for the main stack."""

    program: Program
    states: tuple[Tensor, ...]


def encoded(model: Model, settings: Settings) -> Encoded:
    """Every tower that this request runs.

    Raises: InvalidSpec when images have no size
    """
    nodes: list[Node] = []
    states: list[Tensor] = []
    for stack in model.stacks[:-1]:
        sizes = _sizes(model, stack, settings)
        if sizes is None:
            continue
        hidden = boundary(sizes, stack.name)
        nodes.append(Alloc(hidden))
        for run in stack.runs:
            graph = chained(decoder_layer(run.layer, sizes, owner=f"{stack.name}.layers"), hidden)
            nodes.append(Loop(run.count, lower_inference(graph), label="layers"))
        if stack.projector:
            graph, out = _projector(stack, sizes, hidden)
            nodes += lower_inference(graph, hold_inputs=False)
            states.append(out)
        else:
            states.append(hidden)
    return Encoded(tuple(nodes), tuple(states))


def _sizes(model: Model, stack: Stack, settings: Settings) -> Sizes | None:
    """None for towers that a text has no use for."""
    if settings.source:
        rows, length = settings.batch, settings.source
    else:
        length = _patches(stack, settings)
        rows = settings.batch * settings.images
    if not rows:
        return None
    if not length:
        raise InvalidSpec(f"images of {model.name} may have any size; give --image-size, for example 1024")
    return sizes_of(model, stack, settings, rows=rows, queries=length, keys=length)._replace(fused_gate=False)


def _patches(stack: Stack, settings: Settings) -> int:
    vision = stack.vision
    if vision is None:
        return settings.prompt
    if settings.image_size is not None and vision.patch:
        patches: int = (settings.image_size // vision.patch[-1]) ** 2 + int(vision.class_token)
        return patches
    return vision.positions or stack.positions


def _projector(stack: Stack, sizes: Sizes, hidden: Tensor) -> tuple[Graph, Tensor]:
    """Linears behind a tower; patches may be merged before, so rows are what the widths say."""
    graph = Graph(owner=f"{stack.name}.projector", rows=sizes.tokens)
    x = graph.input("hidden", sizes.residual_bytes, tensor=hidden)
    merged = max(1, stack.projector[0][0] // stack.hidden)
    tokens, whole = max(1, sizes.tokens // merged), sizes._replace(stored="full")
    for index, (columns, rows, bias) in enumerate(stack.projector):
        x = project(graph, f"projector.{index}", x, tokens=tokens, shape=(rows, columns), sizes=whole, bias=bias)
    graph.returns(x)
    return graph, x.storage.tensor
