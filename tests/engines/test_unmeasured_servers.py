"""Servers that nobody measured, generation by Transformers, reward models and checkouts of tools."""

from typing import Any

import pytest

import vramcast
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.job import Phase
from vramcast.domain.program import live_at_end
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.domain.version import named
from vramcast.engines.training import MADE
from vramcast.engines.transformers.deploy import deploy
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.formats.read import read_files
from vramcast.question.build import training_engine
from vramcast.units import GIB

# Text Generation Inference and LMDeploy, whose caches follow from their code, held against public figures.


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


# transformers' generate: published peaks of its tables' mechanisms, and what must hold whatever the numbers.

def job(model: str = "qwen2.5-0.5b", *, version: tuple[int, ...] = (4, 46), gpus: str = "a100-sxm4-80gb",
        options: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, **requests: Any) -> ServeJob:
    return ServeJob(
        model=load_model(model), requests=Requests(**requests), plan=ServePlan(**(plan or {})),
        cluster=parse_gpus(gpus), engine="transformers", version=version, engine_options=options or {},
    )


def ask(model: str, **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"engine": "transformers", "gpus": "a100-sxm4-80gb", "context": 4096} | options))


def bytes_of(answer: ServeAnswer, category: str) -> int:
    return sum(entry.num_bytes for entry in answer.fullest.ledger if entry.category == category)


@pytest.mark.parametrize(
    "options",
    [{}, {"cache": "static"}, {"cache": "offloaded"}, {"cache": "quantized"}, {"beams": 4}, {"prefill_chunk": 64}],
)
@pytest.mark.parametrize(
    "model",
    ["qwen3-0.6b", "gemma-3-4b", "qwen3-30b-a3b", "deepseek-v2-lite", "falcon-7b", "mamba-130m", "chatglm2-6b",
     "whisper-tiny", "flan-t5-small"],
)
@pytest.mark.parametrize("version", [(4, 35), (4, 40), (4, 46), (4, 57), (5, 10)])
def test_serving_leaves_nothing_behind_but_the_workspace(
    model: str, version: tuple[int, ...], options: dict[str, Any]
) -> None:
    for rank in deploy(job(model, version=version, input_len=200, output_len=20, options=options)).ranks:
        left = live_at_end(rank.program.phases[Phase.SERVING])
        assert [(tensor.name, count) for tensor, count in left.items() if tensor.num_bytes] == [("cuBLAS workspace", 1)]


def test_an_image_runs_its_encoder_and_needs_a_size() -> None:
    text = ask("qwen2-vl-7b", context=8192)
    seen = ask("qwen2-vl-7b", context=8192, images=1, image_size=2048)
    assert seen.peak.allocated_bytes > text.peak.allocated_bytes
    with pytest.raises(InvalidSpec, match="image-size"):
        ask("qwen2-vl-7b", context=1024, images=1)


def test_fp32_checkpoints_stay_fp32() -> None:
    assert bytes_of(ask("bert-base-uncased", context=512), "weights") == pytest.approx(4 * 109_514_298, rel=0.01)


@pytest.mark.parametrize(("options", "error", "text"), [
    ({"tp": 2, "gpus": "2xl40s"}, Unsupported, "--pp 2"),
    ({"kv_dtype": "fp8"}, InvalidSpec, "int8"),
    ({"engine_option": ["cache=paged"]}, InvalidSpec, "one of dynamic, static"),
    ({"engine_option": ["speed=1"]}, UnknownName, "transformers option"),
    ({"context": 100, "input_len": 200}, InvalidSpec, "longer than context"),
    ({"gpus": "64xl40s", "pp": 64}, InvalidSpec, "28 layers"),
    ({"draft": "ngram"}, Unsupported, "vllm"),
])
def test_what_transformers_cannot_do_is_refused_with_what_works(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ask("qwen3-0.6b", **options)


# Reward models and critics score positions; no vocabulary is left of their head.

MODEL = "llama-3.1-8b"
GPU = "h200"


def _asked(engine: str, objective: str, **options: Any) -> Any:
    return vramcast.train(
        MODEL, gpus=GPU, engine=engine, objective=objective, seq_len=256, micro_batch=1, precision="bf16", **options
    )


def test_of_ppo_the_reward_model_and_the_critic_score() -> None:
    model, found = load_model(MODEL), _asked("pytorch", "ppo", completion_len=64)
    head = model.vocab * model.hidden
    load = found.fullest.phases["load"].allocated_bytes
    assert load == pytest.approx(2 * (4 * found.num_parameters - 2 * head), rel=1e-3)


# Releases of engines whose versions are dates.

@pytest.mark.parametrize("engine", MADE)
@pytest.mark.parametrize("release", ["0.9", "3", "0.5.999"])
def test_a_release_newer_than_all_is_the_newest_known_with_a_warning(engine: str, release: str) -> None:
    options = {"gpus": "8xh100-sxm-80gb", "shards": "everything", "precision": "mixed-bf16"}
    if engine == "litgpt":
        options = {"gpus": "h100", "precision": "bf16"}
    newest, newer = (vramcast.train("llama-3.2-1b", engine=f"{engine}{at}", **options) for at in ("", f"@{release}"))
    assert newer.peak == newest.peak
    assert any(f"what {engine} {release} changed" in text for text in newer.ignored)
    assert training_engine(named(*training_engine(f"{engine}@{release}"))) == training_engine(f"{engine}@{release}")
