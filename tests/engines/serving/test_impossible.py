"""What an engine, a card or a network cannot do is refused in one sentence, or stands in the first three lines."""

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.engines.serving.checks import has_kernel
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
@pytest.mark.parametrize(("options", "words"), [
    ({"images": 3}, "reads no images"), ({"image_size": 448}, "reads no images"),
    ({"height": 64}, "language model"), ({"width": 64}, "language model"), ({"frames": 9}, "language model"),
    ({"lora_rank": 64}, "lora-rank=64 says nothing"), ({"tiling": True}, "tiling"), ({"slicing": True}, "slicing"),
    ({"max_sequences": 0}, "max-sequences=0"), ({"block_tokens": 7}, "block-tokens=7"),
    ({"context": 131_073}, "131072 positions"),
])
def test_what_a_language_model_cannot_be_asked_is_said(engine: str, options: dict[str, Any], words: str) -> None:
    text = said("llama-3.1-8b", gpus="2xh100", engine=engine, **options)
    assert words in text
    assert text.startswith("refused") or not SERVING[engine].beyond.way_out


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


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(LANGUAGE), card=st.sampled_from(gpu_names()),
    stored=st.sampled_from(sorted(FORMATS)),
)
def test_weights_without_kernels_on_a_card_are_refused(engine: str, card: str, stored: str) -> None:
    gpu, version = load_gpu(card), SERVING[engine].default
    text = said("llama-3.2-1b", gpus=card, engine=engine, context=2048, weights=stored)
    assert has_kernel(stored, gpu, engine, version) or text.startswith("refused")


def test_float8_of_torchtitan_needs_a_card_with_it() -> None:
    with pytest.raises(InvalidSpec, match="no fp8"):
        vramcast.train(
            "llama-3.1-8b", gpus="8xa100-sxm4-80gb", engine="torchtitan", engine_option="float8=true",
        )


@pytest.mark.parametrize(("options", "words"), [
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
])
def test_what_a_version_or_a_card_cannot_is_refused(options: dict[str, Any], words: str) -> None:
    text = said("llama-3.1-8b", **({"gpus": "h100", "context": 4096} | options))
    assert text.startswith("refused") and words in text


def test_learned_positions_end() -> None:
    assert "1024 positions that gpt2 learned" in said("gpt2", gpus="h100", engine="transformers", context=1025)
    assert issubclass(InvalidSpec, VramcastError)
