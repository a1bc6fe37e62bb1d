"""What MFU counts depends on the model, its length and what learns, and on nothing that an engine does."""

from __future__ import annotations

import pytest

from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.estimate.model_flops import model_flops
from vramcast.estimate.step_time import step_time


def job(**options: object) -> Job:
    given = {"model": "llama-3.1-8b", "gpus": "1xh200-sxm-141gb", "engine": "pytorch", "precision": "bf16"} | options
    return job_of({name.replace("_", "-"): value for name, value in given.items()})


LORA = {"engine": "huggingface", "peft": "lora", "lora_rank": 16, "lora_targets": ("attention.q", "mlp.down")}
VOCAB, HIDDEN, FEED_FORWARD, LAYERS = 128256, 4096, 14336, 32
EMBEDDING = VOCAB * HIDDEN


@pytest.mark.parametrize("length", [1024, 8192])
def test_the_attention_kernel_changes_the_time_and_not_the_operations(length: int) -> None:
    flash, eager = (job(seq_len=length, attention=kernel) for kernel in ("flash", "eager"))
    assert model_flops(flash) == model_flops(eager)
    assert step_time(flash).step_s < step_time(eager).step_s
    assert step_time(flash).mfu > step_time(eager).mfu


def test_frozen_weights_have_no_gradient_and_adapters_have_all_three_products() -> None:
    whole, adapted = model_flops(job()), model_flops(job(**LORA))
    adapters = LAYERS * 16 * ((HIDDEN + HIDDEN) + (FEED_FORWARD + HIDDEN))
    weights = 8.03026e9 - EMBEDDING
    assert whole - adapted == pytest.approx(2 * weights - 6 * adapters, rel=1e-4)


def test_a_trained_head_has_its_weight_gradient() -> None:
    frozen, trained = model_flops(job(**LORA)), model_flops(job(**LORA, modules_to_save=("head",)))
    assert trained - frozen == 2 * EMBEDDING


def test_no_mfu_is_higher_because_less_is_computed() -> None:
    found = step_time(job(**LORA, seq_len=4096))
    assert found.mfu == pytest.approx(
        model_flops(job(**LORA, seq_len=4096)) * found.tokens_per_s_per_gpu / 989.5e12, rel=1e-3
    )
    assert 0 < found.mfu < 0.7


ENCODERS = ("all-minilm-l6-v2", "bge-m3", "bert-base-uncased", "deberta-v3-large", "electra-large",
            "vit-base-patch16-224", "bge-reranker-v2-m3")


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_keep_below_what_products_sustain(name: str) -> None:
    found = step_time(job(model=name, gpus="1xa100-sxm4-80gb", seq_len=512, micro_batch=64))
    assert found.mfu is not None
    assert 0 < found.mfu < 0.65


def test_a_head_that_is_none_is_neither_timed_nor_counted() -> None:
    flops = model_flops(job(model="bge-m3", seq_len=512))
    layers, attention = 24 * 12 * 1024**2, 24 * 2 * 2 * 512 * 1024
    assert flops == pytest.approx(6 * layers + 3 * attention, rel=1e-4)
