"""Runs whose samples differ in length: every engine plays them, or says why it cannot."""

from typing import Any

import pytest
from msgspec.structs import astuple

from tests.formats.plans import named
from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.training import answer, need


def job(**options: Any) -> Job:
    return job_of({"model": "llama-3.2-1b"} | named(options))


@pytest.mark.parametrize("options", [
    {"engine": "pytorch"}, {"engine": "huggingface", "zero": "3"}, {"engine": "deepspeed", "zero": "2"},
    {"engine": "huggingface", "shards": "everything", "sharded_by": "fsdp1", "offload_parameters": "cpu"},
    {"engine": "pytorch", "shards": "everything", "sharded_by": "fsdp2"},
    {"engine": "torchtitan", "shards": "everything", "tp": 2}, {"engine": "torchtune", "shards": "everything"},
    {"engine": "megatron", "tp": 2, "pp": 2}, {"engine": "megatron", "pp": 2, "virtual_stages": 2},
    {"engine": "litgpt", "shards": "everything", "precision": "bf16"}, {"engine": "unsloth", "gpus": "h100"},
    {"engine": "litgpt", "gpus": "h100", "precision": "bf16", "peft": "lora", "base_weights": "nf4"},
])
def test_shorter_samples_before_the_longest_are_played_and_leave_its_peak(options: dict[str, Any]) -> None:
    options = {"gpus": "8xh100", "grad_accum": 4, "seq_len": 2048} | options
    alone, mixed = (answer(job(**options, **more), with_changes=False) for more in ({}, {"min_seq_len": 7}))
    # cached blocks of other lengths serve, up to a MiB larger than what they hold, which counts as allocated
    assert mixed.ranks[0].peak.allocated_bytes == pytest.approx(alone.ranks[0].peak.allocated_bytes, rel=0.05)
    assert any("steps of different lengths" in text for text in mixed.assumptions)


def test_pipelines_that_receive_one_length_refuse_others() -> None:
    options = {"gpus": "8xh100", "engine": "torchtitan", "pp": 2, "seq_len": 2048}
    with pytest.raises(Unsupported, match="samples of one length; leave --min-seq-len out"):
        answer(job(**options, min_seq_len=7))
    assert answer(job(**options, min_seq_len=2048), with_changes=False).ranks


def test_what_does_not_fit_is_told_by_a_card_on_which_it_would() -> None:
    """The allocator of a card without end keeps the segments of every length: 2.5 times what is allocated here."""
    asked = {"engine": "huggingface", "peft": "lora", "recompute": "full", "seq_len": 32768, "min_seq_len": 1}
    peak = answer(job(gpus="rtx-3060-12gb", **asked), with_changes=False).ranks[0].peak
    assert 12 << 30 < peak.allocated_bytes <= peak.reserved_bytes <= 1.5 * peak.allocated_bytes


@pytest.mark.parametrize("options, verdict", [
    ({"zero": "3", "recompute": "full", "micro_batch": 3}, Fit.CLOSELY),  # half of what is reserved is given back
    ({"zero": "3", "micro_batch": 2}, Fit.MAY_RUN_OUT),  # nearly all of it is allocated
])
def test_an_interval_ends_at_a_card_whose_allocator_gives_back_what_it_keeps(
    options: dict[str, Any], verdict: Fit
) -> None:
    asked = {"model": "qwen2.5-7b", "engine": "huggingface", "gpus": "8xa100-sxm4-80gb", "seq_len": 4096}
    one = job(**asked | options, min_seq_len=1)
    found = answer(one, with_changes=False)
    assert found.verdict is verdict
    assert astuple(need(one)) == (found.ranks[0].needed_bytes, found.ranks[0].high_bytes)


@pytest.mark.parametrize("model, options, tokens", [
    ("qwen2.5-vl-7b", {"image_size": 1024, "images": 2}, 2664),  # 73 x 73 patches, four of them one token
    ("llava-1.5-7b", {}, 576), ("gemma-3-4b", {}, 256), ("internvl3-1b", {}, 256),
])
def test_images_have_room_in_a_sample(model: str, options: dict[str, Any], tokens: int) -> None:
    asked = {"model": model, "gpus": "h100-sxm-80gb", "engine": "pytorch", **options}
    assert answer(job(**asked, seq_len=tokens), with_changes=False).ranks
    with pytest.raises(InvalidSpec, match=f"seq-len={tokens - 1} is less than the {tokens:,} tokens of the images"):
        answer(job(**asked, seq_len=tokens - 1), with_changes=False)
