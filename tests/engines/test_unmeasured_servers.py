"""Text Generation Inference and LMDeploy, whose caches follow from their code, held against public figures."""

from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import ServeAnswer
from vramcast.errors import Unsupported
from vramcast.formats.read import read_files
from vramcast.units import GIB


def asked(model: str, gpus: str, engine: str, **options: Any) -> ServeAnswer:
    return vramcast.serve(model, gpus=gpus, engine=engine, **options)


def tokens(answer: ServeAnswer) -> int:
    assert answer.capacity is not None
    return answer.capacity.kv_tokens


def test_tgi_holds_as_many_tokens_as_its_log_says() -> None:
    """github.com/huggingface/text-generation-inference/issues/2744: prefills of 10,049 tokens, 30,816 tokens in all."""
    answer = asked("llama-3.1-70b", "2xa100-sxm4-80gb", "tgi@2.3", tp=2, context=10_100, batched_tokens=10_049)
    assert tokens(answer) == pytest.approx(30_816, rel=0.02)


def test_lmdeploy_takes_what_its_table_says() -> None:
    """InternLM/lmdeploy, FP16 Llama 2 7B on an A100 80GB with 0.95 of what is free: 76.55 GiB at one sequence."""
    answer = asked("llama-2-7b", "a100-sxm4-80gb", "lmdeploy@0.2.1", memory_fraction=0.95)
    assert answer.peak.device_bytes / GIB == pytest.approx(76.55, rel=0.01)


@pytest.mark.parametrize("engine", ["tgi", "lmdeploy"])
def test_other_caches_are_refused(engine: str) -> None:
    with pytest.raises(Unsupported, match="not that of attention"):
        asked("deepseek-v3", "8xh200", engine, tp=8)


@pytest.mark.parametrize(("line", "options"), [
    ("text-generation-launcher --model-id a/b --num-shard 4 --max-total-tokens 8192 --quantize eetq --speculate 0",
     {"engine": "tgi", "model": "a/b", "tp": 4, "context": 8192, "weights": "int8"}),
    ("docker run -e MODEL_ID=a/b -e NUM_SHARD=2 -e CUDA_GRAPHS=0 ghcr.io/huggingface/text-generation-inference:3.3.4",
     {"engine": "tgi@3.3.4", "model": "a/b", "tp": 2, "graphs": False}),
    ("docker run ghcr.io/huggingface/text-generation-inference:2.0.4 --model-id a/b --max-input-length 3000",
     {"engine": "tgi@2.0.4", "model": "a/b", "context": 4096, "batched-tokens": 3050}),
    ("lmdeploy serve api_server a/b --tp 2 --session-len 16384 --quant-policy 4 --cache-max-entry-count 0.5",
     {"engine": "lmdeploy", "model": "a/b", "tp": 2, "context": 16384, "kv-dtype": "int4", "memory-fraction": 0.5}),
    ("docker run openmmlab/lmdeploy:v0.9.2 lmdeploy serve api_server a/b --backend pytorch --eager-mode",
     {"engine": "lmdeploy@0.9.2", "model": "a/b", "tp": 1, "graphs": False, "engine-option": ("backend=pytorch",)}),
])
def test_commands_are_read(line: str, options: dict[str, Any]) -> None:
    read = read_files([], command="serve", line=line)
    assert not read.unread and dict(read.options) == options


@pytest.mark.parametrize(("line", "word"), [
    ("text-generation-launcher --model-id a/b --lora-adapters c", "lora_adapters"),
    ("text-generation-launcher --model-id a/b --quantize exl2", "exl2"),
    ("lmdeploy serve api_server a/b --adapters c=d", "adapters"),
    ("lmdeploy serve api_server a/b --ep 4", "ep"),
    ("lmdeploy serve api_server a/b --quant-policy 16", "quant_policy"),
])
def test_what_is_not_modelled_is_refused_by_name(line: str, word: str) -> None:
    assert any(word in str(unread) for unread in read_files([], command="serve", line=line).unread)
