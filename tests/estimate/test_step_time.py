"""Whole steps: parts that add up, figures that papers publish, and what must never be faster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.api import job_of
from vramcast.domain.answer import StepTime
from vramcast.domain.device import Network
from vramcast.domain.job import Job
from vramcast.errors import Unsupported
from vramcast.estimate.model_flops import model_flops
from vramcast.estimate.step_time import step_time, timed
from vramcast.report.document import document
from vramcast.report.messages import LANGUAGES, Words
from vramcast.report.text import render


def job(**options: object) -> Job:
    given = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "megatron"} | options
    return job_of({name.replace("_", "-"): value for name, value in given.items()})


def timing(**options: object) -> StepTime:
    return step_time(job(**options))


ENGINES = (
    {"engine": "megatron", "tp": 2}, {"engine": "torchtitan"}, {"engine": "torchtitan", "compile": True},
    {"engine": "deepspeed"}, {"engine": "huggingface", "peft": "lora"}, {"engine": "litgpt", "peft": "lora"},
    {"engine": "torchtune"}, {"engine": "colossalai"}, {"engine": "pytorch"},
    {"engine": "unsloth", "peft": "lora", "gpus": "1xh100-sxm-80gb"},
)


@pytest.mark.parametrize("options", ENGINES, ids=lambda options: str(options["engine"]))
def test_every_engine_is_timed_and_its_parts_add_up(options: dict[str, object]) -> None:
    found = timing(**options)
    assert sum(found.seconds.values()) == pytest.approx(found.step_s)
    assert found.tokens_per_s == pytest.approx(found.tokens_per_s_per_gpu * job(**options).cluster.count)
    assert found.mfu is not None
    assert 0 < found.mfu < 1
    assert found.sources


def test_model_flops_are_six_a_weight_and_half_of_attention() -> None:
    # 6 x (8.03e9 weights - 0.525e9 of the embedding) + 6 x 32 layers x 4096 x 4096 / 2 keys x 2 products
    weights = 8.03026e9 - 128256 * 4096
    attention = 6 * 32 * 4096 * 4097
    assert model_flops(job()) == pytest.approx(6 * weights + attention, rel=1e-3)


@settings(max_examples=20, deadline=None)
@given(factor=st.integers(2, 8), pp=st.sampled_from([1, 2, 4]), shards=st.sampled_from(["nothing", "optimizer"]))
def test_more_bandwidth_is_never_slower(factor: int, pp: int, shards: str) -> None:
    asked = job(gpus="4x8xh100-sxm-80gb", pp=pp, shards=shards, grad_accum=4)
    gpu = asked.cluster.gpu
    network = Network(bytes_per_s=50 * 10**9, rdma="RoCE")
    slow = replace(asked, cluster=replace(asked.cluster, network=network))
    wide = replace(network, bytes_per_s=factor * network.bytes_per_s)
    assert gpu.bandwidth_bytes_per_s is not None
    assert gpu.link_bytes_per_s is not None
    faster = (
        replace(slow.cluster, network=wide),
        replace(slow.cluster, gpu=replace(gpu, bandwidth_bytes_per_s=factor * gpu.bandwidth_bytes_per_s)),
        replace(slow.cluster, gpu=replace(gpu, link_bytes_per_s=factor * gpu.link_bytes_per_s)),
    )
    for cluster in faster:
        assert step_time(replace(slow, cluster=cluster)).step_s <= step_time(slow).step_s


def test_recomputation_offload_and_sharding_cost_time() -> None:
    plain = timing(engine="deepspeed", zero="2")
    for option in ({"recompute": "full"}, {"offload_optimizer": "cpu"}, {"zero": "3"}):
        assert timing(**({"engine": "deepspeed", "zero": "2"} | option)).step_s > plain.step_s
    assert timing(engine="deepspeed", zero="2", offload_optimizer="nvme").step_s > timing(
        engine="deepspeed", zero="2", offload_optimizer="cpu"
    ).step_s


def test_recomputing_some_layers_lies_between_none_and_all() -> None:
    none, some, whole = (
        timing(recompute="none"), timing(recompute="full", recompute_layers=8), timing(recompute="full")
    )
    assert none.step_s < some.step_s < whole.step_s


TITAN = {"engine": "torchtitan", "seq_len": "8k", "micro_batch": 2, "compile": True}


def test_torchtune_trains_16_bit_weights_under_either_name() -> None:
    assert timing(engine="torchtune", precision="mixed-bf16") == timing(engine="torchtune", precision="bf16")


def test_a_library_with_one_kernel_a_weight_takes_as_long_whichever_of_pytorchs_is_asked_for() -> None:
    asked = {"engine": "pytorch", "gpus": "h100"}
    parts = {
        (optimizer, kernel): timing(**asked, optimizer=optimizer, optimizer_kernel=kernel).seconds["optimizer"]
        for optimizer in ("adamw-8bit", "adamw") for kernel in ("foreach", "fused")
    }
    assert parts["adamw-8bit", "foreach"] == parts["adamw-8bit", "fused"] < parts["adamw", "fused"]
    assert parts["adamw", "foreach"] > parts["adamw", "fused"]


def test_compiled_float8_costs_its_casts_and_eager_float8_is_slower_than_16_bits() -> None:
    whole, float8 = (timing(**TITAN, precision=name) for name in ("amp-bf16", "fp8"))
    assert float8.seconds["pointwise"] > 1.5 * whole.seconds["pointwise"]
    assert 1.2 < whole.step_s / float8.step_s < 1.45
    plain, eager = (timing(**(TITAN | {"compile": False}), precision=name) for name in ("amp-bf16", "fp8"))
    assert eager.step_s > plain.step_s


def test_float8_is_the_same_as_an_option_and_gathering_it_saves_time() -> None:
    precise, option, gathered = (
        timing(**TITAN, precision="fp8"), timing(**TITAN, precision="amp-bf16", engine_option=("float8=true",)),
        timing(**TITAN, precision="fp8", engine_option=("float8_all_gather=true",)),
    )
    assert option == precise
    assert gathered.seconds["gathered"] < precise.seconds["gathered"]
    assert gathered.step_s < precise.step_s


def test_what_is_not_timed_is_said_in_one_sentence() -> None:
    asked = job(engine="pytorch", objective="dpo")
    with pytest.raises(Unsupported, match="objective=dpo is not timed"):
        step_time(asked)
    found = timed(asked)
    assert found.time is None
    assert found.assumptions[0].startswith("no step time: ")
    with pytest.raises(Unsupported, match="projects queries and outputs in two steps"):
        step_time(job(model="deepseek-v4-flash", engine="pytorch"))
    unknown = replace(asked.cluster, gpu=replace(asked.cluster.gpu, bandwidth_bytes_per_s=None))
    with pytest.raises(Unsupported, match="has no bandwidth"):
        step_time(replace(job(), cluster=unknown))


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_show_the_step_in_text_and_json(language: str) -> None:
    from vramcast.estimate.training import answer

    found = answer(job(gpus="2x8xh100-sxm-80gb"))
    assert found.time is not None
    text = render(found, Words(language), explain=True)
    assert "MFU" in text
    assert "token/s" in text or "tokens/s" in text
    plain = json.loads(json.dumps(document(found)))["time"]
    assert {"step_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "seconds", "bound"} <= set(plain)
    assert any("RDMA" in line for line in found.assumptions)


def test_a_pipeline_of_torchtitan_cuts_its_local_batch() -> None:
    asked = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "pp": 4, "seq-len": "4k"}
    one, many = (step_time(job_of({**asked, "micro-batch": samples})) for samples in (1, 32))
    assert one.seconds["pipeline"] > one.step_s / 2  # one sample has nothing to overlap with
    assert many.seconds["pipeline"] < 0.2 * many.step_s


def test_local_batches_do_not_overlap_in_a_pipeline_of_torchtitan() -> None:
    asked = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "pp": 4, "seq-len": "4k"}
    whole = step_time(job_of({**asked, "micro-batch": 16}))
    halves = step_time(job_of({**asked, "micro-batch": 8, "grad-accum": 2}))
    assert halves.seconds["pipeline"] > 1.5 * whole.seconds["pipeline"]
