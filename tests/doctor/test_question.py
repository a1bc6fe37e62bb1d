"""From a log to the question it answers."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.sources.logs.samples import gib, parsed, read, sample
from vramcast.catalogue.gpus import load_gpu
from vramcast.doctor.question import gpus_of, question_of, stored_as, version_of
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.sources.logs.wording import ServingLog


def keys(remarks: Any) -> list[str]:
    return [remark.key for remark in remarks]


def test_options_win_over_the_log() -> None:
    given = {"gpus": "4xh100", "tp": 4, "context": "4k", "model": "llama-3.2-1b"}
    job, _ = question_of(read("vllm-v1"), given)
    assert (job.plan.tp, job.context, job.model.name, job.cluster.count) == (4, 4096, "llama-3.2-1b", 4)


def test_a_card_of_quite_another_size_is_remarked_and_kept() -> None:
    job, remarks = question_of(read("vllm-v1"), {"gpus": "l40s"})
    assert job.cluster.gpu.visible_bytes < gib(50)
    assert keys(remarks) == ["other_card"]


def test_a_card_that_the_log_names_needs_no_option() -> None:
    log = replace(read("vllm-v1"), cards=("NVIDIA H100 80GB HBM3",), card_bytes=None)
    assert question_of(log, {}).job.cluster.name == "2xh100-sxm-80gb"


def test_a_card_that_only_one_size_fits_is_taken_and_several_are_asked_about() -> None:
    log = ServingLog(name="x.log", engine="vllm", card_bytes=load_gpu("h200").visible_bytes)
    assert gpus_of(log, ranks=1) == "1xh200-sxm-141gb"
    with pytest.raises(InvalidSpec, match=r"--gpus 2xa40 .*l40s"):
        gpus_of(replace(log, card_bytes=gib(44.42)), ranks=2)
    with pytest.raises(InvalidSpec, match="does not name the cards; give --gpus"):
        gpus_of(replace(log, card_bytes=None), ranks=1)


@pytest.mark.parametrize(("named", "model"), [
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123abc", "qwen3-8b"),
    ("/data/models/meta-llama/Llama-3.1-8B-Instruct/", "llama-3.1-8b"),
    ("/mnt/Meta-Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
    ("C:\\models\\Qwen3-8B-Q4_K_M-00001-of-00002.gguf", "qwen3-8b"),
    ("Gemma 3 4b It", "gemma-3-4b"),
])
def test_models_are_known_by_path_cache_file_and_title(named: str, model: str) -> None:
    log = replace(read("vllm-v1"), models=(named,))
    assert question_of(log, {"gpus": "h100"}).job.model.name == model


@pytest.mark.parametrize("models", [(), ("/data/my-own-model",)])
def test_a_model_that_nobody_knows_is_asked_for(models: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSpec, match="name it: vramcast serve MODEL --reconcile"):
        question_of(replace(read("vllm-v1"), models=models), {"gpus": "h100"})


@pytest.mark.parametrize(("engine", "quantisation", "stored"), [
    ("vllm", "fp8", "fp8"), ("vllm", "awq_marlin", "awq-int4"), ("vllm", "compressed-tensors", None),
    ("llama.cpp", "Q4_K - Medium", "q4_k_m"), ("llama.cpp", "mostly Q8_0", "q8_0"), ("llama.cpp", "F16", "fp16"),
    ("llama.cpp", "IQ4_XS - 4.25 bpw", "iq4_xs"), ("llama.cpp", "", None),
])
def test_storage_is_told_by_the_words_of_the_engine(engine: str, quantisation: str, stored: str | None) -> None:
    assert stored_as(ServingLog(name="x", engine=engine, quantisation=quantisation)) == stored


def test_weights_quantised_while_loading_are_asked_so() -> None:
    online = parsed(sample("vllm-v1").replace("quantization=None", "quantization=fp8"))
    assert question_of(online, {"gpus": "h100"}).job.plan.weights == "fp8"
    assert question_of(online, {"gpus": "h100", "weights": "bf16"}).job.plan.weights == "bf16"
    unknown = parsed(sample("vllm-v1").replace("quantization=None", "quantization=compressed-tensors"))
    assert keys(question_of(unknown, {"gpus": "h100"}).remarks) == ["storage_unknown"]


def test_versions_beyond_the_model_are_answered_as_the_newest_and_said() -> None:
    newer = replace(read("vllm-v1"), version="0.99.1")
    job, remarks = question_of(newer, {"gpus": "h100"})
    assert job.version < (0, 99)
    assert keys(remarks) == ["version_newer"]
    unknown = replace(read("vllm-v1"), version="")
    assert keys(question_of(unknown, {"gpus": "h100"}).remarks) == ["version_unknown"]
    assert question_of(unknown, {"gpus": "h100", "engine": "vllm@0.11"}).job.version == (0, 11)


@pytest.mark.parametrize(("text", "version"), [
    ("0.19.1", (0, 19, 1)), ("0.11.1rc2.dev123+g1a2b3c", (0, 11, 1)), ("0.6.4.post1", (0, 6, 4)), ("5200", (5200,)),
    ("1.0.0rc4", (1, 0, 0)), ("dev", (0,)),
])
def test_the_release_of_a_version_is_read(text: str, version: tuple[int, ...]) -> None:
    assert version_of(text) == version


def test_several_startups_and_a_cut_log_are_said() -> None:
    log = replace(read("vllm-v1"), startups=3, cut=True)
    assert keys(question_of(log, {"gpus": "h100"}).remarks) == ["last_of_startups", "log_cut"]


def test_an_option_that_the_question_does_not_know_is_refused() -> None:
    with pytest.raises(VramcastError, match="unknown option"):
        question_of(read("vllm-v1"), {"gpus": "h100", "contxt": 1})
