"""Nothing an engine is told is ignored in silence."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.api import job_of
from vramcast.errors import UnknownName
from vramcast.estimate.training import needed_bytes

ENGINES = ("pytorch", "huggingface", "deepspeed", "colossalai", "torchtitan", "torchtune", "litgpt", "megatron")


def needed(engine: str, option: str, **options: object) -> int:
    asked = {"model": "llama-3.2-1b", "gpus": "2xa100-sxm4-40gb", "engine": engine, "engine-option": [option]}
    return needed_bytes(job_of(asked | options))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_the_engine_does_not_have_is_refused(engine: str) -> None:
    with pytest.raises(UnknownName, match="foo"):
        needed(engine, "foo=bar")


def test_a_bucket_is_counted() -> None:
    assert needed("deepspeed", "reduce_bucket_size=1000000", zero=2) < needed(
        "deepspeed", "reduce_bucket_size=2000000000", zero=2
    )


def test_modules_of_multi_token_prediction_are_said_not_to_be_counted() -> None:
    found = vramcast.train("deepseek-v3", gpus="32x8xh100", engine="megatron", tp=8, ep=32)
    assert any("--mtp-num-layers 1" in text for text in found.ignored)
    assert not any("--mtp" in text for text in vramcast.train("mixtral-8x7b", gpus="8xh100", engine="megatron").ignored)
