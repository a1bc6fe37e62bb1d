"""Every activation function of transformers keeps and needs what the formulas say, autocast or not."""

import pytest
import torch

pytest.importorskip("transformers")

from transformers.activations import ACT2CLS, ACT2FN

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.program import extent, live_at_end
from vramcast.operators.activation import ACTIVATIONS, LEARNED, activation
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import Caller, lower
from vramcast.tracing.session import Session

SIDE = 1024
SMALL = 4 * 2**10  # weights of one element, scalars: blocks of 512 bytes [bytes]


def traced(name, *, autocast):
    """Bytes kept by forward, its peak, and backward's, on a simulated card."""
    session = Session(load_gpu("a100-sxm4-80gb"))
    with session.active():
        act = ACT2FN[name].to("cuda", torch.bfloat16)
        x = torch.ones(SIDE, SIDE, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            out = act(x)
        kept, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
        if out is x:
            return 0, 0, 0
        gradient = torch.ones_like(out)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.grad(out, [x, *act.parameters()], gradient)
        assert not session.simulation.unseen
        return kept, peak, torch.cuda.max_memory_allocated() - before


def computed(name, *, autocast):
    """The same of the formulas."""
    graph = Graph("test")
    x = graph.input("x", SIDE * SIDE * 2)
    out = activation(graph, x, elements=SIDE * SIDE, itemsize=2, variant=name, autocast=autocast)
    if out is x:
        return 0, 0, 0
    graph.returns(out)
    lowered = lower(graph, hold_inputs=False, caller=Caller((x,), accumulates=False, holds_gradients=True))
    kept = sum(count * tensor.block_bytes for tensor, count in live_at_end(lowered.forward).items())
    return kept, extent(lowered.forward).peak, extent(lowered.backward).peak


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ACT2CLS)
def test_formula_and_trace_agree(name, autocast):
    for ours, theirs in zip(computed(name, autocast=autocast), traced(name, autocast=autocast), strict=True):
        assert ours == pytest.approx(theirs, abs=SMALL)


def test_the_table_has_every_name_of_transformers_and_no_other():
    assert set(ACTIVATIONS) == set(ACT2CLS)
    assert {name: sum(1 for _ in ACT2FN[name].parameters()) for name in ("prelu", "xielu")} == LEARNED
    assert not any(list(ACT2FN[name].parameters()) for name in ACT2CLS if name not in LEARNED)


@pytest.mark.parametrize("name", ["SiLU", "GELU", "Gelu_New"])
def test_transformers_refuses_other_cases(name):
    with pytest.raises(KeyError):
        ACT2FN[name]
