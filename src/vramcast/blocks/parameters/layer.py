"""Weights of one residual layer and its mixers, all as `Parameter`s.

Symbols:  H hidden   A heads   G key/value heads   D head width   I inner width   N state width   F feed-forward
width   E experts

[Megatron] Shoeybi et al., arXiv:1909.08053: queries, keys and values split by head (COLUMN), the output by ROW;
Shoeybi et al., arXiv:1909.08053, section 3: gate and up split by COLUMN, down by ROW
[MLA] DeepSeek-V2, arXiv:2405.04434, section 2.1: down-projections are copied, up-projections split by head.
[Mamba] Gu and Dao, arXiv:2312.00752; [Mamba-2] Dao and Gu, arXiv:2405.21060.
[GDN] Yang et al., arXiv:2412.06464; [KDA] Kimi Linear, arXiv:2510.26692.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

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
    Norm,
    Parameter,
    Split,
)
from vramcast.operators.activation import LEARNED

_SPLIT_BIASES: Final = (Split.COLUMN, Split.KV, Split.VOCAB)


def linear(
    path: str, rows: int, columns: int, *, split: Split = Split.REPLICATED, bias: bool = False
) -> tuple[Parameter, ...]:
    """`rows x columns` weight (out, in) and, if asked, its bias.

    A bias is divided with the output dimension; behind a row-parallel weight every rank holds all of it.
    """
    weight = Parameter(path=path, shape=(rows, columns), split=split)
    if not bias:
        return (weight,)
    bias_split = split if split in _SPLIT_BIASES else Split.REPLICATED
    return weight, Parameter(path=f"{path}.bias", shape=(rows,), split=bias_split, kind="bias")


def norm(path: str, kind: Norm | None, width: int) -> tuple[Parameter, ...]:
    """The weights a norm over `width` channels owns."""
    if kind is None or kind is Norm.PLAIN:
        return ()
    weight = Parameter(path=f"{path}.weight", shape=(width,), kind="norm")
    if kind is Norm.LAYER:
        return weight, Parameter(path=f"{path}.bias", shape=(width,), kind="norm")
    return (weight,)


def vector(path: str, width: int, *, split: Split = Split.REPLICATED, trainable: bool = True) -> Parameter:
    """One number per head or channel."""
    return Parameter(path=path, shape=(width,), split=split, kind="scalar", trainable=trainable)


def prefixed(prefix: str, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """The same parameters under another path."""
    return tuple(replace(parameter, path=f"{prefix}.{parameter.path}") for parameter in parameters)


def attention_parameters(attention: Attention, *, hidden: int) -> tuple[Parameter, ...]:
    """Projections, biases, query/key norms, sinks and relative biases of one attention."""
    a, g, d = attention.num_heads, attention.num_kv_heads, attention.head_dim
    v = attention.v_head_dim or d
    source = attention.source_width or hidden
    k_bias = attention.qkv_bias if attention.k_bias is None else attention.k_bias
    kv_split = Split.COLUMN if g == a else Split.KV
    q_rows = 2 * a * d if attention.output_gate else a * d
    if attention.q_lora_rank is None:
        found = [*linear("attention.q", q_rows, hidden, split=Split.COLUMN, bias=attention.qkv_bias)]
    else:
        found = [
            *linear("attention.q_a", attention.q_lora_rank, hidden),
            *norm("attention.q_a_norm", Norm.RMS, attention.q_lora_rank),
            *linear("attention.q_b", q_rows, attention.q_lora_rank, split=Split.COLUMN, bias=attention.qkv_bias),
        ]
    if not attention.shared_kv:
        found += linear("attention.k", g * d, source, split=kv_split, bias=k_bias)
        if not attention.k_is_v:
            found += linear("attention.v", g * v, source, split=kv_split, bias=attention.qkv_bias)
    found += _output(attention, hidden, a * v)
    found += _query_key_norms(attention)
    if attention.kv_norm:
        found += norm("attention.kv_norm", Norm.RMS, d)
    if attention.sinks:
        found.append(vector("attention.sinks", a, split=Split.COLUMN))
    if attention.relative_buckets:
        buckets = Parameter(path="attention.relative", shape=(attention.relative_buckets, a), kind="embedding")
        found.append(buckets)
    return tuple(found)


def _output(attention: Attention, hidden: int, width: int) -> tuple[Parameter, ...]:
    if not attention.out_lora_rank:
        return linear("attention.out", hidden, width, split=Split.ROW, bias=attention.out_bias)
    inner = attention.out_groups * attention.out_lora_rank
    narrow = linear("attention.out_a", inner, width // attention.out_groups, split=Split.COLUMN)
    return narrow + linear("attention.out_b", hidden, inner, split=Split.ROW, bias=attention.out_bias)


def _query_key_norms(attention: Attention) -> tuple[Parameter, ...]:
    if attention.qk_norm == "none":
        return ()
    a, g, d, kind = attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.qk_norm_kind
    q_width, k_width = (d, d) if attention.qk_norm == "head" else (a * d, g * d)
    query = norm("attention.q_norm", kind, q_width)
    return query if attention.shared_kv else query + norm("attention.k_norm", kind, k_width)


def latent_parameters(mla: MultiLatentAttention, *, hidden: int) -> tuple[Parameter, ...]:
    """Compressed queries, keys and values, and the lightning indexer of sparse variants."""
    a, d = mla.num_heads, mla.qk_nope_dim + mla.qk_rope_dim
    if mla.q_lora_rank is None:
        found = [*linear("attention.q", a * d, hidden, split=Split.COLUMN)]
    else:
        found = [
            *linear("attention.q_a", mla.q_lora_rank, hidden, bias=mla.bias),
            *norm("attention.q_a_norm", Norm.RMS, mla.q_lora_rank),
            *linear("attention.q_b", a * d, mla.q_lora_rank, split=Split.COLUMN),
        ]
    found += linear("attention.kv_a", mla.kv_lora_rank + mla.qk_rope_dim, hidden, bias=mla.bias)
    found += norm("attention.kv_a_norm", Norm.RMS, mla.kv_lora_rank)
    found += linear("attention.kv_b", a * (mla.qk_nope_dim + mla.v_head_dim), mla.kv_lora_rank, split=Split.COLUMN)
    found += linear("attention.out", hidden, a * mla.v_head_dim, split=Split.ROW, bias=mla.bias)
    if mla.indexer_heads:
        i, d_i = mla.indexer_heads, mla.indexer_dim
        found += linear("indexer.q", i * d_i, mla.q_lora_rank or hidden)
        found += linear("indexer.k", d_i, hidden)
        found += norm("indexer.k_norm", Norm.LAYER, d_i)
        found += linear("indexer.weights", i, hidden)
    return tuple(found)


def _convolution(channels: int, kernel: int, *, bias: bool) -> tuple[Parameter, ...]:
    weight = Parameter(path="mamba.conv", shape=(channels, 1, kernel), split=Split.COLUMN, kind="conv")
    if not bias:
        return (weight,)
    return weight, Parameter(path="mamba.conv.bias", shape=(channels,), split=Split.COLUMN, kind="bias")


def _mamba1(mamba: Mamba, hidden: int) -> tuple[Parameter, ...]:
    i, n, r = mamba.inner_dim, mamba.state_dim, mamba.dt_rank
    found = [
        *linear("mamba.in", 2 * i, hidden, split=Split.COLUMN, bias=mamba.proj_bias),
        *_convolution(i, mamba.conv_kernel, bias=mamba.conv_bias),
        *linear("mamba.x", r + 2 * n, i, split=Split.ROW),
        *linear("mamba.dt", i, r, split=Split.COLUMN, bias=True),
        Parameter(path="mamba.a_log", shape=(i, n), split=Split.COLUMN, kind="scalar"),
        vector("mamba.d", i, split=Split.COLUMN),
        *linear("mamba.out", hidden, i, split=Split.ROW, bias=mamba.proj_bias),
    ]
    if mamba.inner_norms:
        found += (
            norm("mamba.dt_norm", Norm.RMS, r) + norm("mamba.b_norm", Norm.RMS, n) + norm("mamba.c_norm", Norm.RMS, n)
        )
    return tuple(found)


def _mamba2(mamba: Mamba, hidden: int) -> tuple[Parameter, ...]:
    i, heads = mamba.inner_dim, mamba.num_heads
    states = 2 * mamba.num_groups * mamba.state_dim
    gated = Parameter(path="mamba.norm.weight", shape=(i,), split=Split.COLUMN, kind="norm")
    return (
        *linear("mamba.in", 2 * i + states + heads, hidden, split=Split.COLUMN, bias=mamba.proj_bias),
        *_convolution(i + states, mamba.conv_kernel, bias=mamba.conv_bias),
        vector("mamba.dt_bias", heads, split=Split.COLUMN),
        vector("mamba.a_log", heads, split=Split.COLUMN),
        vector("mamba.d", heads, split=Split.COLUMN),
        *((gated,) if mamba.gated_norm else ()),
        *linear("mamba.out", hidden, i, split=Split.ROW, bias=mamba.proj_bias),
    )


def linear_attention_parameters(mixer: LinearAttention, *, hidden: int) -> tuple[Parameter, ...]:
    """Weights of a gated delta net, Kimi delta attention, lightning attention or gated convolution layer."""
    heads, rank = mixer.num_v_heads, mixer.v_head_dim
    keys, values = mixer.num_k_heads * mixer.k_head_dim, heads * mixer.v_head_dim

    def columns(widths: Mapping[str, int], inputs: int = hidden) -> tuple[Parameter, ...]:
        return tuple(w for name, rows in widths.items() for w in linear(name, rows, inputs, split=Split.COLUMN))

    def convolutions(channels: Mapping[str, int]) -> tuple[Parameter, ...]:
        kernel = (1, mixer.conv_kernel)
        return tuple(
            Parameter(path=name, shape=(width, *kernel), split=Split.COLUMN, kind="conv")
            for name, width in channels.items()
        )

    def vectors(widths: Mapping[str, int]) -> tuple[Parameter, ...]:
        return tuple(vector(name, width, split=Split.COLUMN) for name, width in widths.items())

    queries = {"q": keys, "k": keys, "v": values}
    match mixer.variant:
        case "gated_delta":
            found = (
                *columns(queries | {"gate": values, "beta": heads, "decay": heads}),
                *convolutions({"conv": 2 * keys + values}), *vectors({"dt_bias": heads, "a_log": heads}),
                *norm("norm", Norm.RMS, rank),
            )
        case "kimi_delta":
            found = (
                *columns(queries), *convolutions({f"{name}_conv": width for name, width in queries.items()}),
                *vectors({"a_log": mixer.num_k_heads, "dt_bias": keys}),
                *linear("decay_a", rank, hidden), *columns({"decay_b": keys}, rank), *columns({"beta": heads}),
                *linear("gate_a", rank, hidden), *columns({"gate_b": values}, rank), *norm("norm", Norm.RMS, rank),
            )
        case "lightning":
            found = (*columns(queries | {"gate": values}), *norm("norm", Norm.RMS, values))
        case "short_conv":
            found = (*columns({"in": 3 * values}), *convolutions({"conv": values}))
    return prefixed("linear_attention", (*found, *linear("out", hidden, values, split=Split.ROW)))


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
            return _mamba1(mixer, hidden) if mixer.version == 1 else _mamba2(mixer, hidden)
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
        hidden: width of the residual stream, H

    Returns: parameters in the order of use, paths unique within the layer
    """
    found = list(_norm_parameters(layer, hidden))
    if layer.mixer is not None:
        found += mixer_parameters(layer.mixer, hidden=hidden)
    if layer.beside is not None:
        found += mixer_parameters(layer.beside, hidden=hidden)
    if layer.cross_attention is not None:
        found += prefixed("cross", attention_parameters(layer.cross_attention, hidden=hidden))
    if layer.channel is not None:
        found += channel_parameters(layer.channel, hidden=hidden)
    found += layer.extra
    if layer.extra_parameters:
        found.append(vector("unlisted", layer.extra_parameters))
    return tuple(found)
