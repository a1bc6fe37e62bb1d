"""What an engine, a card or a network cannot do is refused in one sentence, or stands in the first three lines."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.engines.bitsandbytes import NO_BITSANDBYTES
from vramcast.engines.serving.checks import has_kernel, runs_on
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, UnknownName, Unsupported, VramcastError
from vramcast.states.storage import FORMATS

LANGUAGE: Final = tuple(name for name, engine in SERVING.items() if not engine.runs_pipelines)
REFUSED: Final = (InvalidSpec, Unsupported, UnknownName)


def said(model: str, **options: Any) -> str:
    """The one sentence of a refusal, or the first three lines of an answer."""
    try:
        return "\n".join(str(vramcast.serve(model, **options)).splitlines()[:3])
    except REFUSED as refused:
        assert "\n" not in str(refused)
        return f"refused: {refused}"


@pytest.mark.parametrize("engine", LANGUAGE)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"images": 3}, "reads no images"), ({"image_size": 448}, "reads no images"),
        ({"height": 64}, "language model"), ({"width": 64}, "language model"), ({"frames": 9}, "language model"),
        ({"lora_rank": 64}, "lora-rank=64 says nothing"), ({"tiling": True}, "tiling"), ({"slicing": True}, "slicing"),
        ({"max_sequences": 0}, "max-sequences=0"), ({"block_tokens": 7}, "block-tokens=7"),
        ({"context": 131_073}, "131072 positions"),
    ],
)
def test_what_a_language_model_cannot_be_asked_is_said(engine: str, options: dict[str, Any], words: str) -> None:
    text = said("llama-3.1-8b", gpus="2xh100", engine=engine, **options)
    assert words in text
    assert text.startswith("refused") or not SERVING[engine].beyond.way_out


@pytest.mark.parametrize("model", ["whisper-large-v3", "bert-base-uncased", "qwen3-8b"])
def test_only_networks_with_eyes_read_images(model: str) -> None:
    assert "reads no images" in said(model, gpus="h100", engine="transformers", images=1)
    assert "reads no images" not in said("qwen2.5-vl-7b", gpus="h100", images=1)


@pytest.mark.parametrize("engine", sorted(SERVING.keys() - LANGUAGE))
@pytest.mark.parametrize(
    ("options", "word"),
    [({"frames": 9}, "frames"), ({"context": 4096}, "context"), ({"images": 2}, "images"), ({"input_len": 5}, "input"),
     ({"kv_dtype": "fp8"}, "kv-dtype"), ({"draft": "eagle"}, "draft"), ({"image_size": 64}, "image-size")],
)
def test_what_a_pipeline_cannot_be_asked_is_said(engine: str, options: dict[str, Any], word: str) -> None:
    text = said("stable-diffusion-xl-base", gpus="h100", engine=engine, **options)
    assert text.startswith("refused") and word in text


@pytest.mark.parametrize(
    ("engine", "options"),
    [("diffusers", {"attention": "flash"}), ("stable-diffusion.cpp", {"slicing": True}),
     ("stable-diffusion.cpp", {"dtype": "fp16"}), ("stable-diffusion.cpp", {"concurrency": 2})],
)
def test_what_one_engine_of_pipelines_reads_the_other_refuses(engine: str, options: dict[str, Any]) -> None:
    assert said("stable-diffusion-xl-base", gpus="h100", engine=engine, **options).startswith("refused")


@pytest.mark.parametrize(
    ("engine", "sizes", "others"),
    [
        ("vllm@0.6", (8, 16, 32), (1, 24, 64)), ("vllm@0.11.0", (16, 64, 128), (8, 48, 256)),
        ("vllm@0.11", (16, 256), (8, 48)), ("vllm@0.17", (16, 256), (8, 48, 512)),
        ("vllm@0.18", (16, 48, 528), (8, 40)),
        ("tensorrt-llm", (8, 32, 64), (12, 48)), ("sglang", (1, 16, 64), (7, 48)),
    ],
)
def test_blocks_have_the_sizes_of_their_version(engine: str, sizes: tuple[int, ...], others: tuple[int, ...]) -> None:
    asked = {"gpus": "h100", "engine": engine, "context": 8192}
    assert all(not said("llama-3.1-8b", block_tokens=size, **asked).startswith("refused") for size in sizes)
    assert all("block-tokens" in said("llama-3.1-8b", block_tokens=size, **asked) for size in others)


@pytest.mark.parametrize("engine", [engine for engine in LANGUAGE if engine != "tensorrt-llm"])
def test_a_network_without_keys_and_values_has_no_dtype_of_them(engine: str) -> None:
    dtype = "q8_0" if "llama" in engine else "int8" if engine in ("transformers", "lmdeploy") else "fp8"
    assert "keeps no keys and values" in said("mamba-2.8b", gpus="h100", engine=engine, kv_dtype=dtype)


def test_an_image_size_without_images_is_said() -> None:
    asked = {"gpus": "h100", "engine": "transformers", "image_size": 448}
    assert "says nothing without images" in said("qwen2.5-vl-7b", **asked)
    assert not said("qwen2.5-vl-7b", images=1, **asked).startswith("refused")
    assert not said("vit-large-patch16-224", **asked).startswith("refused")


def test_every_engine_with_blocks_of_some_sizes_says_which() -> None:
    assert all(row.wanted and not row.takes(7) for engine in SERVING.values() for row in engine.blocks)


KINDS_OF_CARDS: Final = {(gpu.vendor, gpu.arch, gpu.compute_capability, gpu.unmodelled): name
                          for name, gpu in ((name, load_gpu(name)) for name in gpu_names())}
"""One card of each kind: what runs on it is no matter of its size."""


@pytest.mark.parametrize("engine", LANGUAGE)
def test_a_card_that_an_engine_does_not_run_on_is_said(engine: str) -> None:
    for card in KINDS_OF_CARDS.values():
        text = said("llama-3.2-1b", gpus=card, engine=engine, context=2048)
        gpu = load_gpu(card)
        runs = runs_on(engine, SERVING[engine].default, gpu)
        assert runs is not ("does not run on" in text or "own build" in text), card
        assert ("own build" in text) <= (gpu.vendor not in ("NVIDIA", "AMD")), card


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(LANGUAGE), card=st.sampled_from(gpu_names()),
    stored=st.sampled_from(sorted(FORMATS)),
)
def test_weights_without_kernels_on_a_card_are_refused(engine: str, card: str, stored: str) -> None:
    gpu, version = load_gpu(card), SERVING[engine].default
    text = said("llama-3.2-1b", gpus=card, engine=engine, context=2048, weights=stored)
    assert has_kernel(stored, gpu, engine, version) or text.startswith("refused")


@pytest.mark.parametrize("weights", ["nf4", "nf4-dq", "int8-bnb"])
@pytest.mark.parametrize("engine", [*LANGUAGE, "diffusers"])
def test_bitsandbytes_is_refused_where_it_has_no_kernels(engine: str, weights: str) -> None:
    model = "flux.1-dev" if engine == "diffusers" else "llama-3.1-8b"
    assert said(model, gpus="ascend-910b3", engine=engine, weights=weights).startswith("refused")
    assert load_gpu("ascend-910b3").vendor in NO_BITSANDBYTES


@pytest.mark.parametrize(
    "options",
    [{"peft": "lora", "base_weights": base} for base in ("nf4", "nf4-dq", "int8")]
    + [{"optimizer": name} for name in ("adamw-8bit", "adam-8bit", "lion-8bit", "sgd-8bit")],
)
@pytest.mark.parametrize("card", ["8xascend-910b3", "8xmtt-s5000"])
def test_training_refuses_bitsandbytes_where_it_has_no_kernels(options: dict[str, Any], card: str) -> None:
    with pytest.raises(Unsupported, match="bitsandbytes"):
        vramcast.train("llama-3.1-8b", gpus=card, engine="huggingface", **options)


def test_float8_of_torchtitan_needs_a_card_with_it() -> None:
    with pytest.raises(InvalidSpec, match="no fp8"):
        vramcast.train(
            "llama-3.1-8b", gpus="8xa100-sxm4-80gb", engine="torchtitan", engine_option="float8=true",
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": "t4", "dtype": "bf16"}, "use --dtype fp16"),
        ({"gpus": "v100-sxm2-32gb", "kv_dtype": "fp8"}, "compute capability 7.5"),
        ({"gpus": "a100-sxm4-80gb", "engine": "tensorrt-llm", "kv_dtype": "fp8"}, "compute capability 8.9"),
        ({"gpus": "h100", "engine": "tensorrt-llm", "weights": "nvfp4"}, "compute capability 10.0"),
        ({"gpus": "t4", "engine": "vllm@0.11", "weights": "fp8"}, "compute capability 8.0"),
        ({"gpus": "t4", "engine": "transformers", "attention": "flash"}, "use sdpa"),
        ({"gpus": "mi300x", "engine": "vllm@0.11", "weights": "nf4"}, "bitsandbytes"),
        ({"lora_slots": 2, "lora_rank": 7}, "lora-rank=7"),
        ({"engine": "sglang", "draft": "medusa"}, "draft=medusa"),
        ({"engine": "vllm@0.11.0", "lora_slots": 2, "lora_rank": 1}, "lora-rank=1"),
        ({"engine": "vllm@0.12", "draft": "llama-3.2-1b"}, "takes no draft model; use vllm@0.15 or later"),
        ({"engine": "sglang@0.5.1", "draft": "llama-3.2-1b"}, "takes no draft model; use sglang@0.5.2 or later"),
        ({"engine": "sglang@0.5.2", "draft": "ngram"}, "has no draft=ngram; use sglang@0.5.3 or later"),
        ({"engine": "sglang@0.4.1", "draft": "eagle"}, "has no draft=eagle; use sglang@0.4.2 or later"),
        ({"engine": "vllm", "draft": "qwen3-0.6b"}, "vocabulary of 151936"),
        ({"engine": "sglang", "draft": "qwen3-0.6b"}, "vocabulary of 151936"),
        ({"draft": "bert-base-uncased"}, "generates no tokens"),
    ],
)
def test_what_a_version_or_a_card_cannot_is_refused(options: dict[str, Any], words: str) -> None:
    text = said("llama-3.1-8b", **({"gpus": "h100", "context": 4096} | options))
    assert text.startswith("refused") and words in text


def test_a_padded_vocabulary_is_another_one_to_vllm_only() -> None:
    asked = {"gpus": "h100", "context": 4096, "draft": "qwen2.5-0.5b"}
    assert "vocabulary" in said("qwen2.5-7b", engine="vllm", **asked)
    assert "vocabulary" not in said("qwen2.5-7b", engine="sglang", **asked)


def test_learned_positions_end() -> None:
    assert "1024 positions that gpt2 learned" in said("gpt2", gpus="h100", engine="transformers", context=1025)
    assert issubclass(InvalidSpec, VramcastError)


@pytest.mark.parametrize(
    ("weights", "engines"),
    [
        ("q4_k", {"vllm", "sglang", "llama.cpp", "ik_llama.cpp"}), ("tq1_0", {"llama.cpp", "ik_llama.cpp"}),
        ("iq4_ks", {"ik_llama.cpp"}), ("iq4_nl_r4", {"ik_llama.cpp"}), ("bf16", set(LANGUAGE)),
    ],
)
def test_types_of_gguf_are_those_that_an_engine_has_kernels_for(weights: str, engines: set[str]) -> None:
    answers = {engine: said("qwen3-8b", gpus="h100", engine=engine, weights=weights) for engine in LANGUAGE}
    assert {engine for engine, text in answers.items() if not text.startswith("refused")} == engines
    assert all("another format" in text for engine, text in answers.items() if engine not in engines)
