"""Text encoders as ggml graphs.

[clip] leejet/stable-diffusion.cpp clip.hpp `CLIPTextModel::forward`; [t5] t5.hpp `T5Stack::forward`, both at 10c6501
"""

from __future__ import annotations

from vramcast.domain.model import MLP, Attention, Layer, Model
from vramcast.engines.ggml.ops import cont, get_rows, permute, reshape
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.stable_diffusion_cpp.attention import attend, heads_first
from vramcast.engines.stable_diffusion_cpp.ops import (
    activation,
    add,
    in_place,
    layer_norm,
    leaf,
    linear,
    rms_norm,
    weight,
)


def text_graph(model: Model, *, tokens: int) -> Tensor:
    """Hidden states of one prompt."""
    layers = model.main.layers
    mixer = layers[0].mixer
    if isinstance(mixer, Attention) and mixer.position_bias == "relative":
        return _t5(model, layers, tokens)
    return _clip(model, layers, tokens)


def _embedded(model: Model, tokens: int) -> Tensor:
    return reshape(get_rows(weight(model.hidden, model.vocab), leaf(tokens, dtype="i32")), model.hidden, tokens)


def _clip(model: Model, layers: tuple[Layer, ...], tokens: int) -> Tensor:
    x = add(_embedded(model, tokens), weight(model.hidden, tokens))
    for layer in layers:
        x = add(x, _attention(layer_norm(x), layer, bias=True, causal=True))
        width = layer.channel.width if isinstance(layer.channel, MLP) else 0
        x = add(x, linear(activation(linear(layer_norm(x), width)), model.hidden))
    return layer_norm(x)


def _t5(model: Model, layers: tuple[Layer, ...], tokens: int) -> Tensor:
    mixer = layers[0].mixer
    heads = mixer.num_heads if isinstance(mixer, Attention) else 1
    buckets = leaf(tokens * tokens, dtype="i32")
    values = reshape(get_rows(weight(heads, 32), buckets), heads, tokens, tokens)
    positions = cont(permute(values, 2, 0, 1, 3))
    x = _embedded(model, tokens)
    for layer in layers:
        x = in_place("add", _attention(rms_norm(x), layer, bias=False, mask=positions), x)
        width = layer.channel.width if isinstance(layer.channel, MLP) else 0
        normed = rms_norm(x)
        gate = activation(linear(normed, width, bias=False))
        inner = in_place("mul", gate, linear(normed, width, bias=False))
        x = in_place("add", linear(inner, model.hidden, bias=False), x)
    return rms_norm(x)


def _attention(
    x: Tensor, layer: Layer, *, bias: bool, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    assert isinstance(layer.mixer, Attention)
    heads, hidden = layer.mixer.num_heads, x.ne[0]
    q, k, v = (linear(x, heads * layer.mixer.head_dim, bias=bias) for _ in range(3))
    if mask is not None:
        k = in_place("scale", k)
    width, length, batch = v.ne[:3]
    apart = reshape(v, width // heads, heads, length, batch)
    y = attend(heads_first(q, heads), heads_first(k, heads), apart, heads, mask=mask, causal=causal)
    return linear(y, hidden, bias=bias)
