"""Parts that do not learn: no gradients, no states, and no activations where nothing learns before them."""

import pytest

import vramcast
from vramcast.errors import InvalidSpec, UnknownName

MEBIBYTE = 2**20


def answer(model, **options):
    return vramcast.train(model, gpus="a100-sxm4-80gb", engine="pytorch", precision="bf16",
                          engine_option="model_loss=true", **options)


def entries(found, category, owner):
    return sum(one.num_bytes for one in found.ranks[0].ledger if one.path.startswith(f"{category}/{owner}"))


# as transformers 5.23 and torch 2.13 run them in a simulation; the answers were within 0.5 % of these
@pytest.mark.parametrize(("model", "options", "allocated"), [
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128}, 3902.99),
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128, "freeze": "encoder"}, 1711.71),
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128, "recompute": "full"}, 2400.03),
    ("clip-vit-large-patch14", {"micro_batch": 16, "freeze": "vision"}, 1839.29),
    ("clip-vit-large-patch14", {"micro_batch": 16, "freeze": "text"}, 5977.64),
    ("vit-base-patch16-224", {"micro_batch": 16}, 1507.53),
])
def test_a_step_is_that_of_transformers(model, options, allocated):
    assert answer(model, **options).peak.allocated_bytes / MEBIBYTE == pytest.approx(allocated, rel=0.005)


def test_a_frozen_tower_before_anything_that_learns_keeps_nothing():
    found = answer("llava-1.5-7b", seq_len=1024, freeze="vision_tower")
    assert not entries(found, "activations", "vision.layers")
    assert not entries(found, "optimizer", "vision.layers")
    assert entries(found, "optimizer", "vision/exp_avg of projector")


def test_a_frozen_language_model_behind_what_learns_keeps_what_backward_reads():
    found = answer("llava-1.5-7b", seq_len=1024, freeze="vision,llm")
    assert entries(found, "activations", "decoder.layers")
    assert not entries(found, "optimizer", "decoder") + entries(found, "optimizer", "head")


def test_a_linear_probe_keeps_no_activations_of_its_backbone():
    found = answer("vit-base-patch16-224", micro_batch=64, freeze="backbone")
    assert found.peak.allocated_bytes < 0.2 * answer("vit-base-patch16-224", micro_batch=64).peak.allocated_bytes


def test_beside_adapters_a_frozen_part_has_none():
    options = {"seq_len": 1024, "image_size": 448, "peft": "lora", "lora_targets": "all-linear"}
    found = answer("qwen2.5-vl-3b", **options, freeze="visual,merger")
    assert not [one for one in found.ranks[0].ledger if "vision" in one.path and "lora" in one.path]
    assert found.peak.allocated_bytes < answer("qwen2.5-vl-3b", **options).peak.allocated_bytes


@pytest.mark.parametrize(("sharder", "shards"), [
    ("fsdp1", "everything"), ("fsdp2", "everything"), ("deepspeed", "everything"), ("deepspeed", "optimizer"),
])
@pytest.mark.parametrize("parts", ["vision", "vision,projector", "vision,decoder"])
def test_sharded_runs_freeze_parts_too(sharder, shards, parts):
    asked = {"gpus": "4xa100-sxm4-80gb", "engine": "huggingface", "seq_len": 1024, "sharded_by": sharder,
             "shards": shards}
    all_learn = vramcast.train("llava-1.5-7b", **asked).peak.allocated_bytes
    assert vramcast.train("llava-1.5-7b", **asked, freeze=parts).peak.allocated_bytes < all_learn


@pytest.mark.parametrize(("parts", "error"), [
    ("vision,llm,projector", InvalidSpec), ("backbone,head", InvalidSpec), ("tower", UnknownName),
])
def test_what_leaves_nothing_or_names_nothing_is_refused(parts, error):
    with pytest.raises(error):
        answer("llava-1.5-7b", seq_len=1024, freeze=parts)
