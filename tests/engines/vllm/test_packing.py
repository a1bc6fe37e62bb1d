"""How mxfp4 experts lie in memory: kernels by version and card, sizes of the layouts they want."""

from __future__ import annotations

import pytest

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.vllm.process import captured_sizes
from vramcast.engines.vllm.settings import settings_of
from vramcast.estimate.serving import answer


def job(model: str, version: tuple[int, ...], *, gpu: str = "h100-sxm-80gb", **plan: object) -> ServeJob:
    """A deployment on cards of a kind."""
    return ServeJob(
        model=load_model(model), requests=Requests(context=8192), plan=ServePlan(**plan), engine="vllm",
        version=version, cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=8),
    )


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
