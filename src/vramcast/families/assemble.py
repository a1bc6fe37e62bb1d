"""What every family shares: attention, windows, stacks, how weights are packed, and the facts beside the stacks.

Keys of `quantization_config` per method: transformers v5.23.0, src/transformers/utils/quantization_config.py; modelopt
and compressed-tensors write `quant_algo` and `config_groups`.

The decoder that most language models are, with what differs between families as a record of traits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from vramcast.domain.model import MLP, Attention, Channel, Head, Layer, Mixer, Model, Norm, Run, Stack, VisionEmbedding
from vramcast.errors import InvalidSpec
from vramcast.families.fields import Fields

BY_BITS: Final = frozenset({"gptq", "awq", "auto-round", "autoround", "eetq", "hqq", "quanto", "vptq", "aqlm"})
"""Methods whose storage is an integer of `bits`."""

ALGORITHMS: Final[dict[str, str]] = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "MIXED_PRECISION": "nvfp4",
    "W4A16_AWQ": "int4",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
"""modelopt's `quant_algo` -> storage; mixed precision keeps most of it in 4 bits."""


SMALL_GROUP: Final = 32
"""Weights of 4 bits that share a scale in Kimi K2's own checkpoints and others [count]; 128 is the usual number."""


def quantisation_of(fields: Fields) -> str | None:
    """Storage of the linears: fp8, nvfp4, mxfp4, nf4, int4, int8 ..., the method's own name when unknown, or None."""
    inner = fields.section("quantization_config")
    if inner is None:
        return None
    algorithm = inner.word("quant_algo", "")
    if algorithm:
        return ALGORITHMS.get(algorithm, algorithm.lower())
    method = inner.word("quant_method", "").lower()
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method == "bitsandbytes" or inner.flag("load_in_4bit") or inner.flag("load_in_8bit"):
        return inner.word("bnb_4bit_quant_type", "nf4") if inner.flag("load_in_4bit") else "int8"
    if method in BY_BITS:
        return f"int{inner.count('bits', 4)}"
    if method == "compressed-tensors":
        return _compressed(inner)
    return method or None


def fp8_in_blocks(fields: Fields) -> bool:
    """Whether FP8 has a scale per block: published networks' own, unless they say that activations' scales are fixed.

    Source: transformers FineGrainedFP8Config; vLLM's Fp8Config takes blocks with dynamic activations alone
    """
    inner = fields.section("quantization_config")
    if inner is None:
        return False
    if algorithm := inner.word("quant_algo", ""):
        return algorithm == "FP8_PB_WO"
    if inner.word("quant_method", "").lower() == "compressed-tensors":
        weights = _group(inner)
        return weights is not None and weights.word("strategy", "") == "block"
    return inner.word("quant_method", "").lower() == "fp8" and inner.word("activation_scheme", "dynamic") == "dynamic"


def _group(inner: Fields) -> Fields | None:
    """What compressed-tensors says of the weights of its first group."""
    groups = inner.section("config_groups")
    first = groups.section(groups.keys()[0]) if groups is not None and groups.keys() else None
    return first.section("weights") if first is not None else None


def _compressed(inner: Fields) -> str:
    """The weights' format of the first group."""
    weights = _group(inner)
    if weights is None:
        return "compressed-tensors"
    kind, bits = weights.word("type", "int"), weights.count("num_bits", 8)
    if kind == "float":
        return "fp8" if bits == 8 else "nvfp4"
    if bits != 4 or weights.maybe("group_size") != SMALL_GROUP:
        return f"int{bits}"
    whole = " ".join(inner.words("ignore"))
    return "int4-experts" if all(part in whole for part in ("self_attn", "shared_experts", "mlp")) else "int4-g32"


def runs_of(layers: Iterable[Layer]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for layer in layers:
        if runs and (runs[-1].layer is layer or runs[-1].layer == layer):
            runs[-1] = Run(count=runs[-1].count + 1, layer=runs[-1].layer)
        else:
            runs.append(Run(count=1, layer=layer))
    return tuple(runs)


def layer_words(fields: Fields, key: str, count: int) -> tuple[str, ...]:
    """A list that names the kind of every layer; empty when missing.

    A list cut for printing ("... 48 total" at its end) continues with its own period, and must then agree with
    `<key>_counts` when that is given.
    """
    words = fields.words(key)
    if words and words[-1].startswith("... "):
        words = _continued(fields, key, words[:-1], count)
    if words and len(words) != count:
        raise InvalidSpec("{} of {} lists {} layers, not num_hidden_layers={}", key, fields.name, len(words), count)
    return words


def _continued(fields: Fields, key: str, visible: tuple[str, ...], count: int) -> tuple[str, ...]:
    counts = fields.section(f"{key}_counts")
    for period in range(1, len(visible) + 1):
        if any(word != visible[index % period] for index, word in enumerate(visible)):
            continue
        words = tuple(visible[index % period] for index in range(count))
        if counts is None or all(words.count(kind) == counts.natural(kind) for kind in counts.keys()):  # noqa: SIM118
            return words
    raise InvalidSpec("{} of {} is cut short and cannot be continued; list all {} layers", key, fields.name, count)


DTYPES: Final[dict[str, str]] = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "float8_e4m3fn": "fp8",
    "auto": "bf16",
}

HEADS: Final[dict[str, Head]] = {
    "ForCausalLM": Head.LM,
    "LMHeadModel": Head.LM,
    "ForConditionalGeneration": Head.LM,
    "ForMaskedLM": Head.MLM,
    "ForPreTraining": Head.MLM,
    "ForSequenceClassification": Head.CLASSIFIER,
    "ForTokenClassification": Head.CLASSIFIER,
    "ForImageClassification": Head.CLASSIFIER,
    "ForQuestionAnswering": Head.CLASSIFIER,
    "Model": Head.NONE,
}
"""End of an architecture's class name -> what it puts on the last hidden state."""

WINDOWED: Final = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Layer type -> the key that holds its window."""


def dtype_of(fields: Fields, fallback: str = "bf16") -> str:
    """The number format a checkpoint stores."""
    word = fields.word("torch_dtype", "").removeprefix("torch.")
    if not word:
        return fallback
    if word in DTYPES.values():
        return word
    if word not in DTYPES:
        raise fields.wrong("torch_dtype", "is none of {}", ", ".join(DTYPES))
    return DTYPES[word]


def head_of(fields: Fields, fallback: Head) -> Head:
    """The head that the first known architecture name ends in."""
    for architecture in fields.words("architectures"):
        for ending, head in HEADS.items():
            if architecture.endswith(ending):
                return head
    return fallback


TIED: Final = {"tie_word_embeddings": True}
"""What configs of families with one table leave out."""


def decoder_stack(fields: Fields, layers: Layer | Iterable[Layer], **facts: Any) -> Stack:
    """The decoder of these layers; of `num_hidden_layers` equal ones where it is one."""
    hidden = fields.count("hidden_size")
    runs = (Run(count=fields.layers(), layer=layers),) if isinstance(layers, Layer) else runs_of(layers)
    return Stack(name="decoder", hidden=hidden, runs=runs, **facts)


def vision_stack(
    hidden: int, embedding: VisionEmbedding, *runs: tuple[int, Layer], final_norm: Norm | None = None, **facts: Any
) -> Stack:
    """An image encoder of so many layers of each kind."""
    found = tuple(Run(count=count, layer=layer) for count, layer in runs)
    return Stack(
        name="vision", hidden=hidden, runs=found, final_norm=final_norm, vision=embedding, causal=False, **facts
    )


def heads_of(fields: Fields, hidden: int) -> tuple[int, int, int]:
    """Query heads, key/value heads and head width, which must divide."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    fields.share("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    head_dim = fields.maybe("head_dim") or fields.share("hidden_size", hidden, "num_attention_heads", heads)
    return heads, kv_heads, head_dim


def attention_of(fields: Fields, hidden: int, **facts: Any) -> Attention:
    """Attention from the usual keys; `facts` are the family's own."""
    heads, kv_heads, head_dim = heads_of(fields, hidden)
    return Attention(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, **facts)


def switch(fields: Fields, fact: bool | str) -> bool:
    """A family fact: constant, or the config key that says so."""
    return fields.flag(fact, fallback=False) if isinstance(fact, str) else fact


def windows_of(
    fields: Fields, count: int, rule: int | Literal["none", "all", "qwen"], key: str = "sliding_window"
) -> tuple[int | None, ...]:
    """The attention window of every layer; None is the whole context.

    `layer_types` decides when present. Else the family's rule: an integer n makes every n-th layer global;
    "qwen" windows the layers from `max_window_layers` on when `use_sliding_window` is set.
    """
    kinds = layer_words(fields, "layer_types", count)
    if kinds:
        return tuple(fields.maybe(WINDOWED[kind]) if kind in WINDOWED else None for kind in kinds)
    window = fields.maybe(key)
    if window is None or rule == "none":
        return (None,) * count
    if rule == "all":
        return (window,) * count
    if rule == "qwen":
        first = fields.natural("max_window_layers", count) if fields.flag("use_sliding_window") else count
        return tuple(window if index >= first else None for index in range(count))
    period = fields.count("sliding_window_pattern", rule)
    return tuple(None if (index + 1) % period == 0 else window for index in range(count))


def model_of(fields: Fields, *, stacks: tuple[Stack, ...], head: Head = Head.LM, **facts: Any) -> Model:
    """The model, with vocabulary, tying, context, dropout and dtype from the usual keys."""
    if "vocab" not in facts:
        facts["vocab"] = fields.count("vocab_size")
    facts.setdefault("tied", fields.flag("tie_word_embeddings"))
    facts.setdefault("dtype", dtype_of(fields))
    facts.setdefault("quantisation", quantisation_of(fields))
    facts.setdefault("fp8_blocks", fp8_in_blocks(fields))
    facts.setdefault("rope_scale", rope_scale_of(fields))
    facts.setdefault("family", fields.word("model_type", "custom"))
    found = head_of(fields, head)
    if found is Head.CLASSIFIER:
        labels = fields.get("id2label")
        facts["num_labels"] = fields.count("num_labels", len(labels) if isinstance(labels, Mapping) and labels else 2)
    if fields.flag("tie_word_embeddings") and found not in (Head.LM, Head.MLM):
        facts["tied"] = False
    return Model(
        name=fields.name,
        stacks=stacks,
        head=found,
        context=fields.maybe("max_position_embeddings"),
        hidden_dropout=fields.fraction("hidden_dropout", 0.0),
        attention_dropout=fields.fraction("attention_dropout", 0.0),
        **facts,
    )


def rope_scale_of(fields: Fields) -> float:
    """Positions of a rotary table over `max_position_embeddings`: interpolating scalings lengthen the context."""
    scaling = fields.section("rope_scaling")
    if scaling is None:
        return 1.0
    kind, factor = scaling.word("rope_type", "") or scaling.word("type", ""), scaling.number("factor", 1.0)
    original, trained = scaling.maybe("original_max_position_embeddings"), fields.maybe("max_position_embeddings")
    if kind == "yarn" and original and trained:  # the length is that of the table that is stretched
        return max(1.0, factor * original / trained)
    return max(1.0, factor) if kind in ("linear", "dynamic") else 1.0


def even(fields: Fields, key: str, value: int) -> int:
    """Half of a value that must be even."""
    if value % 2:
        raise InvalidSpec("{}={} of {} must be even", key, value, fields.name)
    return value // 2


ChannelOf = Callable[[Fields, "Traits", int], Channel]
MixerOf = Callable[[Fields, "Traits", int], Mixer]


class Traits(Struct, frozen=True, kw_only=True):
    """What a family decides where its config is silent. A text instead of a bool is the config key that says so."""

    norm: Norm = Norm.RMS
    gated: bool = True
    activation: str = "silu"
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_if: bool | str = True  # whether the query/key norm exists
    qk_norm_kind: Norm = Norm.RMS
    tied: bool = False
    post_norms: bool = False
    placement: Literal["pre", "post", "output"] = "pre"
    parallel: bool | str = False
    shared_input_norm: bool = False
    rope_fraction: float = 1.0
    output_gate: bool = False
    window: int | Literal["none", "all", "qwen"] = "none"
    window_key: str = "sliding_window"
    rope_every: int = 0  # n: every n-th layer has no rotary embedding
    sinks: bool = False
    channel: ChannelOf | None = None
    mixer: MixerOf | None = None
    mtp: bool = False  # reads num_nextn_predict_layers
    mtp_own_tables: bool = False
    positions: Literal["rope", "learned", "alibi"] = "rope"
    embedding_norm: bool = False
    activation_keys: tuple[str, ...] = ("hidden_activation", "hidden_act")


BIASED: Final = Traits(qkv_bias="attention_bias", out_bias="attention_bias")
"""Families whose config says whether projections of attention have biases."""


def mlp_of(fields: Fields, traits: Traits, width: int | None = None) -> MLP:
    activation = fields.activation(*traits.activation_keys, fallback=traits.activation)
    width, bias = width or fields.count("intermediate_size"), switch(fields, traits.mlp_bias)
    return MLP(width=width, gated=traits.gated, activation=activation, bias=bias)


def attention_like(fields: Fields, traits: Traits, window: int | None, *, rope: bool = True) -> Mixer:
    """The family's attention with the window of one layer."""
    rope = rope and traits.positions == "rope"
    return attention_of(
        fields, fields.count("hidden_size"), qkv_bias=switch(fields, traits.qkv_bias),
        out_bias=switch(fields, traits.out_bias), qk_norm_kind=traits.qk_norm_kind, rope=rope, window=window,
        qk_norm=traits.qk_norm if switch(fields, traits.qk_norm_if) else "none",
        position_bias="alibi" if traits.positions == "alibi" else "none",
        rope_fraction=fields.fraction("partial_rotary_factor", traits.rope_fraction),
        softcap=fields.has("attn_logit_softcapping"), sinks=traits.sinks,
        output_gate=traits.output_gate,
    )


def layer_like(traits: Traits, mixer: Mixer | None, channel: Channel | None, *, parallel: bool = False) -> Layer:
    return Layer(
        mixer=mixer, channel=channel, norm=traits.norm, post_norms=traits.post_norms, norm_placement=traits.placement,
        parallel=parallel, shared_input_norm=parallel and traits.shared_input_norm,
    )


def decoder_layers(fields: Fields, traits: Traits) -> tuple[Layer, ...]:
    count = fields.layers()
    parallel = switch(fields, traits.parallel)
    windows = windows_of(fields, count, traits.window, traits.window_key)
    mixers: dict[tuple[int | None, bool], Mixer] = {}
    dense = None if traits.channel else mlp_of(fields, traits)
    period = fields.natural("no_rope_layer_interval", traits.rope_every)
    layers = []
    for index, window in enumerate(windows):
        rope = period == 0 or (index + 1) % period > 0
        if traits.mixer is not None:
            mixer = traits.mixer(fields, traits, index)
        else:
            mixer = mixers.get((window, rope)) or attention_like(fields, traits, window, rope=rope)
            mixers[window, rope] = mixer
        channel = traits.channel(fields, traits, index) if traits.channel else dense
        layers.append(layer_like(traits, mixer, channel, parallel=parallel))
    return tuple(layers)


def decoder(fields: Fields, *, traits: Traits) -> Model:
    fields = fields.behind({"tie_word_embeddings": traits.tied})
    layers = decoder_layers(fields, traits)
    stack = decoder_stack(
        fields, layers, final_norm=traits.norm, embedding_norm=traits.norm if traits.embedding_norm else None,
        positions=fields.count("max_position_embeddings") if traits.positions == "learned" else 0,
    )
    extra = fields.natural("num_nextn_predict_layers", fields.natural("mtp_num_hidden_layers", 0)) if traits.mtp else 0
    if extra > len(layers):
        raise fields.wrong("num_nextn_predict_layers", "must not exceed num_hidden_layers={}", len(layers))
    return model_of(
        fields, stacks=(stack,), head_bias=switch(fields, traits.head_bias),
        logits_softcap=fields.has("final_logit_softcapping"), mtp_layers=(layers[-1],) * extra,
        mtp_own_embeddings=traits.mtp_own_tables, mtp_own_head=traits.mtp_own_tables,
    )
