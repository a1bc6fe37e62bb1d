"""What every family shares: attention, feed-forward, windows, and the facts beside the stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from vramcast.domain.model import Attention, Head, Model, Stack
from vramcast.errors import InvalidSpec
from vramcast.families.fields import Fields
from vramcast.families.quantisation import quantisation_of
from vramcast.families.runs import layer_words

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
        raise fields.wrong("torch_dtype", f"is none of {', '.join(DTYPES)}")
    return DTYPES[word]


def head_of(fields: Fields, fallback: Head) -> Head:
    """The head that the first known architecture name ends in."""
    for architecture in fields.words("architectures"):
        for ending, head in HEADS.items():
            if architecture.endswith(ending):
                return head
    return fallback


def heads_of(fields: Fields, hidden: int, *, kv_key: str = "num_key_value_heads") -> tuple[int, int, int]:
    """Query heads, key/value heads and head width, which must divide."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count(kv_key, heads)
    fields.share("num_attention_heads", heads, kv_key, kv_heads)
    head_dim = fields.maybe("head_dim") or fields.share("hidden_size", hidden, "num_attention_heads", heads)
    return heads, kv_heads, head_dim


def attention_of(fields: Fields, hidden: int, **facts: Any) -> Attention:
    """Attention from the usual keys; `facts` are the family's own."""
    heads, kv_heads, head_dim = heads_of(fields, hidden)
    return Attention(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, **facts)


def switch(fields: Fields, fact: bool | str, *, fallback: bool = False) -> bool:
    """A family fact: constant, or the config key that says so."""
    return fields.flag(fact, fallback=fallback) if isinstance(fact, str) else fact


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
        raise InvalidSpec(f"{key}={value} of {fields.name} must be even")
    return value // 2
