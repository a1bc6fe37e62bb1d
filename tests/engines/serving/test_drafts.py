"""What proposes tokens beside a model."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.errors import InvalidSpec


@pytest.mark.parametrize("draft", ["medusa", "eagle", "ngram", "llama-3.2-1b"])
def test_a_model_that_generates_nothing_has_no_draft(draft: str) -> None:
    with pytest.raises(InvalidSpec, match="generates no tokens"):
        vramcast.serve("vit-large-patch16-224", gpus="h100", engine="vllm", draft=draft)
