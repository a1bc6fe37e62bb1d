"""A load of more sequences than an engine runs at once: said in the first lines, and timed as what runs."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.engines.serving.table import SERVING

ASKED = {"gpus": "h100", "context": 2048}


@pytest.mark.parametrize("engine", [name for name, engine in SERVING.items() if engine.limit])
def test_sequences_that_wait_are_said_and_not_timed(engine: str) -> None:
    waiting = vramcast.serve("llama-3.1-8b", engine=engine, concurrency=100, max_sequences=4, **ASKED)
    alone = vramcast.serve("llama-3.1-8b", engine=engine, concurrency=4, max_sequences=4, **ASKED)
    assert f"{engine} runs 4 of 100 sequences at once" in "\n".join(str(waiting).splitlines()[:2])
    assert not any("others wait" in text for text in alone.cautions)
    assert waiting.speed is not None
    assert alone.speed is not None
    assert waiting.speed.tokens_per_s == alone.speed.tokens_per_s


@pytest.mark.parametrize(("gpus", "limit"), [("a100-sxm4-80gb", 256), ("h100", 1024)])
def test_the_default_limits_too(gpus: str, limit: int) -> None:
    found = vramcast.serve("llama-3.2-1b", gpus=gpus, context=256, concurrency=limit + 1)
    assert found.fits
    assert f"vllm runs {limit} of {limit + 1} sequences at once" in found.cautions[0]
    assert not vramcast.serve("llama-3.2-1b", gpus=gpus, context=256, concurrency=limit).cautions


def test_copies_run_their_own_sequences() -> None:
    two = vramcast.serve("llama-3.2-1b", gpus="2xa100-sxm4-80gb", dp=2, context=256, concurrency=512)
    assert not two.cautions


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "1024 sequences and 8,192 tokens a step"), ({"max_sequences": 4}, "8,192 tokens a step"),
     ({"batched_tokens": 4096}, "1024 sequences")],
)
def test_only_what_was_not_asked_is_called_a_default(options: dict[str, int], said: str) -> None:
    found = vramcast.serve("llama-3.1-8b", **ASKED, **options)
    assert found.assumptions[0] == f"{said}, vLLM's default"
