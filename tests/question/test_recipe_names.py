"""bf16 means what the engine means by it; pure-bf16 means one thing everywhere."""

from __future__ import annotations

import pytest

import vramcast


@pytest.mark.parametrize(
    ("engine", "name", "same"),
    [
        ({"engine": "deepspeed", "zero": "2"}, "bf16", "mixed-bf16"), ({"engine": "megatron"}, "bf16", "mixed-bf16"),
        ({"engine": "colossalai"}, "fp16", "mixed-fp16"), ({"engine": "pytorch"}, "pure-bf16", "bf16"),
        ({"engine": "huggingface", "sharded_by": "deepspeed", "zero": "3"}, "bf16", "mixed-bf16"),
    ],
)
def test_a_recipe_is_what_the_engine_calls_so(engine: dict[str, str], name: str, same: str) -> None:
    asked = {"gpus": "8xh100", "seq_len": 512, **engine}
    found, other = (vramcast.train("llama-3.2-1b", precision=word, **asked) for word in (name, same))
    assert found.peak == other.peak
    assert any("fp32 copy" in text for text in found.assumptions) == (not name.startswith("pure"))


def test_deepspeed_without_copies_is_asked_by_its_own_name() -> None:
    asked = {"gpus": "8xh100", "seq_len": 512, "engine": "deepspeed"}
    pure, mixed = (vramcast.train("llama-3.2-1b", precision=word, **asked) for word in ("pure-bf16", "mixed-bf16"))
    assert pure.peak.allocated_bytes < mixed.peak.allocated_bytes
