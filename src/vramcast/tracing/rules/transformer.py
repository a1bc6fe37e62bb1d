"""The fast path of torch.nn.TransformerEncoderLayer and MultiheadAttention in eval mode.

Symbols:  B batch   H heads   T tokens   D width of a head   E = H * D
[layer] pytorch aten/src/ATen/native/transformers/transformer.cpp `transformer_encoder_layer_forward`
[attention] pytorch aten/src/ATen/native/transformers/cuda/attention.cu `native_multi_head_attention_cuda`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch

from vramcast.tracing.call import Call, Rule


class Heads(NamedTuple):
    """Weights of one attention and how many heads it has."""

    number: int
    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    projection: torch.Tensor
    bias: torch.Tensor


def encoder_layer(call: Call) -> Any:
    """Attention and feed-forward, each added to its input in place [layer]."""
    if call.device.is_cpu:
        return call.run()
    source, _, heads, *weights = call.args[:7]
    use_gelu, norm_first, eps, *rest = call.args[7:18]
    norms, (up, up_bias, down, down_bias) = (rest[:2], rest[2:4]), rest[4:]

    def norm(x: torch.Tensor, index: int) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.size()[-1:], *norms[index], eps)

    with call.simulation:
        x = norm(source, 0) if norm_first else source
        x = _attended(call, x, Heads(heads, *weights), call.arg(18, "mask")).add_(source)
        x = x if norm_first else norm(x, 0)
        kept = x
        x = norm(x, 1) if norm_first else x
        rows = x.reshape(-1, x.size(-1))
        hidden = torch._addmm_activation(up_bias, rows, up.t(), use_gelu=use_gelu).view(*x.size()[:-1], -1)
        x = torch.nn.functional.linear(hidden, down, down_bias)
        del hidden
        x = x.add_(kept)
        return x if norm_first else norm(x, 1)


def multi_head_attention(call: Call) -> Any:
    """Self-attention without weights asked for; other calls are not fused by torch.nn [attention]."""
    query, key, value = call.args[:3]
    if call.device.is_cpu or not query is key is value or call.arg(10, "need_weights", True):
        return call.run()
    with call.simulation:
        return _attended(call, query, Heads(call.args[4], *call.args[5:9]), call.arg(9, "mask")), None


def _attended(call: Call, x: torch.Tensor, heads: Heads, mask: torch.Tensor | None) -> torch.Tensor:
    """A fused kernel where there is no mask and one takes the call, else scores [attention]."""
    from vramcast.tracing.composites.backends import Backend, Question, chosen  # which asks rules for versions

    batch, tokens, width = x.size()
    shape = batch, heads.number, tokens, width // heads.number
    probe = torch.empty(shape, dtype=x.dtype, device="meta")
    question = Question(probe, probe, probe, mask, 0.0, is_causal=False, enable_gqa=False)
    if mask is None and chosen(question, call.device.sm) in (Backend.FLASH, Backend.EFFICIENT):
        joined = torch.nn.functional.linear(x, heads.qkv, heads.qkv_bias)
        query, key, value = (part.view(batch, tokens, heads.number, -1).transpose(1, 2) for part in joined.chunk(3, -1))
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        out = out.transpose(1, 2).reshape(batch, tokens, width)
        return torch.nn.functional.linear(out, heads.projection, heads.bias)
    joined = torch.matmul(x, heads.qkv.t())
    packed = call.empty((3, *shape), dtype=x.dtype)
    del joined
    query, key, value = packed.unbind(0)
    scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)).view(batch, heads.number, tokens, tokens)
    weights = torch.softmax(scores, -1)
    del scores
    call.simulation.on_meta(
        torch.ops.aten.bmm.default, (weights.flatten(0, 1), value.flatten(0, 1)), {}, call.device
    )  # written over the queries
    del weights
    rows = query.transpose(1, 2).reshape(batch * tokens, width)
    return torch.addmm(heads.bias, rows, heads.projection.t()).view(batch, tokens, width)


RULES: Final[Mapping[str, Rule]] = {
    "aten._native_multi_head_attention": multi_head_attention,
    "aten._transformer_encoder_layer_fwd": encoder_layer,
}
PLAIN: Final = frozenset[str]()
