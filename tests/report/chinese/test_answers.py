"""Answers to many questions are Chinese from top to bottom, and English ones are untouched."""

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import asdict

import vramcast
from tests.report.chinese.test_sentences import COMMANDS, ENGLISH
from vramcast.catalogue.index import MODELS
from vramcast.domain.answer import Answer, PostTrainingAnswer, ServeAnswer
from vramcast.errors import VramcastError
from vramcast.report.messages import Words
from vramcast.report.text import render

ZH = Words("zh")

TRAINING = [
    {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "seq_len": 8192},
    {"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-80gb", "engine": "megatron", "tp": 2, "pp": 2, "seq_len": 32768},
    {"model": "deepseek-v3", "gpus": "16x8xh800-sxm-80gb", "engine": "megatron", "tp": 2, "pp": 8, "ep": 8},
    {"model": "qwen3-8b", "gpus": "8xv100-sxm2-32gb", "engine": "deepspeed", "zero": 3, "offload_optimizer": "cpu"},
    {"model": "gpt2", "gpus": "t4", "precision": "bf16", "seq_len": 4096},
    {"model": "t5-base", "gpus": "h100", "engine": "huggingface"},
    {"model": "qwen3-8b", "gpus": "l4", "peft": "lora", "engine": "huggingface", "base_weights": "nf4"},
    {"model": "qwen2.5-vl-7b", "gpus": "2xa100-pcie-80gb", "engine": "pytorch"},
    {"model": "mixtral-8x7b", "gpus": "aws:p4d.24xlarge", "engine": "torchtitan", "shards": "everything"},
    {"model": "qwen3-8b", "gpus": "l40s", "peft": "lora", "engine": "unsloth", "base_weights": "nf4"},
    {"model": None, "gpus": "h100", "params": "3B", "layers": 24, "hidden": 3072, "compile": True},
]
SERVING = [
    {"model": "qwen3-8b", "gpus": "l4", "context": 32768, "concurrency": 32, "engine": "vllm"},
    {"model": "qwen3-32b", "gpus": "2xh100-sxm-80gb", "engine": "vllm@0.9", "tp": 2, "draft": "eagle3"},
    {"model": "gpt-oss-20b", "gpus": "h100", "engine": "sglang", "context": 262144, "concurrency": 200},
    {"model": "llama-3.1-8b", "gpus": "l40s", "engine": "tensorrt-llm"},
    {"model": "gemma-3-27b", "gpus": "rtx-4090", "engine": "llama.cpp", "weights": "q4_k_m"},
    {"model": "bert-base", "gpus": "t4", "engine": "transformers"},
    {"model": "deepseek-v3", "gpus": "8xmi300x", "engine": "vllm", "tp": 8},
    {"model": "flux.1-dev", "gpus": "rtx-4090", "engine": "diffusers", "weights": "nf4"},
    {"model": "flux.1-dev", "gpus": "rtx-4090", "engine": "stable-diffusion.cpp", "weights": "q8_0"},
    {"model": "llama-3.1-70b", "gpus": "l40s", "context": 32768, "concurrency": 4, "find": "fewest-gpus"},
    {"model": "qwen3-30b-a3b", "gpus": "h100", "find": "smallest-gpu", "engine": "sglang"},
]
POST_TRAINING = [
    {"model": "qwen2.5-7b", "gpus": "8xh100-sxm-80gb", "mean_response_len": 300, "reference": True},
    {"model": "qwen2.5-7b", "gpus": "h100", "framework": "verl@0.4", "algorithm": "ppo", "offload_optimizer": "cpu"},
    {"model": "qwen2.5-7b", "gpus": "8xh100-sxm-80gb", "rollout_gpus": 4, "ahead": True, "framework": "nemo-rl"},
    {"model": "qwen3-30b-a3b", "gpus": "8xa100-sxm4-80gb", "peft": "lora", "rollout": "sglang", "padded": True},
    {"model": "qwen2.5-7b", "gpus": "2xt4", "memory_fraction": 0.9, "offload_parameters": "cpu"},
]
QUESTIONS = [
    *(("train", one) for one in TRAINING), *(("serve", one) for one in SERVING),
    *(("rl", one) for one in POST_TRAINING),
]
GENERATED = [
    (command, {"model": model, "gpus": gpus, "engine": engine} | ({"context": 4096} if command == "serve" else {}))
    for command, engines in (("train", ("pytorch", "megatron", "deepspeed", "torchtitan")),
                             ("serve", ("vllm", "sglang", "transformers")))
    for number, engine in enumerate(engines)
    for model, gpus in zip(sorted(MODELS.names())[number::164], ("8xh200-sxm-141gb", "4xl20", "8xb200", "v100-32gb",
                                                               "2xa10", "8xh20-96gb") * 5, strict=False)
]


def texts_of(answer: Answer) -> Iterator[str]:
    """What an answer says in words."""
    yield from (*answer.assumptions, *answer.warnings)
    for rank in answer.ranks:
        yield rank.role
        for entry in rank.ledger:
            yield from (entry.path.partition("/")[2].replace("/", "; "), entry.formula)
    yield from (change.cost for change in answer.changes)
    if answer.found is not None:
        yield from (one.reason for one in answer.found.tried)
    if answer.time is not None:
        yield from (*answer.time.sources, *answer.time.assumptions)
    yield from answer.cautions
    if answer.host is not None:
        yield from (text for part in answer.host.parts for text in (ZH.said(part.name), ZH.said(part.formula)))
    if isinstance(answer, (ServeAnswer, PostTrainingAnswer)):
        yield answer.shortfall
    if isinstance(answer, ServeAnswer):
        yield from answer.startup
        if answer.speed is not None:
            yield from answer.speed.sources
        if answer.capacity is not None:
            yield from answer.capacity.tokens_by_count


def left_in_english(text: str) -> re.Match[str] | None:
    return ENGLISH.search(COMMANDS.sub("", text))


@pytest.mark.parametrize(("command", "question"), QUESTIONS + GENERATED, ids=str)
def test_an_answer_says_nothing_in_english(command: str, question: dict[str, object]) -> None:
    try:
        answer: Answer = getattr(vramcast, command)(**question)
    except VramcastError as error:
        assert not left_in_english(ZH.said(str(error))), ZH.said(str(error))
        return
    before = asdict(answer)
    spoken = ZH.spoken(answer)
    assert [text for text in texts_of(spoken) if left_in_english(text)] == []
    assert asdict(answer) == before
    assert Words("en").spoken(answer) is answer
    assert render(answer, ZH) == render(spoken, ZH)  # once in Chinese, it stays so
