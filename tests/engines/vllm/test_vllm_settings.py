"""Defaults of vLLM by version, card and network, as its releases have them."""

from typing import Any

import pytest

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.vllm.process import attention_workspace
from vramcast.engines.vllm.settings import Settings, settings_of
from vramcast.errors import InvalidSpec
from vramcast.units import MIB


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


@pytest.mark.parametrize(("version", "gpu", "model", "asked", "mib"), [
    ((0, 19), "h100-sxm-80gb", "llama-3.1-8b", None, 0),
    ((0, 19), "h100-sxm-80gb", "llama-3.1-8b", "FLASHINFER", 394),
    ((0, 11), "h100-sxm-80gb", "llama-3.1-8b", "FLASHINFER", 256),
    ((0, 19), "b200", "llama-3.1-8b", None, 394),  # data-centre Blackwell alone chooses FlashInfer
    ((0, 19), "b200", "llama-3.1-8b", "FLASH_ATTN", 0),
    ((0, 19), "b200", "deepseek-v3", None, 128),
    ((0, 19), "rtx-5090", "llama-3.1-8b", None, 0),
])
def test_flashinfer_brings_a_workspace(version: tuple[int, ...], gpu: str, model: str, asked: str, mib: int) -> None:
    options = {} if asked is None else {"attention-backend": asked}
    tensor = attention_workspace(settings(version, gpu, model=model, options=options))
    assert (0 if tensor is None else tensor.num_bytes) == mib * MIB


@pytest.mark.parametrize(("version", "gpu", "asked", "said"), [
    ((0, 19), "h100-sxm-80gb", "FLASHMLA", "latent"), ((0, 19), "t4", "FLASH_ATTN", "does not run it"),
    ((0, 19), "t4", "XFORMERS", "V1"),
])
def test_kernels_of_other_networks_cards_and_engines_are_refused(
    version: tuple[int, ...], gpu: str, asked: str, said: str
) -> None:
    with pytest.raises(InvalidSpec, match=said):
        settings(version, gpu, options={"attention-backend": asked})
    assert not settings((0, 9), "t4", options={"attention-backend": "XFORMERS"}).v1
