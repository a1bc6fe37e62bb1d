"""What every serving engine does: impossible plans, drafts, headers, unequal cards."""

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import vramcast
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.model import StoredTensor, StoredWeights
from vramcast.engines.serving.checks import has_kernel
from vramcast.engines.serving.stages import even_stages
from vramcast.engines.serving.table import SERVING
from vramcast.engines.serving.weights import Formats, Part, loaded, part_of_stored, total, weight_tensors
from vramcast.errors import InvalidSpec, UnknownName, Unsupported, VramcastError
from vramcast.parallel.layout import Layout
from vramcast.states.storage import FORMATS

# What an engine, a card or a network cannot do is refused in one sentence, or stands in the first three lines.

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


# What proposes tokens beside a model.

def drafted_bytes(model: str, **options: Any) -> int:
    found = vramcast.serve(model, gpus="8xh200", context=4096, **options)
    return sum(entry.num_bytes for entry in found.ranks[0].ledger if entry.category == "draft model")


def test_experts_of_a_draft_model_are_divided_too() -> None:
    two, four = (drafted_bytes("qwen3-235b-a22b", tp=tp, draft="qwen3-30b-a3b", weights="fp8") for tp in (2, 4))
    assert 0 < four == pytest.approx(two / 2, rel=0.02)


# Weights as a checkpoint's headers state them.

MODEL = load_model("llama-3.2-1b")
BF16 = Formats("bf16", "bf16")


def stored(*tensors: tuple[str, int]) -> StoredWeights:
    return StoredWeights(
        tensors=tuple(StoredTensor(name=name, dtype="u8", shape=(size,), num_bytes=size) for name, size in tensors)
    )


def weigh(weights: StoredWeights | None, tp: int = 1, formats: Formats = BF16) -> int:
    stage = even_stages(MODEL.num_layers, 1)[0]
    found = weight_tensors(MODEL, layout=Layout(tp=tp), formats=formats, stage=stage, stored=weights)
    return total(loaded(found))


def test_on_one_rank_the_sum_is_the_headers_own() -> None:
    header = stored(("model.embed_tokens.weight", 400_000_000), ("model.layers.0.mlp.up_proj.weight", 300_000_000))
    assert abs(weigh(header) - 700_000_000) < 40 * 2**20  # remainders of large blocks


def test_an_index_without_headers_gives_its_total() -> None:
    assert abs(weigh(StoredWeights(listed_bytes=10**9)) - 10**9) < 40 * 2**20


def test_parts_are_told_by_name_in_both_formats() -> None:
    moe = replace(load_model("qwen3-30b-a3b"))
    names = {
        "model.layers.1.mlp.experts.3.up_proj.weight": Part.EXPERTS, "blk.1.ffn_up_exps.weight": Part.EXPERTS,
        "model.layers.1.mlp.shared_expert.up_proj.weight": Part.LAYERS, "lm_head.weight": Part.HEAD,
        "output.weight": Part.HEAD, "token_embd.weight": Part.EMBEDDING, "model.visual.blocks.0.w": Part.TOWERS,
        "model.layers.48.mlp.up_proj.weight": Part.NONE,
    }
    for name, part in names.items():
        assert part_of_stored(StoredTensor(name=name, dtype="bf16", shape=(1,), num_bytes=2), moe) is part, name


# Unequal cards: what engines would do by themselves is said where it is not what is counted.

CARDS = "rtx-4090+rtx-3060-12gb"


@pytest.mark.parametrize(
    ("engine", "words"), [("llama.cpp", "--tensor-split 1,1"), ("transformers", "max_memory"), ("vllm", "")]
)
def test_an_even_split_is_said(engine: str, words: str) -> None:
    answer = vramcast.serve("qwen3-8b", gpus=CARDS, engine=engine, context=4096)
    least = vramcast.serve("qwen3-8b", gpus="2xrtx-3060-12gb", engine=engine, context=4096)
    assert words in " ".join(answer.cautions) and "unequal cards" in " ".join(answer.cautions)
    assert answer.capacity_bytes == least.capacity_bytes
    assert [rank.peak.allocated_bytes for rank in answer.ranks] == [rank.peak.allocated_bytes for rank in least.ranks]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_what_others_hold_is_beside_what_an_engine_takes(engine: str) -> None:
    alone = vramcast.serve("qwen3-4b", gpus="rtx-4090", engine=engine, context=4096)
    held = vramcast.serve("qwen3-4b", gpus="rtx-4090", engine=engine, context=4096, used="3GiB")
    assert held.fullest.needed_bytes <= alone.fullest.needed_bytes + (3 << 30)
    assert any("held by others" in entry.path and entry.num_bytes == 3 << 30 for entry in held.fullest.ledger)
    assert engine != "vllm" or held.fullest.needed_bytes == alone.fullest.needed_bytes + (3 << 30)
