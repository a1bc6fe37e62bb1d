"""llama.cpp with weights on the host: what lies there is read over main memory, or brought to a card."""

from itertools import pairwise

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Speed
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.estimate.speed import timed


def asked(model: str = "gpt-oss-120b", *, gpu: str = "rtx-3090", weights: str | None = None, concurrency: int = 1,
          gpu_layers: int | None = None, **options: object) -> tuple[Speed, tuple[str, ...]]:
    job = ServeJob(
        model=load_model(model), requests=Requests(context=8192 * concurrency, concurrency=concurrency, input_len=4096),
        plan=ServePlan(weights=weights, gpu_layers=gpu_layers), engine="llama.cpp", version=(7000,),
        cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=1),
        engine_options={name.replace("_", "-"): v for name, v in options.items()},
    )
    found = timed(job)
    assert found.speed is not None, found.assumptions
    return found.speed, found.assumptions


def test_every_expert_layer_on_the_host_costs_time() -> None:
    rates = [asked(n_cpu_moe=layers)[0] for layers in (0, 1, 9, 18, 27, 36)]
    for faster, slower in pairwise(rates):
        assert faster.decode_tokens_per_s is not None
        assert slower.decode_tokens_per_s is not None
        assert faster.decode_tokens_per_s > slower.decode_tokens_per_s
        assert faster.prefill_tokens_per_s > slower.prefill_tokens_per_s
