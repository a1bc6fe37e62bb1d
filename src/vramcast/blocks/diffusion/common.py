"""What networks of diffusion pipelines share: weights by layer, sizes of a step, and recurring pieces of forward code.

[embeddings] huggingface/diffusers models/embeddings.py `apply_rotary_emb`
[normalization] huggingface/diffusers models/normalization.py
[attention] huggingface/diffusers models/attention.py `FeedForward`, models/activations.py

Which module writes a network's weights and forward, and what diffusers calls the linears that adapters are put on.

[peft] huggingface/peft tuners/tuners_utils.py `check_target_module_exists`: a target is a module's name or its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import SD3, Autoencoder, Denoiser, OmniGen
from vramcast.operators.eager import Array, Tape
from vramcast.units import FP32

Weights = Iterator[tuple[str, Parameter, int]]
"""Owner, weight, and how many equal ones there are. Embedders and outputs are what converters leave unquantised."""

EMBEDDERS = "embedders"
OUTPUT = "output"


class Step(NamedTuple):
    """Sizes of one forward."""

    batch: int  # images or videos, twice as many under classifier-free guidance
    frames: int  # of the latent
    height: int
    width: int
    tokens: int  # of text
    itemsize: int  # of activations [bytes]


class Network(NamedTuple):
    """How a class of diffusers is written."""

    source: str
    parameters: Callable[[Any], Weights]
    forward: Callable[..., Array]
    buffers: Callable[[Any], int] = lambda _: 0  # elements of tables that move with the weights


def linear(path: str, in_features: int, out_features: int, *, bias: bool = True) -> tuple[Parameter, ...]:
    """Weight and bias of a linear."""
    weight = Parameter(path=f"{path}.weight", shape=(out_features, in_features))
    return (weight, vector(f"{path}.bias", out_features)) if bias else (weight,)


def vector(path: str, size: int) -> Parameter:
    """A bias, a norm's weight, a table's row."""
    return Parameter(path=path, shape=(size,), kind="bias")


def norm(path: str, width: int, *, bias: bool = False) -> tuple[Parameter, ...]:
    """Weight and bias of a norm."""
    weight = Parameter(path=f"{path}.weight", shape=(width,), kind="norm")
    return (weight, vector(f"{path}.bias", width)) if bias else (weight,)


def conv(path: str, in_channels: int, out_channels: int, *kernel: int, bias: bool = True) -> tuple[Parameter, ...]:
    """Weight and bias of a convolution."""
    weight = Parameter(path=f"{path}.weight", shape=(out_channels, in_channels, *kernel), kind="conv")
    return (weight, vector(f"{path}.bias", out_channels)) if bias else (weight,)


def embedder(path: str, in_features: int, width: int) -> tuple[Parameter, ...]:
    """Two linears, as timesteps and pooled texts pass."""
    return (*linear(f"{path}.1", in_features, width), *linear(f"{path}.2", width, width))


def square(
    prefix: str, width: int, names: Iterable[str] = ("q", "k", "v", "out"), *, bias: bool = True
) -> tuple[Parameter, ...]:
    """Linears as wide as their input: those of attention where nothing else is said."""
    return tuple(part for name in names for part in linear(f"{prefix}{name}", width, width, bias=bias))


def query_key_norms(prefix: str, width: int, *, bias: bool = False) -> tuple[Parameter, ...]:
    return (*norm(f"{prefix}norm_q", width, bias=bias), *norm(f"{prefix}norm_k", width, bias=bias))


def feed_forward_weights(prefix: str, width: int, inner: int) -> tuple[Parameter, ...]:
    """Those of `feed_forward`."""
    return (*linear(f"{prefix}ff.up", width, inner), *linear(f"{prefix}ff.down", inner, width))


def each(owner: str, parameters: Iterable[Parameter], count: int = 1) -> Weights:
    return ((owner, parameter, count) for parameter in parameters)


def position_elements(spec: SD3 | OmniGen) -> int:
    """Elements of the table of positions that moves with the weights."""
    return spec.pos_embed_max_size**2 * spec.hidden


def modulated(tape: Tape, x: Array, name: str = "modulated") -> Array:
    """norm(x) * (1 + scale) + shift, one operator at a time [normalization]."""
    normed = tape.layer_norm(x, f"{name}.norm")
    scaled = gated(tape, normed, f"{name}.scaled")
    del normed
    return tape.add(scaled, name=name)


def gated(tape: Tape, x: Array, name: str = "sum") -> Array:
    """x times a vector of the step's embedding."""
    return tape.multiply(x, tape.modulation(x), name=name)


def gated_residual(tape: Tape, x: Array, part: Array, name: str = "hidden") -> Array:
    """x + gate * part."""
    return tape.add(x, gated(tape, part, f"{name}.gated"), name=name)


def rotated(tape: Tape, x: Array) -> Array:
    """Rotary positions in fp32 [embeddings]: x * cos + turned x * sin, both products whole fp32 tensors."""
    first, second = x.chunk(2)
    negated = tape.multiply(second, name="rope.negated")
    turned = tape.cat((negated, first), -1, "rope.turned")
    del negated, first, second
    first = tape.multiply(tape.cast(x, FP32, "rope.fp32"), name="rope.cos")
    second = tape.multiply(tape.cast(turned, FP32, "rope.fp32"), name="rope.sin")
    total = tape.add(first, second, name="rope.sum")
    del first, second
    return tape.cast(total, x.width, "rotated")


def rotated_complex(tape: Tape, x: Array) -> Array:
    """Rotary positions as complex numbers: one fp32 copy, one product."""
    product = tape.multiply(tape.cast(x, FP32, "rope.fp32"), name="rope.product")
    return tape.cast(product, x.width, "rotated")


def feed_forward(tape: Tape, x: Array, width: int, name: str = "ff") -> Array:
    """Linear, activation, linear [attention]."""
    inner = tape.linear(x, width, f"{name}.up")
    inner = tape.activation(inner, f"{name}.activated")
    return tape.linear(inner, x.shape[-1], f"{name}.down")


def geglu(tape: Tape, x: Array, width: int, name: str = "ff") -> Array:
    """One projection to value and gate, gelu of the gate, their product, and the way back [attention]."""
    both = tape.linear(x, 2 * width, f"{name}.projection")
    value, gate = both.chunk(2)
    inner = tape.multiply(value, tape.activation(gate, f"{name}.gelu"), name=f"{name}.inner")
    del both, value, gate
    return tape.linear(inner, x.shape[-1], f"{name}.down")


def swiglu(tape: Tape, x: Array, width: int, name: str = "ff") -> Array:
    """down(silu(gate(x)) * up(x))."""
    gate = tape.activation(tape.linear(x, width, f"{name}.gate"), f"{name}.activated")
    inner = tape.multiply(gate, tape.linear(x, width, f"{name}.up"), name=f"{name}.inner")
    del gate
    return tape.linear(inner, x.shape[-1], f"{name}.down")


def run_residual(tape: Tape, x: Array, width: int, steps: Array | None = None) -> Array:
    """Two group norms and convolutions, between them a shift by the step's embedding where there is one."""
    return tape.block(partial(_residual, tape, width), x, *(() if steps is None else (steps,)))[0]


def _residual(tape: Tape, width: int, x: Array, steps: Array | None = None) -> tuple[Array]:
    y = tape.group_norm(x, "norm1")
    y = tape.activation(y)
    y = tape.conv(y, width, name="conv1")
    if steps is not None:
        shift = tape.linear(tape.activation(steps), width, "time_emb_proj")
        y = tape.add(y, shift)
    y = tape.group_norm(y, "norm2")
    y = tape.activation(y)
    y = tape.conv(y, width, name="conv2")
    if x.shape[1] != width:
        x = tape.conv(x, width, kernel=1, padding=0, name="shortcut")
    total = tape.add(x, y)
    return (tape.multiply(total, name="hidden"),)


def heads_of(x: Array, heads: int) -> Array:
    """(B, S, H) as (B, S, heads, D)."""
    batch, length, hidden = x.shape
    return x.view(batch, length, heads, hidden // heads)


def merged(x: Array) -> Array:
    """(B, S, heads, D) as (B, S, H)."""
    batch, length, heads, width = x.shape
    return x.view(batch, length, heads * width)


def projections(tape: Tape, x: Array, width: int, prefix: str = "attention") -> tuple[Array, Array, Array]:
    """Queries, keys and values of separate linears."""
    q, k, v = (tape.linear(x, width, f"{prefix}.{name}") for name in "qkv")
    return q, k, v


def joint_attention(
    tape: Tape, image: Array, text: Array, heads: int, norm: Callable[[Array], Array] = lambda part: part, *,
    text_first: bool = True, rotates: bool = False,
) -> tuple[Array, Array]:
    """What both streams make of attention over both, behind a projection of each.

    Args:
        norm: of queries and keys
        text_first: its tokens stand before the image's
        rotates: queries and keys turn by their positions, the text's too
    """
    hidden = image.shape[-1]
    q, k, v = (heads_of(part, heads) for part in projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (heads_of(part, heads) for part in projections(tape, text, hidden, "text"))
    q, k, text_q, text_k = (norm(part) for part in (q, k, text_q, text_k))
    order = -1 if text_first else 1
    q, k, v = (tape.cat(pair[::order], 1) for pair in ((q, text_q), (k, text_k), (v, text_v)))
    if rotates:
        q = rotated(tape, q)
        k = rotated(tape, k)
    both = merged(tape.attention(q, k, v))
    part = tape.linear(both.view(*image.shape), hidden, "image.out")
    return part, tape.linear(both.view(*text.shape), hidden, "text.out")


def layers(tape: Tape, owner: str, count: int, body: Callable[..., tuple[Array, ...]], streams: list[Array]) -> None:
    """`streams = body(*streams)` for every layer of a part of the network."""
    with tape.owned(f"denoiser.{owner}"):
        tape.repeat(count, body, streams)


MODULES: Final[dict[str, str]] = {
    "UNet2DConditionModel": "unet",
    "FluxTransformer2DModel": "flux",
    "Flux2Transformer2DModel": "flux",
    "QwenImageTransformer2DModel": "flux",
    "SD3Transformer2DModel": "joint",
    "AuraFlowTransformer2DModel": "joint",
    "CogVideoXTransformer3DModel": "video",
    "HunyuanVideoTransformer3DModel": "video",
    "WanTransformer3DModel": "video",
    "PixArtTransformer2DModel": "single",
    "OmniGenTransformer2DModel": "single",
    "ZImageTransformer2DModel": "single",
    "Lumina2Transformer2DModel": "lumina",
    "AutoencoderKL": "autoencoder_kl",
    "AutoencoderKLCogVideoX": "autoencoder_cogvideox",
    "AutoencoderKLHunyuanVideo": "autoencoder_hunyuan_video",
    "AutoencoderKLWan": "autoencoder_wan",
}
"""Class of diffusers -> module of this package whose `NETWORKS` has it; imported when its network is asked for."""


def network_of(network: Denoiser | Autoencoder) -> Network:
    tag = str(network.__struct_config__.tag)
    found: Network = import_module(f"vramcast.blocks.diffusion.{MODULES[tag]}").NETWORKS[tag]
    return found


def weights_of(network: Denoiser | Autoencoder) -> Weights:
    return network_of(network).parameters(network)


def buffer_elements(network: Denoiser | Autoencoder) -> int:
    """Elements of tables that move with the weights."""
    return network_of(network).buffers(network)


def count_elements(network: Denoiser | Autoencoder) -> int:
    return sum(parameter.elements * count for _, parameter, count in weights_of(network))


_ATTENTION: Final = {"q": "to_q", "k": "to_k", "v": "to_v", "out": "to_out.0"}
_ADDED: Final = {"q": "add_q_proj", "k": "add_k_proj", "v": "add_v_proj", "out": "to_add_out"}
_FF: Final = {"up": "net.0.proj", "down": "net.2"}


def _under(prefix: str, module: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}{name}": f"{module}.{theirs}" for name, theirs in names.items()}


_STREAMS: Final = {
    **_under("image.", "transformer_blocks.attn", _ATTENTION), **_under("text.", "transformer_blocks.attn", _ADDED),
    **_under("image.ff.", "transformer_blocks.ff", _FF), **_under("text.ff.", "transformer_blocks.ff_context", _FF),
}
_VIDEO: Final = {name.replace("image.", "video."): path for name, path in _STREAMS.items()}
_SINGLE: Final = {
    **_under("attention.", "single_transformer_blocks.attn", {name: _ATTENTION[name] for name in "qkv"}),
    "proj_mlp": "single_transformer_blocks.proj_mlp", "proj_out": "single_transformer_blocks.proj_out",
}

PATHS: Final[dict[str, dict[str, str]]] = {
    "UNet2DConditionModel": {
        **_under("", "transformer_blocks.attn", _ATTENTION), "ff.projection": "transformer_blocks.ff.net.0.proj",
        "ff.down": "transformer_blocks.ff.net.2", "proj_in": "attentions.proj_in", "proj_out": "attentions.proj_out",
        "conv1": "resnets.conv1", "conv2": "resnets.conv2", "shortcut": "resnets.conv_shortcut",
        "time_emb_proj": "resnets.time_emb_proj", "downsampled": "downsamplers.0.conv",
        "upsampled.conv": "upsamplers.0.conv",
    },
    "FluxTransformer2DModel": {
        **_STREAMS, **_SINGLE, "x_embedder": "x_embedder", "context_embedder": "context_embedder",
    },
    "Flux2Transformer2DModel": {
        **{name: path for name, path in _STREAMS.items() if ".ff." not in name},
        **_under("image.ff.", "transformer_blocks.ff", {"in": "linear_in", "out": "linear_out"}),
        **_under("text.ff.", "transformer_blocks.ff_context", {"in": "linear_in", "out": "linear_out"}),
        "qkv_mlp": "single_transformer_blocks.attn.to_qkv_mlp_proj", "out": "single_transformer_blocks.attn.to_out",
        "x_embedder": "x_embedder", "context_embedder": "context_embedder",
    },
    "SD3Transformer2DModel": {
        **_STREAMS, **_under("second.", "transformer_blocks.attn2", _ATTENTION),
        "context_embedder": "context_embedder",
    },
    "QwenImageTransformer2DModel": {
        **{name: path for name, path in _STREAMS.items() if ".ff." not in name},
        **_under("image.ff.", "transformer_blocks.img_mlp", _FF),
        **_under("text.ff.", "transformer_blocks.txt_mlp", _FF),
    },
    "HunyuanVideoTransformer3DModel": {**_VIDEO, **_SINGLE},
    "CogVideoXTransformer3DModel": {
        **_under("attention.", "transformer_blocks.attn1", {name: _ATTENTION[name] for name in "qkv"}),
        "out": "transformer_blocks.attn1.to_out.0", **_under("ff.", "transformer_blocks.ff", _FF),
    },
    "WanTransformer3DModel": {
        **_under("attention.", "blocks.attn1", {name: _ATTENTION[name] for name in "qkv"}),
        "out": "blocks.attn1.to_out.0", **_under("cross.", "blocks.attn2", _ATTENTION),
        **_under("ff.", "blocks.ffn", _FF),
    },
    "ZImageTransformer2DModel": {
        **_under("attention.", "layers.attention", {name: _ATTENTION[name] for name in "qkv"}),
        "out": "layers.attention.to_out.0", "ff.gate": "layers.feed_forward.w1", "ff.up": "layers.feed_forward.w3",
        "ff.down": "layers.feed_forward.w2",
    },
    "Lumina2Transformer2DModel": {
        **_under("attention.", "layers.attn", {name: _ATTENTION[name] for name in "qkv"}),
        "out": "layers.attn.to_out.0", "ff.gate": "layers.feed_forward.linear_1",
        "ff.up": "layers.feed_forward.linear_3", "ff.down": "layers.feed_forward.linear_2",
    },
    "CLIPTextModel": {
        **_under("attention.", "self_attn", {name: f"{name}_proj" for name in "qkv"}), "out": "self_attn.out_proj",
        "ff.up": "mlp.fc1", "ff.down": "mlp.fc2",
    },
}
"""Class -> name on a tape -> module, its layer's number left out."""


def adapted(network: str, targets: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names on a tape that targets name, and the targets that name none."""
    paths, wanted = PATHS[network], tuple(targets)
    found = {target: {name for name, path in paths.items() if f".{path}".endswith(f".{target}")} for target in wanted}
    names = frozenset(name for hits in found.values() for name in hits)
    return names, tuple(target for target, hits in found.items() if not hits)


def adapts(names: frozenset[str]) -> Callable[[str], bool]:
    return names.__contains__
