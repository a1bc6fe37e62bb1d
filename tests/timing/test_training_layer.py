"""Seconds of one layer: the times Korthikanti et al. measured, and what must never make it faster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.blocks.sizes import Sizes
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.device import Cluster, Network
from vramcast.domain.job import Precision, Recompute
from vramcast.domain.model import MLP, Attention, Layer
from vramcast.timing.training.fabric import fabric_of
from vramcast.timing.training.layer import layer_passes
from vramcast.timing.training.parts import Machine, Shape, Style
from vramcast.timing.training.rates import rates_of
from vramcast.timing.training.tape import taped

A100 = load_gpu("a100-sxm4-80gb")
LLAMA_8B = Layer(mixer=Attention(num_heads=32, num_kv_heads=8, head_dim=128), channel=MLP(width=14336, gated=True))


def machine(style: Style | None = None, *, nodes: int = 1, gbps: int = 1600) -> Machine:
    rates = rates_of(A100, Precision.MIXED_BF16)
    assert rates is not None
    network = Network(bytes_per_s=gbps * 10**9 // 8, rdma="InfiniBand")
    cluster = Cluster(gpu=A100, gpus_per_node=8, num_nodes=nodes, network=network)
    return Machine(rates, fabric_of(cluster), style or Style(tensor_overlap="backward"))


def test_full_recomputation_repeats_forward_and_modules_a_part_of_it() -> None:
    def backward(recompute: Recompute) -> float:
        return layer_passes(
            LLAMA_8B, hidden=4096, shape=Shape(1, 4096), machine=machine(), recompute=recompute,
            modules=("core_attn",),
        ).backward.total

    forward = layer_passes(LLAMA_8B, hidden=4096, shape=Shape(1, 4096), machine=machine()).forward.total
    assert backward(Recompute.FULL) == pytest.approx(backward(Recompute.NONE) + forward)
    assert backward(Recompute.NONE) < backward(Recompute.SELECTIVE) < backward(Recompute.FULL)


@settings(max_examples=30, deadline=None)
@given(tp=st.sampled_from([1, 2, 4, 8]), length=st.sampled_from([512, 4096, 16384]), sequences=st.integers(1, 8))
def test_more_tokens_are_never_faster_and_more_ranks_never_compute_more(tp: int, length: int, sequences: int) -> None:
    def one(shape: Shape) -> float:
        return layer_passes(LLAMA_8B, hidden=4096, shape=shape, machine=machine()).total

    here = Shape(sequences, length, tp=tp, sequence_parallel=tp > 1)
    assert one(here) < one(here._replace(sequences=sequences + 1))
    assert one(here) < one(here._replace(seq_len=2 * length))


def test_a_gptq_weight_is_unpacked_by_five_kernels_forward_and_not_again_in_backward() -> None:
    sizes = Sizes(batch=1, seq_len=64, hidden=4096, frozen=True, stored="gptq-int4")
    found = {operator.name: operator for operator in taped(LLAMA_8B, sizes) if not operator.flops}
    gate = found["unpack"]
    # shifted apart: 0.5 + 4 bytes of an element; cast 4 + 1, masked 1 + 1, less its zero 1 + 1, times its scale 1 + 2
    assert gate.weight_bytes / 16.5 in {4096 * rows for rows in (14336, 4096, 1024)}
    assert gate.backward_weight_bytes == gate.backward_kernels == 0
