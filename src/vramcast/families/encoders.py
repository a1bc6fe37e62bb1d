"""BERT and its kin, which norm after the sum; encoder-decoder models: T5 and its kin, Whisper.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import linear
from vramcast.domain.model import MLP, Attention, Head, Layer, Model, Norm, Parameter, Run, Stack, VisionEmbedding
from vramcast.families.assemble import TIED, attention_of, dtype_of, head_of, model_of
from vramcast.families.fields import Fields

BERT: Final = TIED | {"hidden_dropout": 0.1, "attention_dropout": 0.1}
"""What configs of BERT's kin leave out."""


def _layer(fields: Fields, extra: tuple[Parameter, ...] = ()) -> Layer:
    attention = attention_of(fields, fields.count("hidden_size"), qkv_bias=True, out_bias=True, rope=False)
    activation = fields.activation("hidden_act", "activation", fallback="gelu")
    mlp = MLP(width=fields.count("intermediate_size"), gated=False, activation=activation, bias=True)
    return Layer(mixer=attention, channel=mlp, norm=Norm.LAYER, norm_placement="post", extra=extra)


def _encoder(fields: Fields, layer: Layer, *, extra: tuple[Parameter, ...] = (), **facts: Any) -> Model:
    stack = Stack(
        name="encoder", hidden=fields.count("hidden_size"), runs=(Run(count=fields.layers(), layer=layer),),
        final_norm=None, embedding_norm=Norm.LAYER, causal=False, extra=extra,
        positions=fields.count("max_position_embeddings") if facts.pop("positions", True) else 0,
        token_types=fields.natural("type_vocab_size", 0), embedding_width=facts.get("embedding_width"),
    )
    return model_of(fields, stacks=(stack,), dtype=dtype_of(fields, "fp32"), head_bias=True, **facts)


def bert(fields: Fields, *, pooled: frozenset[Head] = frozenset((Head.NONE, Head.CLASSIFIER))) -> Model:
    """BERT, RoBERTa, XLM-R; the masked-word head works without the pooler."""
    fields = fields.behind(BERT)
    return _encoder(fields, _layer(fields), head=Head.MLM, pooler=head_of(fields, Head.MLM) in pooled)


def distilbert(fields: Fields) -> Model:
    """DistilBERT: no token types and no pooler."""
    fields = fields.behind(BERT)
    return _encoder(fields.over({"type_vocab_size": 0}), _layer(fields), head=Head.MLM)


def electra(fields: Fields) -> Model:
    """ELECTRA: the embedding is narrower than the layers."""
    fields = fields.behind(BERT)
    width = fields.count("embedding_size", fields.count("hidden_size"))
    return _encoder(fields, _layer(fields), head=Head.NONE, embedding_width=width, embedding_projection_bias=True)


def deberta_v2(fields: Fields) -> Model:
    """DeBERTa 2 and 3: relative embeddings shared by all layers, positions in the scores only."""
    fields = fields.behind(BERT)
    hidden = fields.count("hidden_size")
    extra: tuple[Parameter, ...] = ()
    per_layer: tuple[Parameter, ...] = ()
    if fields.flag("relative_attention"):
        buckets = fields.maybe("position_buckets") or fields.maybe("max_relative_positions")
        rows = 2 * (buckets or fields.count("max_position_embeddings"))
        extra += (Parameter(path="relative.embedding", shape=(rows, hidden), kind="embedding"),)
        if "layer_norm" in fields.word("norm_rel_ebd", "none"):
            extra += _norm("relative.norm", hidden)
        if not fields.flag("share_att_key"):
            named = _position_kinds(fields)
            wanted = [name for name, kind in (("k", "c2p"), ("q", "p2c")) if kind in named]
            per_layer = tuple(
                part for name in wanted for part in linear(f"attention.position_{name}", hidden, hidden, bias=True)
            )
    kernel = fields.natural("conv_kernel_size", 0)
    if kernel:
        extra += (
            Parameter(path="convolution", shape=(hidden, hidden, kernel), kind="conv"),
            Parameter(path="convolution.bias", shape=(hidden,), kind="bias"), *_norm("convolution.norm", hidden),
        )
    absolute = fields.flag("position_biased_input", fallback=True)
    return _encoder(fields, _layer(fields, per_layer), extra=extra, head=Head.MLM, positions=absolute)


def deberta(fields: Fields) -> Model:
    """DeBERTa 1: keys without a bias, one table of relative positions, its projections in every layer."""
    fields = fields.behind(BERT)
    hidden = fields.count("hidden_size")
    extra: tuple[Parameter, ...] = ()
    per_layer: tuple[Parameter, ...] = ()
    if fields.flag("relative_attention"):
        given = fields.get("max_relative_positions")
        automatic = given is None or (isinstance(given, int) and given < 1)  # -1: as many as there are positions
        rows = 2 * fields.count("max_position_embeddings" if automatic else "max_relative_positions")
        extra = (Parameter(path="relative.embedding", shape=(rows, hidden), kind="embedding"),)
        named = _position_kinds(fields)
        if "c2p" in named:
            per_layer += (Parameter(path="attention.position_k", shape=(hidden, hidden)),)
        if "p2c" in named:
            per_layer += linear("attention.position_q", hidden, hidden, bias=True)
    layer = _layer(fields, per_layer)
    if isinstance(layer.mixer, Attention):
        layer = replace(layer, mixer=replace(layer.mixer, k_bias=False))
    absolute = fields.flag("position_biased_input", fallback=True)
    return _encoder(fields, layer, extra=extra, head=Head.MLM, positions=absolute)


def _position_kinds(fields: Fields) -> str:
    kinds = fields.get("pos_att_type") or ()
    return kinds if isinstance(kinds, str) else " ".join(map(str, kinds)) if isinstance(kinds, list | tuple) else ""


def _norm(path: str, hidden: int) -> tuple[Parameter, ...]:
    return tuple(Parameter(path=f"{path}.{name}", shape=(hidden,), kind="norm") for name in ("weight", "bias"))


PRETRAINED: Final = 512
"""Positions of T5's samples, which its configs do not name [Raffel et al., arXiv:1910.10683, section 3.1.2]."""


def t5(fields: Fields) -> Model:
    """T5, flan-T5, mT5, UMT5: no biases, relative positions in the scores, one shared embedding."""
    fields = fields.behind(TIED | {"hidden_dropout": 0.1})
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
    width = fields.count("head_dim", 64)
    attention = Attention(num_heads=heads, num_kv_heads=heads, head_dim=width, rope=False, position_bias="relative")
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
    fields = fields.behind(TIED)
    hidden = fields.count("hidden_size")
    heard = (Run(count=fields.layers("encoder_layers"), layer=_whisper_layer(fields, hidden, "encoder")),)
    bins = fields.count("num_mel_bins")
    spectrogram = VisionEmbedding(
        in_channels=bins, patch=(), bias=True, convolutions=((bins, hidden, 3), (hidden, hidden, 3))
    )
    encoder = Stack(
        name="encoder", hidden=hidden, runs=heard, final_norm=Norm.LAYER, vision=spectrogram,
        positions=fields.count("max_source_positions"), positions_trained=False, causal=False,
    )
    written = (Run(count=fields.layers("decoder_layers"), layer=_whisper_layer(fields, hidden, "decoder")),)
    decoder = Stack(
        name="decoder", hidden=hidden, runs=written, final_norm=Norm.LAYER,
        positions=fields.count("max_target_positions"),
    )
    fields = fields.over({"max_position_embeddings": fields.count("max_target_positions")})
    return model_of(fields, stacks=(encoder, decoder), dtype=dtype_of(fields, "fp32"))


def _whisper_layer(fields: Fields, hidden: int, side: str) -> Layer:
    heads = fields.count(f"{side}_attention_heads")
    width = fields.share("d_model", hidden, f"{side}_attention_heads", heads)
    attention = Attention(
        num_heads=heads, num_kv_heads=heads, head_dim=width, qkv_bias=True, k_bias=False, out_bias=True, rope=False,
        copies_context=True,
    )
    activation = fields.activation("activation_function", fallback="gelu")
    mlp = MLP(width=fields.count(f"{side}_ffn_dim"), gated=False, activation=activation, bias=True)
    cross = attention if side == "decoder" else None
    return Layer(mixer=attention, channel=mlp, norm=Norm.LAYER, cross_attention=cross)


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), bert), "distilbert": distilbert,
    "electra": electra, "deberta": deberta, "deberta-v2": deberta_v2, **dict.fromkeys(("t5", "mt5", "umt5"), t5),
    "whisper": whisper,
}
