"""Parts that do not learn: no gradients, no states, and no activations where nothing learns before them."""

import pytest

import vramcast
from vramcast.errors import InvalidSpec, UnknownName

MEBIBYTE = 2**20


def answer(model, **options):
    return vramcast.train(model, gpus="a100-sxm4-80gb", engine="pytorch", precision="bf16",
                          engine_option="model_loss=true", **options)


# as transformers 5.23 and torch 2.13 run them in a simulation; the answers were within 0.5 % of these
@pytest.mark.parametrize(("model", "options", "allocated"), [
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128}, 3902.99),
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128, "freeze": "encoder"}, 1711.71),
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128, "recompute": "full"}, 2400.03),
    ("clip-vit-large-patch14", {"micro_batch": 16, "freeze": "vision"}, 1839.29),
    ("clip-vit-large-patch14", {"micro_batch": 16, "freeze": "text"}, 5977.64),
    ("vit-base-patch16-224", {"micro_batch": 16}, 1507.53),
    ("mixtral-8x7b", {"layers": 2, "seq_len": 2048, "freeze": "layers"}, 8796.43),
])
def test_a_step_is_that_of_transformers(model, options, allocated):
    assert answer(model, **options).peak.allocated_bytes / MEBIBYTE == pytest.approx(allocated, rel=0.005)


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
