"""Seconds of a step: the longer of operations and bytes, collectives, launches; shares that add up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Precision
from vramcast.timing.forward import forward_work
from vramcast.timing.links import collective_s, links_of
from vramcast.timing.rates import SHAPES, bandwidth, product_rate
from vramcast.timing.roofline import StepTime, machine_of, step_time
from vramcast.timing.training.rates import rates_of
from vramcast.timing.work import EXECUTIONS, Execution, Placement, Setting, Step, Work, execution_of

H100 = load_gpu("h100-sxm-80gb")
BARE = Execution(kernel_s=0.0, step_s=0.0)


def seconds(work: Work, execution: Execution = BARE, *, replayed: bool = True, gpu: str = "h100-sxm-80gb") -> StepTime:
    machine = machine_of(load_gpu(gpu), "vllm", execution, whole="bf16", node_cards=8)
    assert machine is not None
    return step_time([(work, 1)], machine, Placement(), replayed=replayed)


def test_an_operator_takes_as_long_as_the_longer_of_its_operations_and_bytes() -> None:
    memory, product = bandwidth(H100), product_rate(H100, "bf16", "bf16")
    assert memory is not None
    assert product is not None
    read = seconds(Work("read", flops=1e6, weight_bytes=1e9))
    assert read.seconds == pytest.approx(1e9 / memory[0])
    assert read.bound == "memory"
    computed = seconds(Work("product", flops=1e15, weight_bytes=1e6))
    assert computed.seconds == pytest.approx(1e15 / (product.flops_per_s * SHAPES.value))
    assert computed.bound == "compute"


@given(ranks=st.integers(2, 64), num_bytes=st.integers(1, 1 << 30))
@settings(max_examples=30)
def test_an_all_reduce_takes_its_latency_and_never_less_with_more_ranks(ranks: int, num_bytes: int) -> None:
    link = links_of(H100, node_cards=8).whole
    here = collective_s(num_bytes, ranks=ranks, pattern="all-reduce", link=link)
    more = collective_s(num_bytes, ranks=ranks + 1, pattern="all-reduce", link=link)
    assert link.latency_s < here <= more
    assert collective_s(num_bytes, ranks=1, pattern="all-reduce", link=link) == 0.0


def test_fp8_products_run_in_fp8_where_the_card_can_and_in_16_bits_elsewhere() -> None:
    on_h100, on_a100 = product_rate(H100, "fp8", "bf16"), product_rate(load_gpu("a100-sxm4-80gb"), "fp8", "bf16")
    assert on_h100 is not None
    assert on_a100 is not None
    assert (on_h100.dtype, on_a100.dtype) == ("fp8", "bf16")
    packed = product_rate(H100, "awq-int4", "bf16")
    assert packed is not None
    assert packed.dtype == "bf16"
    old = product_rate(load_gpu("v100-sxm2-16gb"), "bf16", "bf16")
    assert old is not None
    assert old.dtype == "fp16"


@pytest.mark.parametrize("older, newer", [
    ("rtx-4090", "rtx-5090"), ("rtx-4080", "rtx-5080"), ("l40s", "rtx-pro-6000-bw-se"),
])
def test_a_desktop_card_is_not_timed_by_what_data_centre_cards_of_its_name_reach(older: str, newer: str) -> None:
    """B200 reaches 0.47 of its rate over a training step; an RTX 5090 counted so was slower than an RTX 4090."""
    shares = {rates.products / rates.peak for name in (older, newer)
              if (rates := rates_of(load_gpu(name), Precision.AMP_BF16)) is not None}
    assert len(shares) == 1


@pytest.mark.parametrize("engine", EXECUTIONS)
@given(sequences=st.integers(1, 256), cached=st.integers(1, 100000), tokens=st.sampled_from([1, 16, 512]))
@settings(max_examples=10, deadline=None)
def test_shares_add_up_and_more_work_never_takes_less_time(
    engine: str, sequences: int, cached: int, tokens: int
) -> None:
    model, execution = load_model("qwen3-30b-a3b"), execution_of(engine, (99,), arch="Hopper")
    assert execution is not None
    machine = machine_of(H100, engine, execution, whole="bf16", node_cards=8)
    assert machine is not None
    times = []
    steps = [(sequences, cached), (sequences + 1, cached), (sequences, 2 * cached)]
    for step in (Step(number, tokens, held) for number, held in steps):
        works = forward_work(model, model.main.runs, Setting(step, Placement(), execution))
        times.append(step_time(works, machine, Placement(), replayed=not execution.eager))
    for time in times:
        assert sum(time.shares.values()) == pytest.approx(1.0)
        assert all(share >= 0 for share in time.shares.values())
    assert times[0].seconds <= min(times[1].seconds, times[2].seconds) + 1e-12
