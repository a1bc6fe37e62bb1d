"""llama.cpp: what it deploys, where layers go, its cache, compute buffers and projectors; ggml's allocator."""

import re
import struct
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.engines.llamacpp._jobs import MIB, context, job, kv_mib
from vramcast.api import serve
from vramcast.domain.answer import ServeAnswer
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed
from vramcast.engines.ggml.scheduler import CUDA, HOST, Machine, Memory, padded_bytes, reserve
from vramcast.engines.llamacpp import context as compute
from vramcast.engines.llamacpp.context import Context, card_bytes, host_bytes, weights_on
from vramcast.engines.llamacpp.deploy import fitted
from vramcast.engines.llamacpp.settings import settings_of
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.serving import answer

# What a user of `vramcast serve --engine llama.cpp` gets, from a file's header and from names.

LAYERS, HIDDEN, FFN, HEADS, VOCAB = 4, 512, 1024, 4, 1024
F32, Q8_0, Q4_K = 0, 8, 12
BYTES = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144)}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensors() -> list[tuple[str, tuple[int, ...], int]]:
    found = [("token_embd.weight", (HIDDEN, VOCAB), Q4_K), ("output_norm.weight", (HIDDEN,), F32)]
    found.append(("output.weight", (HIDDEN, VOCAB), Q8_0))
    for layer in range(LAYERS):
        shapes = {
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN, HIDDEN),
            "attn_v": (HIDDEN, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (HIDDEN, FFN),
            "ffn_up": (HIDDEN, FFN), "ffn_down": (FFN, HIDDEN),
        }
        for part, shape in shapes.items():
            found.append((f"blk.{layer}.{part}.weight", shape, Q4_K if len(shape) > 1 else F32))
    return found


def size_of(shape: tuple[int, ...], kind: int) -> int:
    elements = 1
    for size in shape:
        elements *= size
    block, size = BYTES[kind]
    return elements // block * size


def gguf(path: Path) -> Path:
    """A file of a tiny Llama whose weights are a hole."""
    values = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": FFN, "attention.head_count": HEADS,
        "context_length": 8192,
    }
    listed = tensors()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(values) + 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for key, value in values.items():
        head += text(f"llama.{key}") + struct.pack("<II", 4, value)
    offset = 0
    for name, shape, kind in listed:
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", kind, offset)
        offset += -(-size_of(shape, kind) // 32) * 32
    start = -(-len(head) // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(start + offset)
    return path


def weights_bytes(found: ServeAnswer) -> int:
    return sum(entry.num_bytes for entry in found.fullest.ledger if entry.category == "weights")


def test_layers_left_to_the_host_are_not_on_the_card(tmp_path: Path) -> None:
    file = str(gguf(tmp_path / "tiny.gguf"))
    sizes = [weights_bytes(serve(model=file, gpus="rtx-3090", context=4096, gpu_layers=count)) for count in (5, 3, 1)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]


def test_what_does_not_fit_says_how_many_layers_do() -> None:
    found = serve(model="llama-3.1-70b", gpus="rtx-3090", engine="llama.cpp", weights="q4_k_m", context=8192)
    assert not found.fits
    said = next(line for line in found.warnings if "--gpu-layers" in line)
    layers = int(said.split()[0])
    for count, fits in ((layers, True), (layers + 1, False)):
        again = serve(
            model="llama-3.1-70b", gpus="rtx-3090", engine="llama.cpp", weights="q4_k_m", context=8192, gpu_layers=count
        )
        assert again.fits is fits


# Caches: bytes per cell by type, padding by build, windows, compressed and recurrent states.

def test_each_slot_has_a_stream_of_its_own_unless_unified() -> None:
    apart = settings_of(job("llama-3.1-8b", context=1000, concurrency=3))
    assert (apart.streams, apart.context) == (3, 3 * 1024)
    assert settings_of(job("llama-3.1-8b", context=1000, concurrency=3, kv_unified=True)).streams == 1
    assert settings_of(job("llama-3.1-8b", context=1000, concurrency=3, build=5800)).streams == 1


def test_a_sliding_window_keeps_the_window_and_one_micro_batch() -> None:
    """gemma-3-4b: 5 layers of the whole context, 29 of 1024 + 512 cells, 4 KiB a token and layer: 814 MiB at 32k."""
    assert kv_mib(context("gemma-3-4b", context=32768)) == 5 * 32768 * 4096 / MIB + 29 * 1536 * 4096 / MIB
    whole = 34 * 32768 * 4096 / MIB
    assert kv_mib(context("gemma-3-4b", context=32768, swa_full=True)) == whole
    assert kv_mib(context("gemma-3-4b", context=32768, build=5400)) == whole


# Compute buffers against figures that follow from the graph, and what holds for every question.

def card_mib(model: str, **more: object) -> float:
    return max(context(model, **more).reserved.cards) / MIB


def test_ik_llama_cpp_decompresses_as_many_heads_at_once_as_amb_allows() -> None:
    all_heads = card_mib("deepseek-v3", fork=True, mla=3, attention="flash", context=32768, gpu_layers=62)
    some = card_mib("deepseek-v3", fork=True, mla=3, amb=512, attention="flash", context=32768, gpu_layers=62)
    assert all_heads > 32768 * 128 * 256 * 4 / MIB > some


MODELS = ("llama-3.1-8b", "gemma-3-4b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3.5-27b", "mamba-2.8b")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("flash", ["flash", "eager"])
def test_more_context_larger_batches_and_more_slots_never_take_less_of_a_card(model: str, flash: str) -> None:
    for name, values in (
        ("context", (2048, 8192, 32768)), ("micro_batch", (32, 128, 512, 2048)), ("concurrency", (1, 2, 4)),
    ):
        asked = [{"context": 8192, "attention": flash} | {name: value} for value in values]
        sizes = [card_bytes(context(model, **more), 0) for more in asked]
        assert sizes == sorted(sizes), (name, sizes)


@pytest.mark.parametrize(("model", "more"), [
    *product(("llama-3.1-8b", "gemma-3-4b", "deepseek-v2-lite", "qwen3-30b-a3b", "qwen3.5-27b"),
             ({}, {"cards": 3}, {"gpu_layers": 10}, {"attention": "eager"})),
    ("deepseek-v2-lite", {"cpu_moe": True}), ("qwen3-30b-a3b", {"cpu_moe": True}),
])
def test_equal_layers_need_not_all_be_written_down(
    model: str, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = job(model, context=8192, **more)
    short = Context(question).reserved
    monkeypatch.setattr(compute, "representative", lambda layers, placement: layers)
    assert Context(question).reserved == short


# Layers and weights on cards and host.

def test_shares_divide_unequal_cards() -> None:
    found = context("llama-3.1-8b", cards=2, tensor_split="3,1").placement
    assert found.layers.count(0) == 25
    assert context("llama-3.1-8b", cards=2, split_mode="none").placement.layers.count(0) == 32


def test_batches_overlap_on_several_cards_only_where_every_layer_lies_on_them() -> None:
    some, every = (context("llama-3.1-8b", cards=2, build=9000, gpu_layers=layers) for layers in (20, 33))
    assert every.pipelined and not some.pipelined
    assert max(some.reserved.cards) < 2 * max(every.reserved.cards)


def test_experts_can_stay_on_the_host_by_layer_or_by_pattern() -> None:
    some = context("qwen3-30b-a3b", n_cpu_moe=10)
    assert {weight.layer for weight in weights_on(some, 1)["ffn_up_exps"]} == set(range(10))
    every = context("qwen3-30b-a3b", override_tensor="ffn_.*_exps=CPU")
    assert "ffn_up_exps" not in weights_on(every, 0) and "attn_q" in weights_on(every, 0)
    assert card_bytes(every, 0) < card_bytes(some, 0)


@pytest.mark.parametrize(("options", "message"), [
    ({"override_tensor": "exps"}, "PATTERN=CPU"), ({"override_tensor": "exps=CUDA4"}, "CUDA0"),
    ({"override_tensor": "(=CPU"}, "override-tensor"), ({"tensor_split": "a,b"}, "such as 3,1"),
    ({"tensor_split": "1,1,1"}, "up to 1"),
])
def test_wrong_placements_get_one_sentence(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        context("qwen3-30b-a3b", **options)


@pytest.mark.parametrize(("model", "more", "said"), [
    ("qwen3-32b", {"context": None}, r"where -c is not given: a context of [\d,]+ tokens"),
    ("qwen3-32b", {"context": 40960}, "of 65 layers are on the cards, the head counted"),
    ("gpt-oss-120b", {"context": None}, "a context of 4,096 tokens, .* experts of .* of 36 layers are on the host"),
    ("gpt-oss-120b", {"context": 8192}, "experts of .* of 36 layers are on the host"),
    ("llama-3.1-405b", {"context": 8192}, "of 127 layers are on the cards"),
    ("qwen3-8b", {"context": 8192}, None), ("qwen3-32b", {"context": 40960, "build": 7000}, None),
    ("qwen3-32b", {"context": 40960, "fit": "context"}, None),
    ("qwen3-32b", {"context": 40960, "gpu_layers": 65}, None),
    ("gpt-oss-120b", {"context": 8192, "fit": "off"}, None),
    ("gpt-oss-120b", {"context": 8192, "cpu_moe": True}, None),
])
def test_what_nobody_places_is_fitted_to_the_cards(model: str, more: dict[str, Any], said: str | None) -> None:
    """Since --fit (pull request 16653) a gibibyte is left free; what is asked for stays."""
    asked = job(model, weights="q4_k_m", **more)
    found, moved = fitted(asked)
    if said is None:
        assert (found, moved) == (asked, ())
        return
    assert re.search(said, ", ".join(moved))
    room = asked.cluster.gpu.free_bytes - (asked.cluster.gpu.context_bytes or 0) - (1 << 30)
    assert card_bytes(Context(found), 0) <= room < card_bytes(Context(asked), 0)
    answered = answer(asked, with_changes=False)
    assert answered.fits and set(moved) <= {*answered.cautions} and "gpu_layers" not in answered.question["plan"]
    assert answered.question["requests"]["context"] == found.context  # which asked again is the same


# Projectors: what builds of llama.cpp print of their weights and buffers, and where both lie.

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


# ggml's best-fit allocator: holes are reused, blocks never overlap, results take the place of what they replace.

ONE_CARD = Machine(memories=(CUDA, HOST), supports=lambda tensor, card: True, offloads=lambda tensor: False)
GGML_MIB = 1 << 20


def test_rows_of_quantised_tensors_are_padded_on_cards_only() -> None:
    tensor = Tensor("q8_0", (64, 4, 1, 1))
    assert padded_bytes(tensor, HOST) == 4 * 68
    assert padded_bytes(tensor, CUDA) == 4 * 68 + (512 - 64) // 32 * 34


@pytest.mark.parametrize("memory", [CUDA, Memory(128, shrinks=False)])
def test_leafs_are_allocated_first_and_freed_behind_their_last_reader(memory: Memory) -> None:
    graph = Graph()
    x = fed("f32", 1024, 256)
    graph.expand(ops.like("norm", ops.like("norm", x)))
    machine = ONE_CARD._replace(memories=(memory,))
    assert reserve(graph, machine) == (2 * GGML_MIB,)
