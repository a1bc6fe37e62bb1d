"""Encoder-decoder models: T5 and its kin, Whisper.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import MLP, Attention, Head, Layer, Model, Norm, Run, Stack, VisionEmbedding
from vramcast.families.assemble import dtype_of, head_of, model_of
from vramcast.families.fields import Fields

PRETRAINED: Final = 512
"""Positions of T5's samples, which its configs do not name [Raffel et al., arXiv:1910.10683, section 3.1.2]."""


def t5(fields: Fields) -> Model:
    """T5, flan-T5, mT5, UMT5: no biases, relative positions in the scores, one shared embedding."""
    fields = fields.behind({"tie_word_embeddings": True, "hidden_dropout": 0.1})
    fields = fields.behind({"attention_dropout": fields.fraction("hidden_dropout", 0.1)})  # one rate for both
    hidden = fields.count("hidden_size")
    projection = fields.word("feed_forward_proj", "relu")
    gated = projection.startswith("gated-")
    if projection == "gated-gelu":  # T5Config: what the checkpoints mean by it
        projection = "gated-gelu_new"
    activation = fields.over({"feed_forward_proj": projection.removeprefix("gated-")}).activation(
        "feed_forward_proj", fallback="relu"
    )
    heads = fields.count("num_attention_heads")
    attention = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=fields.count("head_dim", 64),
        rope=False,
        position_bias="relative",
    )
    layer = Layer(
        mixer=attention, channel=MLP(width=fields.count("intermediate_size"), gated=gated, activation=activation)
    )
    buckets = fields.count("relative_attention_num_buckets", 32)
    if fields.word("model_type") == "umt5":  # every layer has its own relative positions
        layer = replace(layer, mixer=replace(attention, relative_buckets=buckets))
    encoder = _t5_stack("encoder", hidden, layer, fields.layers(), buckets)
    crossed = replace(layer, cross_attention=replace(attention, position_bias="none"))
    decoder_layers = fields.layers("num_decoder_layers", fields.layers())
    decoder = _t5_stack("decoder", hidden, crossed, decoder_layers, buckets)
    fields = fields.behind({"max_position_embeddings": PRETRAINED})
    if head_of(fields, Head.LM) is Head.NONE and any("Encoder" in name for name in fields.words("architectures")):
        return model_of(fields, stacks=(encoder,), head=Head.NONE, dtype=dtype_of(fields, "fp32"))
    return model_of(fields, stacks=(encoder, decoder), dtype=dtype_of(fields, "fp32"))


def _t5_stack(name: str, hidden: int, layer: Layer, count: int, buckets: int) -> Stack:
    mixer = layer.mixer
    if not isinstance(mixer, Attention):
        raise TypeError(mixer)
    first = replace(layer, mixer=replace(mixer, relative_buckets=buckets))
    runs = (Run(count=1, layer=first), Run(count=count - 1, layer=layer)) if count > 1 else (Run(count=1, layer=first),)
    return Stack(name=name, hidden=hidden, runs=runs, causal=name == "decoder")


def whisper(fields: Fields) -> Model:
    """Whisper: two convolutions over the spectrogram, sinusoids kept as a weight, keys without a bias."""
    fields = fields.behind({"tie_word_embeddings": True})
    hidden = fields.count("hidden_size")
    encoder = Stack(
        name="encoder",
        hidden=hidden,
        runs=(Run(count=fields.layers("encoder_layers"), layer=_whisper_layer(fields, hidden, "encoder")),),
        final_norm=Norm.LAYER,
        vision=VisionEmbedding(
            in_channels=fields.count("num_mel_bins"),
            patch=(),
            bias=True,
            convolutions=((fields.count("num_mel_bins"), hidden, 3), (hidden, hidden, 3)),
        ),
        positions=fields.count("max_source_positions"),
        positions_trained=False,
        causal=False,
    )
    decoder = Stack(
        name="decoder",
        hidden=hidden,
        runs=(Run(count=fields.layers("decoder_layers"), layer=_whisper_layer(fields, hidden, "decoder")),),
        final_norm=Norm.LAYER,
        positions=fields.count("max_target_positions"),
    )
    fields = fields.over({"max_position_embeddings": fields.count("max_target_positions")})
    return model_of(fields, stacks=(encoder, decoder), dtype=dtype_of(fields, "fp32"))


def _whisper_layer(fields: Fields, hidden: int, side: str) -> Layer:
    heads = fields.count(f"{side}_attention_heads")
    attention = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=fields.share("d_model", hidden, f"{side}_attention_heads", heads),
        qkv_bias=True,
        k_bias=False,
        out_bias=True,
        rope=False,
    )
    activation = fields.activation("activation_function", fallback="gelu")
    mlp = MLP(width=fields.count(f"{side}_ffn_dim"), gated=False, activation=activation, bias=True)
    cross = attention if side == "decoder" else None
    return Layer(mixer=attention, channel=mlp, norm=Norm.LAYER, cross_attention=cross)


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {"t5": t5, "mt5": t5, "umt5": t5, "whisper": whisper}
