"""Weights of one residual layer.

Symbols:  H hidden   F feed-forward width   E experts
[Megatron] Shoeybi et al., arXiv:1909.08053, section 3: gate and up split by COLUMN, down by ROW.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from vramcast.blocks.parameters.mixers import (
    attention_parameters,
    latent_parameters,
    linear_attention_parameters,
    mamba_parameters,
)
from vramcast.blocks.parameters.tensors import linear, norm, prefixed, vector
from vramcast.domain.model import (
    MLP,
    Attention,
    Channel,
    Layer,
    LinearAttention,
    Mamba,
    Mixer,
    MoE,
    MultiLatentAttention,
    Parameter,
    Split,
)
from vramcast.operators.activation import LEARNED

MOST_KNOWN: Final = 1024
"""Layers, or models, whose weights are kept [count]."""


def mlp_parameters(mlp: MLP, *, hidden: int, owner: str = "mlp") -> tuple[Parameter, ...]:
    """gate (when gated), up and down of one feed-forward block."""
    found: tuple[Parameter, ...] = ()
    if mlp.gated:
        found = linear(f"{owner}.gate", mlp.width, hidden, split=Split.COLUMN, bias=mlp.bias)
    found += linear(f"{owner}.up", mlp.width, hidden, split=Split.COLUMN, bias=mlp.bias)
    return found + linear(f"{owner}.down", hidden, mlp.width, split=Split.ROW, bias=mlp.bias)


def moe_parameters(moe: MoE, *, hidden: int) -> tuple[Parameter, ...]:
    """Router, all experts stacked as (E, F, H), shared experts and their gate."""
    found = [*linear("moe.router", moe.num_experts, hidden, bias=moe.router_bias)]
    if moe.score_bias:
        found.append(vector("moe.score_bias", moe.num_experts, trainable=moe.score_bias_is_parameter))
    if moe.latent_width:
        found += linear("moe.latent_in", moe.latent_width, hidden) + linear("moe.latent_out", hidden, moe.latent_width)
    for weight in mlp_parameters(moe.expert, hidden=moe.latent_width or hidden, owner="moe.experts"):
        stacked = Parameter(
            path=weight.path, shape=(moe.num_experts, *weight.shape), split=weight.split, expert=True, kind=weight.kind
        )
        found.append(stacked)
    if moe.shared_width:
        shared = MLP(width=moe.shared_width, gated=moe.expert.gated, bias=moe.expert.bias)
        found += mlp_parameters(shared, hidden=hidden, owner="moe.shared")
    if moe.shared_gate:
        found += linear("moe.shared_gate", 1, hidden)
    return tuple(found)


def mixer_parameters(mixer: Mixer, *, hidden: int) -> tuple[Parameter, ...]:
    """Weights of the part that mixes tokens."""
    match mixer:
        case Attention():
            return attention_parameters(mixer, hidden=hidden)
        case MultiLatentAttention():
            return latent_parameters(mixer, hidden=hidden)
        case Mamba():
            return mamba_parameters(mixer, hidden=hidden)
        case LinearAttention():
            return linear_attention_parameters(mixer, hidden=hidden)


def channel_parameters(channel: Channel, *, hidden: int) -> tuple[Parameter, ...]:
    """Weights of the part that mixes channels."""
    if isinstance(channel, MoE):
        return moe_parameters(channel, hidden=hidden)
    own = (vector(f"mlp.act.{index}", 1) for index in range(LEARNED.get(channel.activation, 0)))
    return mlp_parameters(channel, hidden=hidden) + tuple(own)


def _norm_parameters(layer: Layer, hidden: int) -> tuple[Parameter, ...]:
    names = ["mixer_norm"] if layer.mixer is not None else []
    if layer.cross_attention is not None:
        names.append("cross_attention_norm")
    if layer.channel is not None and not (layer.shared_input_norm and names):
        names.append("channel_norm")
    if layer.post_norms:
        names += [name.replace("_norm", "_post_norm") for name in names]
    return tuple(parameter for name in names for parameter in norm(name, layer.norm, hidden))


@lru_cache(maxsize=MOST_KNOWN)
def layer_parameters(layer: Layer, *, hidden: int) -> tuple[Parameter, ...]:
    """Every weight tensor of one residual layer.

    Leaves out how kernels pack them: fused query-key-value or gate-up weights hold the same elements.

    Args:
        layer: the layer
        hidden: width of the residual stream, H

    Returns: parameters in the order of use, paths unique within the layer
    """
    found = list(_norm_parameters(layer, hidden))
    if layer.mixer is not None:
        found += mixer_parameters(layer.mixer, hidden=hidden)
    if layer.cross_attention is not None:
        found += prefixed("cross", attention_parameters(layer.cross_attention, hidden=hidden))
    if layer.channel is not None:
        found += channel_parameters(layer.channel, hidden=hidden)
    found += layer.extra
    if layer.extra_parameters:
        found.append(vector("unlisted", layer.extra_parameters))
    return tuple(found)
