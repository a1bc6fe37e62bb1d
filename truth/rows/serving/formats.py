"""How a row's words say that its weights were stored."""

from __future__ import annotations

import re
from typing import Any, Final

from truth.contract import Refused

WORDS: Final[tuple[tuple[str, str], ...]] = (
    (r"nvfp4", "nvfp4"),
    (r"fp8.?dynamic|dynamic.?fp8|quantized\.fp8|^bfloat16 \+ fp8$", "fp8-channel"),
    (r"fp8.*block|block.*fp8", "fp8-block"),
    (r"w8a8|smoothquant|w8a16", "int8"),
    (r"w4a16", "int4"),
    (r"awq", "awq-int4"),
    (r"gptq.*(?:int|-)?8\b|int8.*gptq|gptq.?int8|gptq 8bit", "gptq-int8"),
    (r"gptq.*int3|3.?bit.*gptq", "gptq-int3"),
    (r"gptq|4bits", "gptq-int4"),
    (r"nf4.?dq|double.?quant", "nf4-dq"),
    (r"unsloth-bnb", "nf4"),  # dynamic: some matrices stay whole
    (r"bnb|bitsandbytes|nf4|load_in_4bit=true", "nf4-dq"),
    (r"\bint4\b", "int4"),
    (r"\bint8\b|8bits", "int8-bnb"),
    (r"^fp8$|fp8 \(marlin", "fp8-block"),
    (r"^(?:bf16|bfloat16)$", "bf16"),
    (r"^(?:fp16|float16)$", "fp16"),
)
"""Pattern over the stated dtype, then over the model's name -> key of `states.storage.FORMATS`; the first that fits."""


def weights_of(row: dict[str, Any]) -> str | None:
    """The storage format a row states; None: as the checkpoint itself has it."""
    if "mixed" in str(row.get("quant_dtype") or "").lower():
        raise Refused("a mix of formats whose shares are not stated")
    for text in (str(row.get("quant_dtype") or ""), str(row.get("model") or ""), _of_notes(row)):
        lower = text.lower().strip()
        for pattern, name in WORDS:
            if re.search(pattern, lower):
                return _unless_checkpoint(name, row)
    return None


def _of_notes(row: dict[str, Any]) -> str:
    """Only what the notes say of loading in 4 bits: they mention other formats in passing."""
    return "load_in_4bit=true" if "load_in_4bit=True" in str(row.get("notes")) else ""


def _unless_checkpoint(name: str, row: dict[str, Any]) -> str | None:
    """A name that stands for 16 bits says nothing of a checkpoint that is quantised itself."""
    both = "+" in str(row.get("quant_dtype") or "")
    return None if both and name in ("bf16", "fp16") else name
