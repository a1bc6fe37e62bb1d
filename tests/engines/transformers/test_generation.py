"""transformers' generate: published peaks of its tables' mechanisms, and what must hold whatever the numbers."""

from typing import Any

import pytest

import vramcast
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.job import Phase
from vramcast.domain.program import live_at_end
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.transformers.deploy import deploy
from vramcast.errors import InvalidSpec, UnknownName, Unsupported


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
