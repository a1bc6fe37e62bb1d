"""Both ends of a tower: what makes an image or sound a residual stream, and what makes its output another stack's.

[ViT] transformers models/vit/modeling_vit.py `ViTEmbeddings.forward`; models/clip/modeling_clip.py
`CLIPVisionEmbeddings`, models/siglip/modeling_siglip.py `SiglipVisionEmbeddings`
[Whisper] models/whisper/modeling_whisper.py `WhisperEncoder.forward`: two convolutions with GELU, the second halves
[LLaVA] models/llava/modeling_llava.py `LlavaMultiModalProjector.forward`; models/qwen2_5_vl/modeling_qwen2_5_vl.py
`Qwen2_5_VLPatchMerger`, models/qwen3_vl/modeling_qwen3_vl.py `Qwen3VLVisionPatchMerger` (deepstack: some more of them)
"""

from __future__ import annotations

from math import prod
from typing import Final

from msgspec.structs import replace

from vramcast.blocks import parts
from vramcast.blocks.parts import Sizes
from vramcast.domain.model import Norm, Stack, VisionEmbedding
from vramcast.domain.program import Category
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Dense, cast, linear
from vramcast.units import FP32

SOURCE: Final = "transformers models/*/modeling_*.py"
BEHIND: Final = ("projector", "projection", "deepstack", "resampler", "logit_", "image_newline")
"""How the paths of weights begin that stand between a tower and what reads it."""


def is_behind(path: str) -> bool:
    """Whether a weight of a tower belongs to its projector."""
    return path.startswith(BEHIND)


def entrance(stack: Stack, sizes: Sizes) -> Graph:
    """Pixels or a spectrum, given in fp32, to the residual stream.

    Leaves out: workspaces of cuDNN

    Args:
        stack: of the images, whose patches or convolutions it has
        sizes: of the stack
    """
    vision = stack.vision
    assert vision is not None
    graph = Graph(owner=stack.name, source=SOURCE, rows=sizes.tokens)
    out = _patches(graph, vision, sizes) if vision.patch else _convolved(graph, vision, sizes)
    if vision.class_token:
        out = _longer(graph, out, sizes)
    if rows := vision.positions or stack.positions:
        out = _placed(graph, out, rows, sizes, learns=not sizes.frozen and stack.positions_trained)
    if vision.pre_norm:
        out = parts.norm(graph, "vision.pre_norm", out, kind=Norm.LAYER, elements=sizes.tokens * sizes.hidden,
                         width=sizes.hidden, sizes=sizes)
    elements = sizes.tokens * sizes.hidden
    out = parts.dropout(graph, "embedding", out, elements=elements, probability=sizes.hidden_dropout)
    graph.returns(cast(graph, out, elements=elements, to_bytes=sizes.numerics.residual, name="tower input"))
    return graph


def given_bytes(stack: Stack, sizes: Sizes) -> int:
    """What a batch holds for a tower, in fp32 [bytes]."""
    vision = stack.vision
    if vision is None:
        return 0
    if vision.patch:
        return sizes.batch * (sizes.seq_len - vision.class_token) * vision.in_channels * prod(vision.patch) * FP32
    return 2 * sizes.tokens * vision.in_channels * FP32


def _given(graph: Graph, name: str, size: int) -> Value:
    """What the batch owns: read here, nothing more."""
    value = Value(name, size, 0, graph.tensor(name, 0))
    graph.inputs.append(value)
    return value


def _patches(graph: Graph, vision: VisionEmbedding, sizes: Sizes) -> Value:
    rows = sizes.batch * (sizes.seq_len - vision.class_token)
    inner = vision.in_channels * prod(vision.patch)
    pixels = _given(graph, "pixels", rows * inner * FP32)
    dense = Dense(sizes.hidden, inner, vision.bias, not sizes.frozen)
    out = linear(graph, "vision.patch", pixels, tokens=rows, dense=dense, numerics=sizes.numerics)
    return cast(graph, out, elements=rows * sizes.hidden, to_bytes=sizes.numerics.residual, name="patches")


def _convolved(graph: Graph, vision: VisionEmbedding, sizes: Sizes) -> Value:
    """Every convolution but the last keeps the frames, the last halves them [Whisper]."""
    numerics, frames = sizes.numerics, 2 * sizes.tokens
    x = _given(graph, "spectrum", frames * vision.in_channels * FP32)
    for index, (inputs, outputs, kernel) in enumerate(vision.convolutions):
        last = index == len(vision.convolutions) - 1
        x = cast(graph, x, elements=frames * inputs, to_bytes=numerics.compute, name=f"vision.conv{index}.input")
        frames, learns, weights = frames // (2 if last else 1), not sizes.frozen, inputs * outputs * kernel
        size = frames * outputs * numerics.compute
        y = graph.value(f"vision.conv{index}", size, gradient_bytes=size if learns else 0)
        copied = [graph.value(f"vision.conv{index}.weight_cast", weights * numerics.compute, gradient_bytes=0)]
        gradient = graph.tensor(f"vision.conv{index}.weight_gradient", (weights + outputs) * numerics.gradient,
                                Category.GRADIENTS)
        x = graph.call(
            "convolution", [x], [y], saved=[x] if learns else [], weight_gradients=[gradient] if learns else [],
            extra=copied if numerics.autocast and learns else [], flops=2 * frames * weights,
        )
        x = parts.activation(graph, f"vision.conv{index}", x, kind="gelu", elements=frames * outputs, sizes=sizes)
    # channels come last, for the layers
    elements = sizes.tokens * sizes.hidden
    return cast(graph, x, elements=elements, to_bytes=numerics.residual, name="frames")


def _longer(graph: Graph, x: Value, sizes: Sizes) -> Value:
    """A class token in front: a new tensor, whose gradient the patches' is a view of."""
    learns, size = not sizes.frozen, sizes.residual_bytes
    out = graph.value("with class token", size, gradient_bytes=size if learns or x.gradient_bytes else 0)
    token = graph.tensor("vision.class_token.gradient", sizes.hidden * sizes.numerics.gradient, Category.GRADIENTS)
    return graph.call("cat", [x], [out], weight_gradients=[token] if learns else [], slices_gradient=True)


def _placed(graph: Graph, x: Value, rows: int, sizes: Sizes, *, learns: bool) -> Value:
    size = sizes.residual_bytes
    out = graph.value("with positions", size, gradient_bytes=size if learns or x.gradient_bytes else 0)
    table = graph.tensor("positions.gradient", rows * sizes.hidden * sizes.numerics.gradient, Category.GRADIENTS)
    return graph.call("add", [x], [out], weight_gradients=[table] if learns else [], passes_gradient=True)


def exit_of(stack: Stack, sizes: Sizes, *, learns: bool) -> Graph:
    """The tower's last norm, and its output made one of the width of what reads it.

    Leaves out: activations of weights that read one position of each sample (pooling, projections to a joint space)

    Args:
        stack: a tower
        sizes: of the tower
        learns: whether the projector does
    """
    graph = Graph(owner=stack.name, source=SOURCE, rows=sizes.tokens)
    hidden = x = graph.input("hidden", sizes.residual_bytes)
    if stack.final_norm is not None:
        x = parts.norm(graph, "final_norm", x, kind=stack.final_norm, elements=sizes.tokens * sizes.hidden,
                       width=sizes.hidden, sizes=sizes)
    own = replace(sizes, frozen=not learns, trained=(), stored="full", adapter=None)
    inner = len({one.path.split(".")[1] for one in stack.extra if one.path.startswith("deepstack.")})
    small = sum(
        one.elements for one in stack.extra
        if one.trainable and not one.path.startswith("deepstack.")
        and (learns if is_behind(one.path) else not sizes.frozen)
    )
    found = [_projected(graph, stack, x, own, name="projector") if stack.projector else x]
    found += [_projected(graph, stack, hidden, own, name=f"deepstack{index}") for index in range(inner)]
    graph.returns(*found)
    if small and graph.operators:
        gradient = graph.tensor("other weights' gradients", small * sizes.numerics.gradient, Category.GRADIENTS)
        graph.operators[-1].weight_gradients = (*graph.operators[-1].weight_gradients, gradient)
    return graph


def _projected(graph: Graph, stack: Stack, x: Value, sizes: Sizes, *, name: str) -> Value:
    """Norm and linears; the first reads several positions side by side where it is as wide as those."""
    width, elements = stack.projector[0][0], sizes.tokens * sizes.hidden
    rows = elements // width if stack.projector_norm_dim and width % sizes.hidden == 0 else sizes.tokens
    if stack.projector_positions or stack.pooled > 1:
        rows = sizes.batch * stack.projector_positions or sizes.tokens // stack.pooled
        elements = rows * width
        size = elements * sizes.numerics.residual
        pooled = graph.value(f"{name}.pooled", size, gradient_bytes=size if x.gradient_bytes else 0)
        x = graph.call("pool", [x], [pooled])
    if stack.projector_norm_dim and elements % stack.projector_norm_dim == 0:
        x = parts.norm(graph, f"{name}.norm", x, kind=stack.projector_norm, elements=elements,
                       width=stack.projector_norm_dim, sizes=sizes)
    for index, (inputs, outputs, bias) in enumerate(stack.projector):
        if index:
            x = parts.activation(graph, f"{name}.{index}", x, kind="gelu", elements=rows * inputs, sizes=sizes)
        dense = Dense(outputs, inputs, bias, not sizes.frozen)
        x = linear(graph, f"{name}.{index}", x, tokens=rows, dense=dense, numerics=sizes.numerics)
    return x
