"""vLLM's start-up arithmetic against figures its logs print, and against its rules."""

from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import ServeAnswer
from vramcast.errors import InvalidSpec


def ask(model: str, **options: Any) -> ServeAnswer:
    given = {"gpus": "h100", "engine": "vllm@0.19", "context": 8192, "memory_fraction": 0.95} | options
    return vramcast.serve(model, **given)


def test_a_draft_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="multi-token-prediction"):
        ask("llama-3.1-8b", draft="mtp")


def test_embedding_models_keep_no_cache() -> None:
    assert ask("bge-large-en-v1.5", context=512).capacity is None
