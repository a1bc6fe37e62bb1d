"""Megatron's Mamba-2 mixer.

Letters: N tokens   i inner width   g groups   s state width   h heads (all local)
[Mixer] Megatron-LM megatron/core/ssm/mamba_mixer.py; mamba_ssm mamba_split_conv1d_scan_combined, which saves its
packed input and its output before the gated norm.
"""

from __future__ import annotations

from typing import Final

from vramcast.blocks.megatron_shape import Shape
from vramcast.domain.model import Mamba
from vramcast.operators.graph import Graph, Value
from vramcast.operators.transformer_engine import Linear, activation, column_linear, row_linear, transient

CHUNK: Final = 128
"""Positions of one chunk of the state space scan (mamba_mixer.py, chunk_size)."""


def mamba(graph: Graph, x: Value, block: Mamba, shape: Shape, *, hidden: int) -> Value:
    """In projection, convolution and scan in one kernel, out projection."""
    n, e = shape.tokens, shape.element
    i, heads = block.inner_dim // shape.tp, block.num_heads // shape.tp
    states = 2 * max(1, block.num_groups // shape.tp) * block.state_dim
    packed_width = 2 * i + states + heads
    linear = Linear(rows=packed_width, columns=hidden, tokens=n, tokens_between=shape.tokens_between, element=e)
    projected = column_linear(graph, "mamba.in", x, linear)
    packed = projected
    if shape.batch > 1:
        packed = activation(graph, "mamba.batch first", n, packed_width, e)
        graph.call("mamba.transpose", [projected], [packed])
    scanned = activation(graph, "mamba.scan.out", n, i, e)
    before_norm = activation(graph, "mamba.scan before norm", n, i, e, gradient=False)
    inverse = activation(graph, "mamba.norm statistics", n, 4, gradient=False)
    convolved = transient(graph, "mamba.convolved", n, i + states, e)
    steps = transient(graph, "mamba.steps and decays", 2, n, heads, 4)
    chunk_states = transient(graph, "mamba.chunk states", n // CHUNK or 1, i, block.state_dim, 4)
    pairs = transient(graph, "mamba.C B products", n, states // (2 * block.state_dim), CHUNK, 4)
    forward = [convolved, steps, chunk_states, chunk_states, pairs]
    graph.call("mamba.scan", [packed], [scanned], saved=[packed], extra=[before_norm, inverse], temporaries=forward,
               backward_temporaries=[*forward, chunk_states, convolved])
    out = scanned
    if shape.batch > 1:
        out = activation(graph, "mamba.sequence first", n, i, e)
        graph.call("mamba.transpose back", [scanned], [out])
    down = Linear(rows=hidden, columns=i, tokens=n, tokens_between=shape.tokens_between, element=e)
    return row_linear(graph, "mamba.out", out, down)
