"""All weights of a model, by owner, and how many there are; what a checkpoint stores beside them.

[FP8] DeepSeek-V3, arXiv:2412.19437, section 3.3.2: one fp32 scale per 128 x 128 block of a linear's weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parameters.layer import MOST_KNOWN, layer_parameters, linear, norm, prefixed, vector
from vramcast.domain.model import (
    Attention,
    Head,
    Layer,
    Model,
    MoE,
    MultiLatentAttention,
    Norm,
    Parameter,
    Split,
    Stack,
    VisionEmbedding,
)
from vramcast.units import ceil_div


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
    return sum(prod(parameter.shape) for parameter in parameters)


class OwnedParameter(Struct, frozen=True):
    """A weight tensor, who owns it, and how many equal ones there are in a row."""

    owner: str  # "embedding", "decoder", "decoder.layers.3-30", "head", "mtp.0"
    parameter: Parameter
    repeats: int


class ParameterCount(Struct, frozen=True, kw_only=True):
    """Weights of a model, each tied or shared tensor once. Multi-token-prediction modules stand apart."""

    total: int  # everything a forward pass to the head needs
    embedding: int  # token embedding, positions and token types not
    head: int  # output projection when untied, poolers, task heads
    active: int  # what one token meets: experts not chosen left out
    frozen: int  # within total, but no gradient: routing corrections, fixed positions
    mtp: int  # multi-token-prediction modules
    buffers: int  # stored by a checkpoint, no parameters

    @property
    def trainable(self) -> int:
        return self.total - self.frozen


@lru_cache(maxsize=MOST_KNOWN)
def named_parameters(model: Model, *, mtp: bool = False) -> tuple[OwnedParameter, ...]:
    """Every weight tensor with its owner; equal layers in a row come once, with their count.

    Args:
        mtp: also those of the multi-token-prediction modules
    """
    return tuple(_named(model, mtp))


def _named(model: Model, mtp: bool) -> Iterator[OwnedParameter]:
    for parameter in embedding_parameters(model):
        yield OwnedParameter("embedding", parameter, 1)
    for stack in model.stacks:
        for parameter in stack_parameters(stack):
            yield OwnedParameter(stack.name, parameter, 1)
        first = 0
        for run in stack.runs:
            last = first + run.count - 1
            owner = f"{stack.name}.layers.{first}" + (f"-{last}" if last > first else "")
            for parameter in layer_parameters(run.layer, hidden=stack.hidden):
                yield OwnedParameter(owner, parameter, run.count)
            first += run.count
    for parameter in head_parameters(model):
        yield OwnedParameter("head", parameter, 1)
    for index, module in enumerate(mtp_parameters(model) if mtp else ()):
        for parameter in module:
            yield OwnedParameter(f"mtp.{index}", parameter, 1)


def _idle_expert_elements(layer: Layer, hidden: int) -> int:
    """Expert weights of a layer that one token does not meet."""
    if not isinstance(layer.channel, MoE):
        return 0
    moe = layer.channel
    experts = sum(p.elements for p in layer_parameters(layer, hidden=hidden) if p.expert)
    return experts // moe.num_experts * max(0, moe.num_experts - moe.top_k)


@lru_cache(maxsize=MOST_KNOWN)
def count_parameters(model: Model) -> ParameterCount:
    """Number of weights of a model.

    Leaves out padding of any kind and optimizer copies.
    """
    total = frozen = 0
    for owned in named_parameters(model):
        number = owned.parameter.elements * owned.repeats
        total += number
        frozen += 0 if owned.parameter.trainable else number
    idle = sum(
        run.count * _idle_expert_elements(run.layer, stack.hidden) for stack in model.stacks for run in stack.runs
    )
    return ParameterCount(
        total=total,
        embedding=elements(embedding_parameters(model)),
        head=elements(head_parameters(model)),
        active=total - idle,
        frozen=frozen,
        mtp=sum(map(elements, mtp_parameters(model))),
        buffers=model.buffers,
    )


FP8_BLOCK: Final = 128


class Stored(StrEnum):
    """A group of elements that some checkpoints hold and others do not."""

    ROTARY = "rotary"  # inverse frequencies, one vector per layer
    SHARED_ROTARY = "shared_rotary"  # one vector for the whole model
    CAUSAL_MASKS = "causal_masks"  # context x context booleans per layer
    MASKED_BIAS = "masked_bias"  # the scalar that fills masked scores, per layer
    POSITION_IDS = "position_ids"  # 0 ... positions - 1
    TIED_HEAD = "tied_head"  # the embedding a second time
    MTP = "mtp"  # multi-token-prediction modules
    MTP_WITHOUT_TABLES = "mtp_without_tables"  # the same, their copies of embedding and head left out
    SCORE_BIAS = "score_bias"  # routing corrections; a checkpoint can lack them
    FP8_SCALES = "fp8_scales"  # of every 8-bit linear


BUFFERS: Final = (
    Stored.ROTARY,
    Stored.SHARED_ROTARY,
    Stored.CAUSAL_MASKS,
    Stored.MASKED_BIAS,
    Stored.POSITION_IDS,
)
"""Groups that are no weights under any reading."""


def stored_elements(model: Model, kind: Stored) -> int:
    layers, context = model.num_layers, model.context or 0
    match kind:
        case Stored.ROTARY:
            return layers * _rotary_width(model)
        case Stored.SHARED_ROTARY:
            return _rotary_width(model)
        case Stored.CAUSAL_MASKS:
            return layers * context * context
        case Stored.MASKED_BIAS:
            return layers
        case Stored.POSITION_IDS:
            return model.main.positions
        case Stored.TIED_HEAD:
            return model.vocab * (model.embedding_width or model.hidden) if model.tied else 0
        case Stored.MTP:
            return count_parameters(model).mtp
        case Stored.MTP_WITHOUT_TABLES:
            return count_parameters(replace(model, mtp_own_embeddings=False, mtp_own_head=False)).mtp
        case Stored.SCORE_BIAS:
            named = (owned for owned in named_parameters(model) if owned.parameter.path == "moe.score_bias")
            return sum(owned.parameter.elements * owned.repeats for owned in named)
        case Stored.FP8_SCALES:
            return fp8_scale_elements(model)


def _rotary_width(model: Model) -> int:
    """Inverse frequencies per vector; latent attention stores those of a head of H / A channels (Kimi K2)."""
    mixer = model.main.runs[0].layer.mixer
    if isinstance(mixer, Attention):
        return int(mixer.head_dim * mixer.rope_fraction) // 2
    return model.hidden // mixer.num_heads // 2 if isinstance(mixer, MultiLatentAttention) else 0


def _is_fp8(parameter: Parameter) -> bool:
    """Routers, indexer weights and everything that is not a matrix product stay in 16 bits."""
    if parameter.kind != "matrix" or parameter.path.endswith(("router", "indexer.weights", "projection", "mtp.head")):
        return False
    return not parameter.path.startswith("head.")


def fp8_scale_elements(model: Model) -> int:
    """fp32 scales of a block-quantised checkpoint, multi-token prediction included [count]."""
    total = 0
    for owned in named_parameters(model, mtp=True):
        if _is_fp8(owned.parameter):
            *experts, rows, columns = owned.parameter.shape
            blocks = ceil_div(rows, FP8_BLOCK) * ceil_div(columns, FP8_BLOCK)
            total += owned.repeats * blocks * (experts[0] if experts else 1)
    return total


def checkpoint_elements(model: Model, stores: Iterable[Stored] = (), lacks: Iterable[Stored] = ()) -> int:
    """Elements of all tensors in a checkpoint that stores some groups too and lacks others [count].

    >>> from vramcast.domain.model import MLP, Attention, Layer, Model, Run, Stack
    >>> mixer = Attention(num_heads=32, num_kv_heads=32, head_dim=128)
    >>> layer = Layer(mixer=mixer, channel=MLP(width=11008, gated=True))
    >>> stack = Stack(name="decoder", hidden=4096, runs=(Run(count=32, layer=layer),))
    >>> llama = Model(name="llama-2-7b", family="llama", vocab=32000, stacks=(stack,))
    >>> checkpoint_elements(llama, [Stored.ROTARY])
    6738417664
    """
    more, fewer = (sum(stored_elements(model, kind) for kind in kinds) for kinds in (stores, lacks))
    return count_parameters(model).total + more - fewer
