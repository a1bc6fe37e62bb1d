"""How mxfp4 experts lie in memory: kernels by version and card, sizes of the layouts they want."""

from __future__ import annotations

import pytest

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.model import MoE
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.serving.weights import MARLIN, padding_bytes
from vramcast.engines.vllm.process import captured_sizes
from vramcast.engines.vllm.settings import packing_of, settings_of
from vramcast.estimate.serving import answer, deploy
from vramcast.units import GIB


def job(model: str, version: tuple[int, ...], *, gpu: str = "h100-sxm-80gb", **plan: object) -> ServeJob:
    """A deployment on cards of a kind."""
    return ServeJob(
        model=load_model(model), requests=Requests(context=8192), plan=ServePlan(**plan), engine="vllm",
        version=version, cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=8),
    )


@pytest.mark.parametrize(
    ("model", "version", "tp", "gib"),
    [
        ("gpt-oss-20b", (0, 19), 1, 13.64), ("gpt-oss-20b", (0, 19), 2, 7.01),  # start-up logs on H100
        ("gpt-oss-120b", (0, 10, 1), 1, 65.97), ("gpt-oss-120b", (0, 11, 2), 1, 64.38),
    ],
)
def test_weights_of_gpt_oss_are_those_of_logs(model: str, version: tuple[int, ...], tp: int, gib: float) -> None:
    weights = deploy(job(model, version, tp=tp)).ranks[0].startup["weights"]
    assert weights / GIB == pytest.approx(gib, rel=2.5e-3)


@pytest.mark.parametrize(
    ("gpu", "version", "adapters", "name"),
    [
        ("h100-sxm-80gb", (0, 11, 0), False, "Marlin"), ("h100-sxm-80gb", (0, 12), False, "Triton"),
        ("h100-sxm-80gb", (0, 19), True, "Marlin"), ("a100-sxm4-80gb", (0, 19), False, "Marlin"),
        ("b200-180gb", (0, 19), False, "FlashInfer"), ("rtx-5090", (0, 19), False, "Marlin"),
    ],
)
def test_kernels_of_experts_go_by_card_and_version(
    gpu: str, version: tuple[int, ...], adapters: bool, name: str
) -> None:
    assert packing_of(load_model("gpt-oss-20b"), load_gpu(gpu), version, adapters=adapters).name == name


def test_marlin_pads_experts_to_tiles() -> None:
    moe = next(layer.channel for layer in load_model("gpt-oss-20b").main.layers if isinstance(layer.channel, MoE))
    values = (2 * 2944 * 3072 + 3072 * 2944 - 3 * 2880 * 2880) // 2
    scales = (2 * 2944 * 3072 + 3072 * 2944 - 3 * 2880 * 2880) // 32
    biases = 2 * (2 * 2944 + 3072 - 3 * 2880)
    found = padding_bytes(moe, 2880, divided=1, experts=1, packing=MARLIN)
    assert found == values + scales + biases * moe.expert.bias


@pytest.mark.parametrize(
    ("model", "version", "sizes"),
    [
        ("gpt-oss-20b", (0, 11, 0), 81), ("gpt-oss-20b", (0, 11, 2), 83), ("gpt-oss-20b", (0, 19), 83),
        ("llama-3.1-8b", (0, 11, 0), 67), ("llama-3.1-8b", (0, 11, 2), 51),
    ],
)
def test_batch_sizes_with_a_graph_are_those_that_the_code_lists(
    model: str, version: tuple[int, ...], sizes: int
) -> None:
    asked = job(model, version)
    assert captured_sizes(settings_of(asked), asked.model, asked.cluster.gpu) == sizes


def test_gpt_oss_120b_serves_on_one_h100_at_95_percent_under_0_11() -> None:
    found = answer(job("gpt-oss-120b", (0, 11), memory_fraction=0.95))
    assert found.fits
