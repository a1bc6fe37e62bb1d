"""Defaults of vLLM by version, card and network, as its releases have them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.vllm.settings import Settings, settings_of
from vramcast.errors import InvalidSpec, UnknownName


def settings(
    version: tuple[int, ...], gpu: str = "h100-sxm-80gb", *, model: str = "llama-3.1-8b", context: int = 8192,
    options: dict[str, Any] | None = None, **plan: Any,
) -> Settings:
    job = ServeJob(
        model=load_model(model), requests=Requests(context=context), plan=ServePlan(**plan),
        cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=8), engine="vllm", version=version,
        engine_options=options or {},
    )
    return settings_of(job)


@pytest.mark.parametrize(("version", "fraction"), [((0, 6), 0.9), ((0, 19, 1), 0.9), ((0, 20), 0.92), ((0, 33), 0.92)])
def test_default_fraction(version: tuple[int, ...], fraction: float) -> None:
    assert settings(version).memory_fraction == fraction


def test_the_first_engine_takes_whole_prompts_up_to_32k() -> None:
    old = {"v1": False}
    assert settings((0, 8), context=20000, options=old).batched_tokens == 20000
    assert settings((0, 8), context=131072, options=old).batched_tokens == 2048
    assert settings((0, 8), context=131072, options=old, lora_slots=1).batched_tokens == 131072
    assert settings((0, 8), context=512, model="bge-large-en-v1.5", options=old).batched_tokens == 32768
    assert settings((0, 8), context=2048, model="qwen2.5-vl-7b", options=old).batched_tokens == 5120


def test_a_batch_is_not_larger_than_all_sequences_together() -> None:
    found = settings((0, 19), context=512, max_sequences=4)
    assert found.batched_tokens == 2048
    assert settings((0, 19), batched_tokens=256).max_sequences == 256


def test_steps_under_way_count_since_they_are_counted() -> None:
    assert settings((0, 25)).in_flight == 8192
    assert settings((0, 26)).in_flight == 2 * 8192
    assert settings((0, 26), pp=2).in_flight == 3 * 8192
    assert settings((0, 26), model="qwen3.5-27b").in_flight == 2 * 8192
    assert settings((0, 19), pp=2).in_flight == 8192


@pytest.mark.parametrize(
    ("version", "model", "second"),
    [
        ((0, 24), "llama-3.1-8b", False), ((0, 25), "llama-3.1-8b", True), ((0, 28), "qwen3.5-27b", False),
        ((0, 28), "qwen3-30b-a3b", False), ((0, 29), "qwen3-30b-a3b", True), ((0, 28), "bge-large-en-v1.5", False),
    ],
)
def test_the_second_runner_came_with_dense_networks_first(version: tuple[int, ...], model: str, second: bool) -> None:
    assert settings(version, model=model, context=512).runner_2 is second


def test_prefix_caching_came_to_recurrent_networks_late() -> None:
    assert settings((0, 19)).prefix_caching
    assert not settings((0, 25), model="qwen3.5-27b").prefix_caching
    assert settings((0, 26), model="qwen3.5-27b").prefix_caching
    assert settings((0, 19), model="qwen3.5-27b", prefix_caching=True).prefix_caching


@pytest.mark.parametrize(("version", "inside"), [((0, 19, 1), False), ((0, 20), True)])
def test_graphs_are_taken_off_the_cache_since(version: tuple[int, ...], inside: bool) -> None:
    assert settings(version).graphs_in_budget is inside
    assert settings(version, options={"graphs-in-budget": not inside}).graphs_in_budget is not inside


def test_unknown_options_name_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean offline"):
        settings((0, 19), options={"ofline": True})


@pytest.mark.parametrize(("name", "value"), [("offline", 1), ("images", True), ("images", "two")])
def test_options_of_the_wrong_type_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidSpec, match="must be"):
        settings((0, 19), options={name: value})


def test_gb10_has_the_batch_of_a_small_card_since_0_33() -> None:
    shared = replace(load_gpu("rtx-pro-6000-bw-se"), name="gb10", compute_capability="12.1")
    job = ServeJob(
        model=load_model("llama-3.1-8b"), requests=Requests(), plan=ServePlan(), engine="vllm", version=(0, 33),
        cluster=Cluster(gpu=shared, gpus_per_node=1),
    )
    assert settings_of(job).batched_tokens == 2048
    assert settings_of(replace(job, version=(0, 31))).batched_tokens == 8192
