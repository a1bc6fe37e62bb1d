"""Defaults of vLLM by version, card and network, as its releases have them."""

from typing import Any

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.vllm.settings import Settings, settings_of


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


def test_prefix_caching_came_to_recurrent_networks_late() -> None:
    assert settings((0, 19)).prefix_caching
    assert not settings((0, 25), model="qwen3.5-27b").prefix_caching
    assert settings((0, 26), model="qwen3.5-27b").prefix_caching
    assert settings((0, 19), model="qwen3.5-27b", prefix_caching=True).prefix_caching
