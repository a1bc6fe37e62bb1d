"""How times of parts make the time of a step."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.api import train_answer
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.model import Attention, Model
from vramcast.states.storage import token_bytes
from vramcast.timing.composition import BUBBLES, EXCHANGES, Pipeline, Transfers, step
from vramcast.timing.forward import forward_work
from vramcast.timing.rates import assumed_links, collective_s, links_of
from vramcast.timing.roofline import Operation, step_of
from vramcast.timing.training.fabric import Fabric, fabric_of
from vramcast.timing.training.parts import KERNEL_S, LAUNCH_S
from vramcast.timing.work import Execution, Placement, Setting, Step

# The arithmetic of a step: floats and arrays alike, and the bubbles that papers state.

seconds = st.floats(0.0, 100.0)
shares = st.floats(0.0, 1.0)


def even(*, stages: int, micro_batches: int, chunks: int = 1) -> Pipeline:
    """Stages that all take one second forward and two backward."""
    return Pipeline(1.0 * stages, 2.0 * stages, 1.0, 2.0, micro_batches, stages, chunks)


def test_the_bubble_of_1f1b_is_a_pass_of_every_other_stage() -> None:
    assert BUBBLES["1f1b"](even(stages=8, micro_batches=32)) == pytest.approx(7 * 3.0)
    assert BUBBLES["gpipe"](even(stages=8, micro_batches=32)) == pytest.approx(7 * 3.0)


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(seconds, seconds, st.integers(1, 64), st.integers(1, 16)), min_size=1, max_size=8),
       loss=shares, hidden=shares)
def test_arrays_give_what_floats_give(rows: list[tuple[float, float, int, int]], loss: float, hidden: float) -> None:
    np: Any = pytest.importorskip("numpy")
    columns = [np.array(column, np.float64) for column in zip(*rows, strict=True)]

    def totals(forward: Any, backward: Any, micro: Any, chunks: Any) -> list[Any]:
        pipeline = Pipeline(3 * forward, 3 * backward, forward, backward, micro, 3, chunks)
        moved = Transfers(forward, backward, backward, forward, micro, hidden, hidden, loss, 1)
        found = []
        for schedule in BUBBLES:
            for exchange in EXCHANGES.values():
                gradients, weights = exchange(moved)
                found.append(step(pipeline, schedule=schedule, gradients=gradients, weights=weights, spread=0.1).total)
        return found

    together = totals(*columns)
    for index, row in enumerate(rows):
        assert [values[index] for values in together] == pytest.approx(totals(*map(float, row)))


def chunked(*, stages: int, chunks: int, micro_batches: int) -> Pipeline:
    """Equal stages; one micro-batch takes a second forward and two backward on each."""
    return Pipeline(
        forward=1.0 * stages, backward=2.0 * stages, slowest_forward=1.0, slowest_backward=2.0,
        micro_batches=micro_batches, stages=stages, virtual_stages=chunks,
    )


def total_s(**sizes: int) -> float:
    return float(step(chunked(**sizes), schedule="interleaved").total)


@given(stages=st.integers(2, 16), chunks=st.integers(1, 8))
def test_one_micro_batch_passes_all_stages_one_after_the_other(stages: int, chunks: int) -> None:
    assert total_s(stages=stages, chunks=chunks, micro_batches=1) == pytest.approx(3.0 * stages)


# What a step does: every weight is read once, operations follow the published counts, caches the states.

FUSED = Execution()
DENSE = ["llama-3.1-8b", "qwen2.5-7b", "gemma-2-9b", "falcon-7b", "gpt-j-6b", "mamba-2.8b", "deepseek-v2-lite"]
EVERY = [*DENSE, "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3"]


def work(
    model: Model, step: Step, placement: Placement | None = None, execution: Execution = FUSED
) -> list[tuple[str, float, float, float, float]]:
    """Name, operations, weight, cache and activation bytes of every operator, repeats put in."""
    setting = Setting(step, placement or Placement(), execution)
    return [
        (one.name, count * one.flops, count * one.weight_bytes, count * one.cache_bytes, count * one.message_bytes)
        for one, count in forward_work(model, model.main.runs, setting)
    ]


@pytest.mark.parametrize("name", EVERY)
@given(sequences=st.integers(1, 64), cached=st.integers(1, 4096))
@settings(max_examples=5, deadline=None)
def test_decoding_reads_the_cache_that_states_say_a_sequence_has(name: str, sequences: int, cached: int) -> None:
    model = load_model(name)
    rows = work(model, Step(sequences, 1, cached))
    read = sum(row[3] for row in rows if row[0] == "attention.scores")
    stated = sum(
        run.count * token_bytes(run.layer.mixer) * min(cached + 1, window(run.layer.mixer) or cached + 1)
        for run in model.main.runs
    )
    assert read == pytest.approx(sequences * stated)


def window(mixer: object) -> int | None:
    return mixer.window if isinstance(mixer, Attention) else None


# Links between the cards of a machine, for serving steps and training steps alike.

LINKED = [name for name in gpu_names() if load_gpu(name).link_bytes_per_s]


def bridged(name: str) -> Gpu:
    return replace(load_gpu(name), bridged=True)


def fabric(gpu: Gpu, cards: int = 8) -> Fabric:
    return fabric_of(Cluster(gpu=gpu, gpus_per_node=cards))


def test_a_bridge_is_used_only_where_somebody_says_that_it_is_fitted() -> None:
    bare, fitted = load_gpu("rtx-3090"), bridged("rtx-3090")
    for gpu, kind in ((bare, "PCIe 4"), (fitted, "NVLink3 bridge")):
        assert links_of(gpu, node_cards=2).between(2).source.startswith(kind)
    assert fabric(bare, 2).link == fabric(bare, 2).pcie < fabric(fitted, 2).link
    assert "no NVLink3 bridge" in assumed_links(bare, node_cards=2)[0]
    assert fabric(bare, 2).assumptions == assumed_links(bare, node_cards=2)
    assert assumed_links(fitted, node_cards=2) == assumed_links(bare, node_cards=1) == ()


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(LINKED), ranks=st.integers(2, 64), stride=st.integers(1, 8), factor=st.floats(1, 8),
    cards=st.sampled_from([2, 4, 8, 16]),
)
def test_a_slower_link_is_never_faster(name: str, ranks: int, stride: int, factor: float, cards: int) -> None:
    slow = bridged(name)
    fast = replace(slow, link_bytes_per_s=round(factor * (slow.link_bytes_per_s or 0)))
    here, there = (fabric_of(Cluster(gpu=gpu, gpus_per_node=cards, num_nodes=4)) for gpu in (slow, fast))
    for pattern in ("all-reduce", "all-gather"):
        assert (
            there.collective(pattern, ranks=ranks, stride=stride).s_per_byte
            <= here.collective(pattern, ranks=ranks, stride=stride).s_per_byte
        )
    assert there.all_to_all(ranks=ranks, stride=stride).s_per_byte <= (
        here.all_to_all(ranks=ranks, stride=stride).s_per_byte
    )
    assert there.send(stride=stride).s_per_byte <= here.send(stride=stride).s_per_byte
    assert links_of(fast, node_cards=cards).between(ranks).bytes_per_s >= (
        links_of(slow, node_cards=cards).between(ranks).bytes_per_s
    )


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "a100-sxm4-80gb", "b200-180gb", "l40s"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_exchanges_over_more_machines_cost_no_less(gpu: str, recompute: str) -> None:
    given = {"model": "llama-3.1-8b", "engine": "torchtitan", "seq-len": 4096, "recompute": recompute}
    machines = (given | {"gpus": f"{count}{gpu}"} for count in ("8x", "2x8x", "8x8x"))
    times = [train_answer(options, with_changes=False)[1].time.seconds for options in machines]
    exchanged = [found["gradients"] + found["gathered"] for found in times]
    assert exchanged == sorted(exchanged)


# Steps from operators: rates of the card, the host that starts them, what it waits for.

CARD = load_gpu("a100-sxm4-80gb")
LAUNCH = LAUNCH_S["Ampere"]
SMALL = Operation("pointwise", "forward", "norm")
LARGE = Operation("product", "forward", "mlp", "bf16", flops=1e13, num_bytes=1e9)


def test_the_host_runs_ahead_of_large_kernels_unless_it_reads_a_result() -> None:
    ahead, held = (step_of([LARGE, *between, *[SMALL] * 100], CARD) for between in ([], [replace(SMALL, kind="wait")]))
    assert ahead is not None and "launch" in ahead.seconds and ahead.seconds["launch"] == pytest.approx(0.0)
    assert held is not None and held.seconds["launch"] == pytest.approx(100 * (LAUNCH - KERNEL_S), rel=0.02)


# Seconds of a step: the longer of operations and bytes, collectives, launches; shares that add up.

H100 = load_gpu("h100-sxm-80gb")


@given(ranks=st.integers(2, 64), num_bytes=st.integers(1, 1 << 30))
@settings(max_examples=30)
def test_an_all_reduce_takes_its_latency_and_never_less_with_more_ranks(ranks: int, num_bytes: int) -> None:
    link = links_of(H100, node_cards=8).whole
    here = collective_s(num_bytes, ranks=ranks, pattern="all-reduce", link=link)
    more = collective_s(num_bytes, ranks=ranks + 1, pattern="all-reduce", link=link)
    assert link.latency_s < here <= more
    assert collective_s(num_bytes, ranks=1, pattern="all-reduce", link=link) == 0.0
