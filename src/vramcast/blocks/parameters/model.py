"""Weights outside the layers: embeddings, final norms, projectors, heads, multi-token prediction."""

from __future__ import annotations

from math import prod

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.tensors import linear, norm, prefixed, vector
from vramcast.domain.model import Head, Model, Norm, Parameter, Split, Stack, VisionEmbedding


def _table(path: str, rows: int, width: int, *, split: Split = Split.REPLICATED, trainable: bool = True) -> Parameter:
    return Parameter(path=path, shape=(rows, width), split=split, kind="embedding", trainable=trainable)


def embedding_parameters(model: Model) -> tuple[Parameter, ...]:
    """The token embedding and, when it is factorised, the projection to H."""
    if not model.vocab:
        return ()
    width = model.embedding_width or model.hidden
    found = [_table("embedding.tokens", model.vocab, width, split=Split.VOCAB)]
    if width != model.hidden:
        found += linear("embedding.projection", model.hidden, width, bias=model.embedding_projection_bias)
    if model.per_layer_embedding_width:
        found += _per_layer_embedding(model)
    return tuple(found)


def _per_layer_embedding(model: Model) -> tuple[Parameter, ...]:
    """Gemma 3n and 4: a second table with a slice per layer, and the projection that joins it."""
    width = model.per_layer_embedding_width
    joint = width * model.num_layers
    return (
        _table("embedding.per_layer", model.per_layer_vocab or model.vocab, joint, split=Split.VOCAB),
        *linear("embedding.per_layer_projection", joint, model.hidden),
        *norm("embedding.per_layer_norm", Norm.RMS, width),
    )


def vision_embedding_parameters(vision: VisionEmbedding, *, hidden: int) -> tuple[Parameter, ...]:
    """Patch convolution, class token and positions of an image or audio encoder."""
    found: list[Parameter] = []
    if vision.patch:
        weight = (hidden, vision.in_channels, *vision.patch)
        found.append(Parameter(path="vision.patch", shape=weight, kind="conv"))
        if vision.bias:
            found.append(Parameter(path="vision.patch.bias", shape=(hidden,), kind="bias"))
    for index, (inputs, outputs, kernel) in enumerate(vision.convolutions):
        found.append(Parameter(path=f"vision.conv{index}", shape=(outputs, inputs, kernel), kind="conv"))
        if vision.bias:
            found.append(Parameter(path=f"vision.conv{index}.bias", shape=(outputs,), kind="bias"))
    if vision.class_token:
        found.append(vector("vision.class_token", hidden))
    if vision.positions:
        found.append(_table("vision.positions", vision.positions, hidden))
    if vision.pre_norm:
        found += norm("vision.pre_norm", Norm.LAYER, hidden)
    return tuple(found)


def stack_parameters(stack: Stack) -> tuple[Parameter, ...]:
    """What a stack owns besides its layers."""
    width = stack.embedding_width or stack.hidden
    found: list[Parameter] = []
    if stack.vision is not None:
        found += vision_embedding_parameters(stack.vision, hidden=stack.hidden)
    if stack.positions:
        found.append(_table("embedding.positions", stack.positions, width, trainable=stack.positions_trained))
    if stack.token_types:
        found.append(_table("embedding.token_types", stack.token_types, width))
    found += norm("embedding_norm", stack.embedding_norm, width)
    found += norm("final_norm", stack.final_norm, stack.hidden)
    if stack.projector_norm_dim:
        found += norm("projector.norm", stack.projector_norm, stack.projector_norm_dim)
    for index, (inputs, outputs, bias) in enumerate(stack.projector):
        found += linear(f"projector.{index}", outputs, inputs, bias=bias)
    found += stack.extra
    if stack.extra_parameters:
        found.append(vector("unlisted", stack.extra_parameters))
    return tuple(found)


def head_parameters(model: Model) -> tuple[Parameter, ...]:
    """Pooler, output projection (when it is not the embedding) and task head."""
    h, width = model.hidden, model.embedding_width or model.hidden
    found: list[Parameter] = [*linear("head.pooler", h, h, bias=True)] if model.pooler else []
    match model.head:
        case Head.MLM:
            found += linear("head.dense", width, h, bias=True) + norm("head.norm", Norm.LAYER, width)
        case Head.LM if width != h:
            found += linear("head.projection", width, h)
        case Head.CLASSIFIER:
            found += linear("head.classifier", model.num_labels, h, bias=True)
    if model.head in (Head.LM, Head.MLM):
        if not model.tied:
            found.append(Parameter(path="head.output", shape=(model.vocab, width), split=Split.VOCAB))
        if model.head_bias:
            found.append(Parameter(path="head.output.bias", shape=(model.vocab,), split=Split.VOCAB, kind="bias"))
    return tuple(found)


def mtp_parameters(model: Model) -> tuple[tuple[Parameter, ...], ...]:
    """Weights of each multi-token-prediction module.

    A module owns the 2H x H projection, the norms of its two inputs and of its output, and one layer
    (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    """
    h = model.hidden
    modules: list[tuple[Parameter, ...]] = []
    for layer in model.mtp_layers:
        kind = layer.norm
        found = [
            *norm("embedding_norm", kind, h),
            *norm("hidden_norm", kind, h),
            *linear("projection", h, 2 * h),
            *layer_parameters(layer, hidden=h),
            *norm("final_norm", kind, h),
        ]
        if model.mtp_own_embeddings:
            found.append(_table("embedding", model.vocab, h, split=Split.VOCAB))
        if model.mtp_own_head:
            found.append(Parameter(path="head", shape=(model.vocab, h), split=Split.VOCAB))
        modules.append(prefixed("mtp", found))
    return tuple(modules)


def elements(parameters: tuple[Parameter, ...]) -> int:
    """Sum of elements."""
    return sum(prod(parameter.shape) for parameter in parameters)
