"""Megatron's dense feed-forward block.

Source: Megatron-LM megatron/core/transformer/mlp.py
"""

from __future__ import annotations

from vramcast.blocks.megatron_shape import Shape
from vramcast.domain.model import MLP
from vramcast.operators.graph import Graph, Value
from vramcast.operators.transformer_engine import Linear, activation, column_linear, fused_activation, row_linear


def mlp(graph: Graph, x: Value, block: MLP, shape: Shape, *, hidden: int, name: str = "mlp") -> Value:
    """Up projection, activation, down projection."""
    width = block.width // shape.tp
    up = Linear(rows=width * (2 if block.gated else 1), columns=hidden, tokens=shape.tokens,
                tokens_between=shape.tokens_between, element=shape.element)
    inner = column_linear(graph, f"{name}.up", x, up)
    if block.bias and not block.gated and not shape.gelu_fusion:
        biased = activation(graph, f"{name}.biased", shape.tokens, width, shape.element)
        graph.call(f"{name}.bias", [inner], [biased], passes_gradient=True)
        inner = biased
    out = fused_activation(graph, f"{name}.activation", inner, rows=shape.tokens, width=width, element=shape.element)
    down = Linear(rows=hidden, columns=width, tokens=shape.tokens, tokens_between=shape.tokens_between,
                  element=shape.element)
    return row_linear(graph, f"{name}.down", out, down)
