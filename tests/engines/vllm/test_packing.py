"""How mxfp4 experts lie in memory: kernels by version and card, sizes of the layouts they want."""

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.estimate.serving import answer


def job(model: str, version: tuple[int, ...], *, gpu: str = "h100-sxm-80gb", **plan: object) -> ServeJob:
    """A deployment on cards of a kind."""
    return ServeJob(
        model=load_model(model), requests=Requests(context=8192), plan=ServePlan(**plan), engine="vllm",
        version=version, cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=8),
    )


def test_gpt_oss_120b_serves_on_one_h100_at_95_percent_under_0_11() -> None:
    found = answer(job("gpt-oss-120b", (0, 11), memory_fraction=0.95))
    assert found.fits
