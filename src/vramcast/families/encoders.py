"""BERT and its kin: bidirectional encoders that norm after the sum.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import linear
from vramcast.domain.model import MLP, Attention, Head, Layer, Model, Norm, Parameter, Run, Stack
from vramcast.families.assemble import attention_of, dtype_of, head_of, model_of
from vramcast.families.fields import Fields


def _layer(fields: Fields, extra: tuple[Parameter, ...] = ()) -> Layer:
    attention = attention_of(fields, fields.count("hidden_size"), qkv_bias=True, out_bias=True, rope=False)
    activation = fields.activation("hidden_act", "activation", fallback="gelu")
    mlp = MLP(width=fields.count("intermediate_size"), gated=False, activation=activation, bias=True)
    return Layer(mixer=attention, channel=mlp, norm=Norm.LAYER, norm_placement="post", extra=extra)


def _encoder(fields: Fields, layer: Layer, *, extra: tuple[Parameter, ...] = (), **facts: Any) -> Model:
    stack = Stack(
        name="encoder",
        hidden=fields.count("hidden_size"),
        runs=(Run(count=fields.layers(), layer=layer),),
        final_norm=None,
        embedding_norm=Norm.LAYER,
        positions=fields.count("max_position_embeddings") if facts.pop("positions", True) else 0,
        token_types=fields.natural("type_vocab_size", 0),
        embedding_width=facts.get("embedding_width"),
        causal=False,
        extra=extra,
    )
    return model_of(fields, stacks=(stack,), dtype=dtype_of(fields, "fp32"), head_bias=True, **facts)


def bert(fields: Fields, *, pooled: frozenset[Head] = frozenset((Head.NONE, Head.CLASSIFIER))) -> Model:
    """BERT, RoBERTa, XLM-R; the masked-word head works without the pooler."""
    fields = fields.behind({"tie_word_embeddings": True, "hidden_dropout": 0.1, "attention_dropout": 0.1})
    return _encoder(fields, _layer(fields), head=Head.MLM, pooler=head_of(fields, Head.MLM) in pooled)


def distilbert(fields: Fields) -> Model:
    """DistilBERT: no token types and no pooler."""
    fields = fields.behind({"tie_word_embeddings": True, "hidden_dropout": 0.1, "attention_dropout": 0.1})
    return _encoder(fields.over({"type_vocab_size": 0}), _layer(fields), head=Head.MLM)


def electra(fields: Fields) -> Model:
    """ELECTRA: the embedding is narrower than the layers."""
    fields = fields.behind({"tie_word_embeddings": True, "hidden_dropout": 0.1, "attention_dropout": 0.1})
    width = fields.count("embedding_size", fields.count("hidden_size"))
    return _encoder(fields, _layer(fields), head=Head.NONE, embedding_width=width, embedding_projection_bias=True)


def deberta_v2(fields: Fields) -> Model:
    """DeBERTa 2 and 3: relative embeddings shared by all layers, positions in the scores only."""
    fields = fields.behind({"tie_word_embeddings": True, "hidden_dropout": 0.1, "attention_dropout": 0.1})
    hidden = fields.count("hidden_size")
    extra: tuple[Parameter, ...] = ()
    per_layer: tuple[Parameter, ...] = ()
    if fields.flag("relative_attention"):
        buckets = fields.maybe("position_buckets") or fields.maybe("max_relative_positions")
        rows = 2 * (buckets or fields.count("max_position_embeddings"))
        extra += (Parameter(path="relative.embedding", shape=(rows, hidden), kind="embedding"),)
        if "layer_norm" in fields.word("norm_rel_ebd", "none"):
            extra += tuple(
                Parameter(path=f"relative.norm.{name}", shape=(hidden,), kind="norm") for name in ("weight", "bias")
            )
        if not fields.flag("share_att_key"):
            per_layer = _position_projections(fields, hidden)
    kernel = fields.natural("conv_kernel_size", 0)
    if kernel:
        extra += (
            Parameter(path="convolution", shape=(hidden, hidden, kernel), kind="conv"),
            Parameter(path="convolution.bias", shape=(hidden,), kind="bias"),
            *(Parameter(path=f"convolution.norm.{name}", shape=(hidden,), kind="norm") for name in ("weight", "bias")),
        )
    absolute = fields.flag("position_biased_input", fallback=True)
    return _encoder(fields, _layer(fields, per_layer), extra=extra, head=Head.MLM, positions=absolute)


def deberta(fields: Fields) -> Model:
    """DeBERTa 1: keys without a bias, one table of relative positions, its projections in every layer."""
    fields = fields.behind({"tie_word_embeddings": True, "hidden_dropout": 0.1, "attention_dropout": 0.1})
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


def _position_projections(fields: Fields, hidden: int) -> tuple[Parameter, ...]:
    named = _position_kinds(fields)
    found: tuple[Parameter, ...] = ()
    for name, wanted in (("k", "c2p"), ("q", "p2c")):
        if wanted in named:
            found += (
                Parameter(path=f"attention.position_{name}", shape=(hidden, hidden)),
                Parameter(path=f"attention.position_{name}.bias", shape=(hidden,), kind="bias"),
            )
    return found


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "bert": bert,
    "roberta": bert,
    "xlm-roberta": bert,
    "camembert": bert,
    "distilbert": distilbert,
    "electra": electra,
    "deberta": deberta,
    "deberta-v2": deberta_v2,
}
