"""Rows of serving runs: one adapter per engine, chosen by the engine a row names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final

from truth.contract import Prediction, Refused

ADAPTERS: Final[tuple[tuple[str, str], ...]] = (
    (r"vllm", "vllm"),
    (r"sglang", "sglang"),
    (r"tensorrt|trt-?llm", "tensorrt_llm"),
    (r"diffusers|stable-diffusion|hunyuanvideo", "diffusion"),
    (r"llama[.-]?cpp|llama-box|ollama|gguf", "llamacpp"),
    (r"whisper|ctranslate|opennmt|fastertransformer", "encoders"),
    (r"transformers|autoawq|exllama|litgpt|lmdeploy|^$", "transformers"),
)
"""Pattern of the engine's name -> module; the first that fits."""


UNKNOWABLE: Final[dict[str, str]] = {
    "unconfirmed": "which network ran is a guess",
    "co-tenant": "other processes shared the memory that was measured",
}
"""Word of the notes -> why nobody can predict the row."""


def engine_module(row: dict[str, Any]) -> str | None:
    """The module that reads a row; None when no engine is known by that name."""
    text = str(row.get("engine") or "").lower()
    return next((module for pattern, module in ADAPTERS if re.search(pattern, text)), None)


def predict(row: dict[str, Any]) -> Iterable[Prediction]:
    """The row's quantity, predicted by the engine it names."""
    module = engine_module(row)
    if module is None:
        raise Refused(f"engine {str(row.get('engine'))[:60]!r} is not modelled")
    notes = str(row.get("notes") or "").lower()
    for word, reason in UNKNOWABLE.items():
        if word in notes:
            raise Refused(reason)
    try:
        adapter: Callable[[dict[str, Any]], Iterable[Prediction]] = import_module(f"{__name__}.{module}").predict
    except ModuleNotFoundError:
        raise Refused(f"engine {module} is not modelled") from None
    return adapter(row)
