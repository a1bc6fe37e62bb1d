"""Projectors: what builds of llama.cpp print of their weights and buffers, and where both lie."""

import pytest
from msgspec.structs import replace

from tests.engines.llamacpp._jobs import MIB, context, job
from vramcast.engines.llamacpp.context import Context, card_bytes, host_bytes
from vramcast.errors import InvalidSpec, Unsupported


@pytest.mark.parametrize(("model", "stored", "weights", "buffer", "more"), [
    ("gemma-3-4b", "f16", 811.79, 121.25, {}),  # llama.cpp pull request 22790
    ("gemma-3-12b", "f16", 814.60, 1132.00, {"attention": "eager"}),  # 16837
    ("mistral-small-3.1-24b", "f16", 837.36, 62.62, {}),  # issue 16842
    ("qwen3-vl-8b", "f32", 2198.75, 372.08, {}),  # issue 18181
    ("qwen3.5-4b", "bf16", 644.26, 223.30, {}),  # pull request 22673
    ("qwen2.5-vl-7b", "f16", 1291.40, 704.79, {}),  # issue 13445; gpustack/gguf-parser-go issue 44: 705, 4872
    ("qwen2.5-vl-7b", "f16", 1291.40, 4871.57, {"attention": "eager"}),
    ("qwen2-vl-7b", "f16", 1289.95, 267.08, {}),  # the same: 267, 4598
    ("qwen2-vl-7b", "f16", 1289.95, 4598.27, {"attention": "eager"}),
    ("qwen3-vl-4b", "f16", 797.43, 322.49, {}),  # the same: 323, 4728
    ("qwen3-vl-4b", "f16", 797.43, 4728.07, {"attention": "eager"}),
    ("gemma-4-31b", "bf16", 1145.07, 140.52, {}),  # issue 24758: 1145.08
    ("internvl3-8b", "f16", 635.12, 32.03, {}),  # clip.cpp at build 9000 over a file of zeros, as are the next two
    ("llava-1.5-7b", "f16", 595.49, 21.55, {}),  # ollama/ollama issue 2706: 595.49
    ("gemma-4-e4b", "f16", 944.38, 248.46, {}),  # 94.53 beside 153.93 for sound
])
def test_a_projector_takes_what_builds_print(
    model: str, stored: str, weights: float, buffer: float, more: dict[str, str]
) -> None:
    found = context(model, mmproj=stored, **more).projector
    assert found is not None
    assert sum(weight.num_bytes for weight in found.weights) / MIB == pytest.approx(weights, abs=0.01)
    assert found.start / MIB == pytest.approx(buffer, abs=0.01)


def test_the_largest_image_counts_unless_a_smaller_one_is_named() -> None:
    """4096 tokens of Qwen3.5 are 128 x 128 patches, the image it starts with has 92 x 92."""
    whole, small = (context("qwen3.5-4b", mmproj="f16", **more).projector for more in ({}, {"image_max_tokens": 256}))
    assert whole is not None and small is not None
    assert (whole.image.patches, small.image.patches) == (128 * 128, 32 * 32)
    assert whole.card > whole.start == small.card == small.start
    question = job("qwen3.5-4b", mmproj="f16")
    named = Context(replace(question, requests=replace(question.requests, image_size=640))).projector
    assert named is not None and named.image.patches == 40 * 40
    with pytest.raises(InvalidSpec, match="image-min-tokens=512"):
        context("qwen3.5-4b", mmproj="f16", image_max_tokens=256, image_min_tokens=512)


def test_the_first_card_or_the_host_has_it() -> None:
    without, on_card, on_host = (
        context("gemma-3-4b", cards=2, **more)
        for more in ({}, {"mmproj": "f16"}, {"mmproj": "f16", "mmproj_offload": False}))
    added = [card_bytes(on_card, card) - card_bytes(without, card) for card in range(2)]
    assert added[0] / MIB == pytest.approx(811.79 + 121.25 + 42.62, abs=0.1) and added[1] == 0
    assert card_bytes(on_host, 0) == card_bytes(without, 0)
    assert (host_bytes(on_host) - host_bytes(without)) / MIB == pytest.approx(811.79 + 121.25 + 9.19, abs=0.1)


def test_tiles_and_images_of_a_prompt_are_encoded_together_by_newer_builds() -> None:
    old, new = (context("internvl3-8b", mmproj="f16", build=build).projector for build in (9000, 9600))
    assert old is not None and new is not None and new.card == 4 * old.card
    question = job("gemma-4-31b", mmproj="f16", build=9600)
    one, several = (
        Context(replace(question, requests=replace(question.requests, images=images))).projector for images in (1, 9))
    assert one is not None and several is not None and several.card == 3 * one.largest


def test_a_network_that_hears_has_two_graphs() -> None:
    """Gemma 4 E4B: 16 layers that see, 12 that hear, in one file; the graph for sound is of thirty seconds."""
    found = context("gemma-4-e4b", mmproj="bf16").projector
    assert found is not None and found.sound / MIB == pytest.approx(153.93, abs=0.01)
    assert sum(weight.num_bytes for weight in found.weights) / MIB == pytest.approx(945.51, abs=0.01)
    assert found.start > found.sound and found.card == found.largest


@pytest.mark.parametrize(("model", "more", "said"), [
    ("llama-4-scout", {}, ": llama4;"), ("qwen3-8b", {}, "no tower"),
    ("gemma-3-4b", {"build": 6900}, "from build 6959 on"), ("gemma-3-4b", {"fork": True}, "from build 6959 on"),
])
def test_what_is_not_known_is_refused_by_name(model: str, more: dict[str, int], said: str) -> None:
    with pytest.raises(Unsupported, match=f"mmproj: .*{said}"):
        context(model, mmproj="f16", **more)
    assert context(model, mmproj="none", **more).projector is None
