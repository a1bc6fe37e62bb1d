"""What a checkpoint stores beside the weights of the network, so that its published total can be explained.

[FP8] DeepSeek-V3, arXiv:2412.19437, section 3.3.2: one fp32 scale per 128 x 128 block of a linear's weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.count import count_parameters, named_parameters
from vramcast.domain.model import Attention, Model, MultiLatentAttention, Parameter
from vramcast.units import ceil_div

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
    """Elements of one group [count]."""
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
            named = named_parameters(model)
            return sum(owned.parameter.elements * owned.repeats for owned in named if _is_score_bias(owned.parameter))
        case Stored.FP8_SCALES:
            return fp8_scale_elements(model)


def _rotary_width(model: Model) -> int:
    """Inverse frequencies per vector; latent attention stores those of a head of H / A channels (Kimi K2)."""
    mixer = model.main.runs[0].layer.mixer
    if isinstance(mixer, Attention):
        return int(mixer.head_dim * mixer.rope_fraction) // 2
    return model.hidden // mixer.num_heads // 2 if isinstance(mixer, MultiLatentAttention) else 0


def _is_score_bias(parameter: Parameter) -> bool:
    return parameter.path == "moe.score_bias"


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
