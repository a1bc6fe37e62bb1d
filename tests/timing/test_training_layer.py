"""Seconds of one layer: the times Korthikanti et al. measured, and what must never make it faster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.blocks.sizes import Sizes
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.device import Cluster, Network
from vramcast.domain.job import Precision, Recompute
from vramcast.domain.model import MLP, Attention, Layer, MoE, Norm
from vramcast.timing.training.fabric import Fabric, fabric_of
from vramcast.timing.training.layer import layer_passes
from vramcast.timing.training.operators import attended, layer_operators
from vramcast.timing.training.parts import Machine, Shape, Style
from vramcast.timing.training.rates import rates_of
from vramcast.timing.training.tape import taped

A100 = load_gpu("a100-sxm4-80gb")
GPT_22B = Layer(
    mixer=Attention(num_heads=64, num_kv_heads=64, head_dim=96, qkv_bias=True, out_bias=True, rope=False),
    channel=MLP(width=4 * 6144, gated=False, activation="gelu", bias=True), norm=Norm.LAYER,
)
LLAMA_8B = Layer(
    mixer=Attention(num_heads=32, num_kv_heads=8, head_dim=128), channel=MLP(width=14336, gated=True),
)
SPARSE = replace(LLAMA_8B, channel=MoE(num_experts=64, top_k=6, expert=MLP(width=1408, gated=True)))


def machine(style: Style | None = None, *, nodes: int = 1, gbps: int = 1600) -> Machine:
    rates = rates_of(A100, Precision.MIXED_BF16)
    assert rates is not None
    network = Network(bytes_per_s=gbps * 10**9 // 8, rdma="InfiniBand")
    cluster = Cluster(gpu=A100, gpus_per_node=8, num_nodes=nodes, network=network)
    return Machine(rates, fabric_of(cluster), style or Style(tensor_overlap="backward"))


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "forward_ms", "backward_ms"),
    [
        (Recompute.NONE, False, 7.7, 11.9),
        (Recompute.NONE, True, 7.2, 11.8),
        (Recompute.FULL, False, 7.7, 19.5),
        (Recompute.SELECTIVE, False, 7.7, 13.2),
        (Recompute.SELECTIVE, True, 7.2, 13.1),
    ],
)
def test_a_layer_of_the_22b_model_takes_what_was_measured(
    recompute: Recompute, sequence_parallel: bool, forward_ms: float, backward_ms: float
) -> None:
    # arXiv:2205.05198, table 4: sequences of 2,048, micro-batch 4, tensor parallelism 8
    shape = Shape(4, 2048, tp=8, sequence_parallel=sequence_parallel)
    style = Style(tensor_overlap="backward", eager_scores=13.0)
    found = layer_passes(
        GPT_22B, hidden=6144, shape=shape, machine=machine(style), recompute=recompute, modules=("core_attn",)
    )
    assert 1e3 * found.total == pytest.approx(forward_ms + backward_ms, rel=0.15)


def test_full_recomputation_repeats_forward_and_modules_a_part_of_it() -> None:
    def backward(recompute: Recompute) -> float:
        return layer_passes(
            LLAMA_8B, hidden=4096, shape=Shape(1, 4096), machine=machine(), recompute=recompute,
            modules=("core_attn",),
        ).backward.total

    forward = layer_passes(LLAMA_8B, hidden=4096, shape=Shape(1, 4096), machine=machine()).forward.total
    assert backward(Recompute.FULL) == pytest.approx(backward(Recompute.NONE) + forward)
    assert backward(Recompute.NONE) < backward(Recompute.SELECTIVE) < backward(Recompute.FULL)


def test_products_follow_from_the_weights() -> None:
    shape = Shape(1, 4096)
    products = [o for o in layer_operators(LLAMA_8B, hidden=4096, shape=shape, style=Style()) if o.kind == "product"]
    weights = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336
    assert sum(o.flops for o in products) == 2 * 4096 * weights
    assert sum(o.backward_flops for o in products) == 4 * 4096 * weights


def test_experts_do_the_work_of_the_tokens_that_choose_them_wherever_they_are() -> None:
    def flops(ep: int) -> float:
        operators = layer_operators(SPARSE, hidden=4096, shape=Shape(1, 4096, ep=ep), style=Style())
        return sum(o.flops for o in operators if o.kind == "grouped")

    assert flops(1) == flops(8) == 2 * 4096 * 6 * 3 * 4096 * 1408


@settings(max_examples=30, deadline=None)
@given(tp=st.sampled_from([1, 2, 4, 8]), length=st.sampled_from([512, 4096, 16384]), sequences=st.integers(1, 8))
def test_more_tokens_are_never_faster_and_more_ranks_never_compute_more(tp: int, length: int, sequences: int) -> None:
    def one(shape: Shape) -> float:
        return layer_passes(LLAMA_8B, hidden=4096, shape=shape, machine=machine()).total

    here = Shape(sequences, length, tp=tp, sequence_parallel=tp > 1)
    assert one(here) < one(here._replace(sequences=sequences + 1))
    assert one(here) < one(here._replace(seq_len=2 * length))


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(2, 256), stride=st.integers(1, 16), gbps=st.integers(100, 3200))
def test_a_faster_network_is_never_slower(ranks: int, stride: int, gbps: int) -> None:
    def route(fabric: Fabric, pattern: str) -> float:
        return fabric.collective(pattern, ranks=ranks, stride=stride).seconds(1e9)

    slow, fast = (machine(nodes=64, gbps=rate).fabric for rate in (gbps, 2 * gbps))
    for pattern in ("all-reduce", "all-gather", "reduce-scatter"):
        assert route(fast, pattern) <= route(slow, pattern)
    assert fast.all_to_all(ranks=ranks, stride=stride).seconds(1e9) <= slow.all_to_all(
        ranks=ranks, stride=stride
    ).seconds(1e9)


def test_groups_inside_a_machine_use_the_link_and_others_the_network() -> None:
    fabric = machine(nodes=4).fabric
    inside = fabric.collective("all-gather", ranks=8).s_per_byte
    across = fabric.collective("all-gather", ranks=4, stride=8).s_per_byte
    assert inside == pytest.approx(7 / 8 / fabric.link)
    assert across == pytest.approx(3 / 4 / fabric.adapter)


def test_a_token_crosses_the_network_once_for_a_machine_when_it_is_dispatched() -> None:
    fabric = machine(nodes=4).fabric
    copied, once = fabric.all_to_all(ranks=32), fabric.dispatch(ranks=32, stride=1, copies=8)
    assert once.s_per_byte < copied.s_per_byte / 2


def test_racks_are_one_machine_for_the_link() -> None:
    cluster = Cluster(gpu=load_gpu("gb200-186gb"), gpus_per_node=4, num_nodes=16)
    assert fabric_of(cluster).node_cards == 64
    assert fabric_of(cluster).assumptions == ()


def test_an_unknown_network_is_said_to_be_assumed() -> None:
    found = fabric_of(Cluster(gpu=A100, gpus_per_node=8, num_nodes=2))
    assert "200 Gb/s" in found.assumptions[0]
    assert fabric_of(Cluster(gpu=A100, gpus_per_node=8)).assumptions == ()


def test_a_window_bounds_what_a_query_attends_to() -> None:
    assert attended(8192, None) == 4096.5
    assert attended(8192, 1024) < 1024
    assert attended(512, 1024) == attended(512, None)


def test_without_a_causal_mask_every_key_is_attended_to_and_computed() -> None:
    def flops(*, causal: bool) -> float:
        operators = layer_operators(GPT_22B, hidden=6144, shape=Shape(1, 2048, causal=causal), style=Style())
        return sum(o.flops for o in operators if o.kind == "attention")

    assert flops(causal=False) / flops(causal=True) == pytest.approx(2048 / 1024.5)
    assert attended(8192, 1024, causal=False) == 1024


def test_a_gptq_weight_is_unpacked_by_five_kernels_forward_and_not_again_in_backward() -> None:
    sizes = Sizes(batch=1, seq_len=64, hidden=4096, frozen=True, stored="gptq-int4")
    found = {operator.name: operator for operator in taped(LLAMA_8B, sizes) if not operator.flops}
    gate = found["unpack"]
    # shifted apart: 0.5 + 4 bytes of an element; cast 4 + 1, masked 1 + 1, less its zero 1 + 1, times its scale 1 + 2
    assert gate.weight_bytes / 16.5 in {4096 * rows for rows in (14336, 4096, 1024)}
    assert gate.backward_weight_bytes == gate.backward_kernels == 0
