"""llama.cpp with weights on the host: what lies there is read over main memory, or brought to a card."""

from __future__ import annotations

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


def test_a_host_that_nobody_describes_is_named() -> None:
    for gpu, machine in (("rtx-3090", "a desktop"), ("h100-sxm-80gb", "one Xeon")):
        _, assumptions = asked(gpu=gpu, n_cpu_moe=36)
        assert any(f"the host is taken for {machine}" in text for text in assumptions)
    assert not any("is taken for" in text for text in asked(n_cpu_moe=0)[1])


def test_weights_come_to_the_card_for_large_batches_unless_told_otherwise() -> None:
    brought, stays = asked(n_cpu_moe=36)[0], asked(n_cpu_moe=36, op_offload=False)[0]
    assert brought.prefill_bound == "offload"
    assert stays.prefill_bound == "main_memory"
    assert asked(n_cpu_moe=36, concurrency=40)[0].decode_shares["offload"] > 0


def test_layers_on_the_host_are_timed() -> None:
    rates = [asked("llama-3.1-8b", weights="q4_k_m", gpu_layers=layers)[0].tokens_per_s for layers in (33, 24, 8, 0)]
    assert all(rate is not None for rate in rates)
    assert rates == sorted(rates, reverse=True)
