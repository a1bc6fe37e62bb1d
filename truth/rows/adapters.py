"""What a row says about parameter-efficient fine-tuning: "LoRA r=8 on ['q_proj']", a PEFT config as JSON, QLoRA."""

from __future__ import annotations

import re
from typing import Any, Final

from truth.contract import Refused
from truth.rows.huggingface import method_of
from vramcast.domain.job import Peft
from vramcast.domain.model import Model
from vramcast.families.module_names import targets, usual_words
from vramcast.families.modules import modules_of
from vramcast.operators.lora import ADAPTERS

BASES: Final[tuple[tuple[str, str], ...]] = (
    (r"nf4-dq|double.?quant", "nf4-dq"), (r"nf4", "nf4"), (r"gptq|int4", "gptq-int4"), (r"awq", "awq-int4"),
    (r"int8|8.?bit|llm\.int8", "int8"), (r"q-?lora|4.?bit", "nf4-dq"),
)
"""Words -> storage of the frozen weights; QLoRA's own is NF4 with double quantisation."""

QUERIES_AND_VALUES: Final = re.compile(r"\bpeft\b|torchtune|lit-?gpt|q,\s?v")
"""Frameworks whose own default is queries and values; recipes of the others adapt every linear layer."""

SIXTEEN_BITS: Final = re.compile(r"litgpt|lit-gpt|torchtune|colossal|deepspeed")
"""Frameworks that keep adapters in the base's 16 bits."""

METHODS: Final = (*(name for name in ADAPTERS if name != "lora" and len(name) > 2), "lora")
"""The general word last: "adalora" is no LoRA."""

LITGPT: Final = ("query", "key", "value", "projection", "mlp", "head")
"""Its own names of what is adapted [litgpt lora.py `Config.lora_query` ...]."""

DEFAULT_RANK: Final = 8
"""`LoraConfig.r` [peft/tuners/lora/config.py]."""


def peft_of(row: dict[str, Any], model: Model) -> Peft | None:
    """The adapter of a row; None where all weights learn.

    Raises: Refused where the words name no known adapter
    """
    text = str(row.get("peft") or "none").strip()
    lower = text.lower()
    if lower in ("none", "false", "no", "full", "full fine-tuning", "full finetuning", "full-parameter"):
        return None
    if text.startswith("{"):
        try:
            return method_of(row, model)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"adapter {text[:60]!r} is not a PEFT config: {error!r}") from None
    framework = str(row.get("framework", "")).lower()
    if "adapter" in lower and "lora" not in lower.split("adapter")[0] and "litgpt" in framework:
        return Peft(method="adapter", adapter_dtype="bf16", base=_base(row), targets=())  # type: ignore[arg-type]
    method = next((name for name in METHODS if name in lower), None)
    if method is None:
        raise Refused(f"adapter {text[:60]!r} is not understood")
    rank = re.search(r"(?:\br|rank|_r)[\"']?\s*[=: ]\s*(\d+)", f"{lower} {str(row.get('notes', '')).lower()}")
    sixteen = SIXTEEN_BITS.search(framework) or "autocast_adapter_dtype=false" in str(row.get("precision")).lower()
    return Peft(
        method=method,
        rank=int(rank[1]) if rank else DEFAULT_RANK,
        targets=targets(model, _words(lower, framework, model)),
        modules_to_save=("embedding", "head") if "embedding" in lower else (),
        adapter_dtype="bf16" if sixteen else "fp32",
        base=_base(row),  # type: ignore[arg-type]
    )


def _words(text: str, framework: str, model: Model) -> tuple[str, ...]:
    """The modules that a row names: those of the model's code anywhere in the text, litgpt's between quotes."""
    named = [module.last for module in modules_of(model) if len(module.last) > 3 and module.last in text]
    named += re.findall(rf"'({'|'.join(LITGPT)})'", text)
    narrow = QUERIES_AND_VALUES.search(f"{framework} {text}") and not re.search(r"\ball\b", text)
    return tuple(dict.fromkeys(named)) or (usual_words(model) if narrow else ("all-linear",))


def _base(row: dict[str, Any]) -> str:
    """Storage of the frozen weights, from the words on adapter and precision; else from the checkpoint's name."""
    text = f"{row.get('peft', '')} {row.get('precision', '')} {row.get('model', '')}".lower()
    return next((name for pattern, name in BASES if re.search(pattern, text)), "full")
