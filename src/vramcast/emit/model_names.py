"""What other tools call a model and its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from vramcast.catalogue.models import known_names, read_entry
from vramcast.domain.model import Model
from vramcast.emit.files import PLACEHOLDER
from vramcast.errors import Unsupported

HUB: Final = re.compile(r"https://(?:huggingface\.co|modelscope\.cn/models)/([\w.-]+/[\w.-]+)")

SPLIT: Final = {
    "attention.q": "q_proj", "attention.k": "k_proj", "attention.v": "v_proj", "attention.out": "o_proj",
    "mlp.gate": "gate_proj", "mlp.up": "up_proj", "mlp.down": "down_proj",
    "embedding": "embed_tokens", "head": "lm_head",
}
"""Modules of Llama's code in transformers, and of what is modelled on it."""

FUSED: Final = SPLIT | {
    "attention.q": "qkv_proj", "attention.k": "qkv_proj", "attention.v": "qkv_proj",
    "mlp.gate": "gate_up_proj", "mlp.up": "gate_up_proj",
}

GPT2: Final = {
    "attention.q": "c_attn", "attention.k": "c_attn", "attention.v": "c_attn", "attention.out": "attn.c_proj",
    "mlp.up": "c_fc", "mlp.down": "mlp.c_proj", "embedding": "wte", "head": "lm_head",
}

NEOX: Final = {
    "attention.q": "query_key_value", "attention.k": "query_key_value", "attention.v": "query_key_value",
    "attention.out": "attention.dense", "mlp.up": "dense_h_to_4h", "mlp.down": "dense_4h_to_h",
    "embedding": "embed_in", "head": "embed_out",
}

BERT: Final = {"attention.q": "query", "attention.k": "key", "attention.v": "value"}
T5: Final = {"attention.q": "q", "attention.k": "k", "attention.v": "v", "attention.out": "o", "mlp.gate": "wi_0",
             "mlp.up": "wi_1", "mlp.down": "wo"}
OPT: Final = SPLIT | {"attention.out": "out_proj", "mlp.up": "fc1", "mlp.down": "fc2"}

MODULES: Final[dict[str, dict[str, str]]] = {
    **dict.fromkeys(
        ("llama", "qwen2", "qwen3", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "gemma3_text", "granite",
         "olmo", "olmo2", "cohere", "cohere2", "qwen2_moe", "qwen3_moe", "smollm3", "stablelm", "seed_oss", "mimo",
         "internlm3", "ernie4_5"), SPLIT,
    ),
    "phi3": FUSED,
    "gpt2": GPT2,
    **dict.fromkeys(("gpt_neox", "falcon", "bloom"), NEOX),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), BERT),
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "opt": OPT,
}
"""Family -> path of a parameter -> the name transformers' code gives its module."""


def hub_id(model: Model) -> str:
    """What a hub calls the model; only the user knows where a model of numbers or of a local file lies."""
    name = model.name.split(" cut to ")[0]
    own = known_names().get(name.lower())
    if own is None:
        return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else PLACEHOLDER
    entry = read_entry(own)
    match = HUB.match(entry.source)
    if match is not None:
        return match[1]
    return next((alias for alias in entry.aliases if alias.count("/") == 1), PLACEHOLDER)


def is_cut(model: Model) -> bool:
    """Whether the question took only some of the model's layers."""
    return " cut to " in model.name


def module_names(model: Model, paths: Iterable[str]) -> list[str]:
    """What transformers calls the modules behind parameters' paths, each once.

    Raises: Unsupported for a family or module whose name is not known
    """
    table = MODULES.get(model.family)
    if table is None:
        raise Unsupported(
            f"the module names of family {model.family} are not known here; adapt a model of family "
            f"{', '.join(sorted(MODULES)[:8])} ..., or leave --peft out"
        )
    unknown = [path for path in paths if path not in table]
    if unknown:
        raise Unsupported(f"{model.name}: {unknown[0]!r} has no module of its own; use {', '.join(table)}")
    return list(dict.fromkeys(table[path] for path in paths))
