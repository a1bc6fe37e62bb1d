"""Weights as a checkpoint's headers state them."""

from msgspec.structs import replace

from vramcast.catalogue.models import load_model
from vramcast.domain.model import StoredTensor, StoredWeights
from vramcast.engines.serving.stages import even_stages
from vramcast.engines.serving.weights import Formats, Part, loaded, part_of_stored, total, weight_tensors
from vramcast.parallel.layout import Layout

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
