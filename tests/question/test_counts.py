"""No option that counts takes less than it can mean, or more than can be answered, whoever asks."""

from itertools import product
from typing import Any, Final

import pytest

import vramcast
from vramcast.errors import InvalidSpec, Unsupported, VramcastError
from vramcast.question.option import Kind, table_of

MAY_BE_ZERO: Final = {"completion-len", "virtual-tokens", "images", "lora-slots", "gpu-layers", "rank"}
TRAIN: Final[tuple[dict[str, Any], ...]] = (
    {"model": "mixtral-8x7b", "gpus": "8xh100-sxm-80gb", "engine": "megatron"},
    {"model": "mixtral-8x7b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan"},
    {"model": "qwen2.5-vl-7b", "gpus": "h100", "engine": "pytorch"},
    {"model": "llama-3.2-1b", "gpus": "h100", "engine": "huggingface", "peft": "lora"},
)
SERVE: Final[tuple[dict[str, Any], ...]] = (
    *({"model": "llama-3.1-8b", "gpus": "2xh100-sxm-80gb", "engine": engine}
      for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers")),
    {"model": "llama-3.1-8b", "gpus": "h100", "draft": "llama-3.2-1b", "context": 4096},
    {"model": "wan2.1-t2v-1.3b", "gpus": "h100", "engine": "diffusers", "tiling": True},
)
RL: Final[tuple[dict[str, Any], ...]] = (
    {"model": "qwen2.5-0.5b", "gpus": "8xh100-sxm-80gb"},
    {"model": "olmoe-1b-7b", "gpus": "8xh100-sxm-80gb", "framework": "nemo-rl", "ep": 4},
)


def counts(table: Any) -> list[str]:
    return [name for name, option in table.items() if option.kind is Kind.COUNT]


BASES: Final = {"train": TRAIN, "serve": SERVE, "rl": RL}
CASES: Final = [(command, name) for command in BASES for name in counts(table_of(command))]


@pytest.mark.parametrize(("command", "name"), CASES)
def test_counts_below_what_they_mean_are_refused(command: str, name: str) -> None:
    for base, value in product(BASES[command], (0, -1, "0", True, 2**41)):
        question = {**base, name.replace("-", "_"): value}
        if value in (0, "0") and name in MAY_BE_ZERO:
            continue
        with pytest.raises(VramcastError):
            getattr(vramcast, command)(question.pop("model"), **question)


@pytest.mark.parametrize(("command", "name"), CASES)
def test_any_count_is_answered_or_refused_in_one_sentence(command: str, name: str) -> None:
    """Small ones of one job only where each answer takes seconds: steps of many lengths. Of large ones the largest that
    is answered: what needs less is answered in the same way."""
    bases = BASES[command]
    for value in (0, 1):
        is_answered(command, bases[-1], name, value)
    for base in bases[-1:] if name == "min-seq-len" else bases:
        is_answered(command, base, name, 7)
    for base in bases[-2:] if name == "concurrency" else bases:  # a load beyond what is simulated is so on any engine
        any(is_answered(command, base, name, value) for value in (2**40, 2**30))


def is_answered(command: str, base: dict[str, Any], name: str, value: int) -> bool:
    question = {**base, name.replace("-", "_"): value}
    try:
        getattr(vramcast, command)(question.pop("model"), **question)
    except VramcastError as error:
        assert "\n" not in str(error)
        return False
    return True


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_stages_that_keep_nothing_of_a_sequence_do_not_limit_it(engine: str) -> None:
    try:
        answer = vramcast.serve("nemotron-h-56b", gpus="8x8xh100-sxm-80gb", engine=engine, tp=1, pp=59, context=1024)
    except Unsupported:
        return
    assert answer.capacity is not None
    assert answer.capacity.concurrency >= 1
    assert answer.fits


@pytest.mark.parametrize(
    "question",
    [{"frames": 131072}, {"frames": 4096}, {"height": 2**20, "width": 2**20}, {"height": 32768}, {"width": 2**30}],
)
def test_more_pixels_than_anything_generates_are_refused(question: dict[str, int]) -> None:
    with pytest.raises(InvalidSpec, match="than any pipeline generates at once"):
        vramcast.serve("wan2.1-t2v-1.3b", gpus="h100", tiling=True, **question)
