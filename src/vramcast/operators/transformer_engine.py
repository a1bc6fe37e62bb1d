"""TransformerEngine and Megatron operators: norms, tensor-parallel linears, fused activations, residual adds.

Letters: N tokens inside a tensor-parallel region   n tokens between regions (N / tp with sequence parallelism)
[TE] TransformerEngine transformer_engine/pytorch/module/{linear,layernorm_linear}.py
[Layers] Megatron-LM megatron/core/tensor_parallel/layers.py
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from vramcast.domain.program import Category, Tensor
from vramcast.operators.graph import Graph, Value
from vramcast.operators.megatron_lora import Base, Lora, column_adapter, gathered, row_adapter


def product(*factors: int) -> tuple[int, str]:
    """Bytes of a dense tensor and the text that shows how they came about."""
    return prod(factors), " x ".join(f"{factor:,}" for factor in factors) + " B"


def activation(graph: Graph, name: str, *factors: int, gradient: bool = True) -> Value:
    """A value whose bytes are the product of the factors; the last one is the element size."""
    num_bytes, formula = product(*factors)
    return graph.value(name, num_bytes, gradient_bytes=num_bytes if gradient else 0, formula=formula)


def transient(graph: Graph, name: str, *factors: int, category: Category = Category.TEMPORARIES) -> Tensor:
    """A tensor alive only while an operator runs."""
    num_bytes, formula = product(*factors)
    return graph.tensor(name, num_bytes, category, formula)


def norm(graph: Graph, name: str, x: Value, *, rows: int, width: int, element: int, statistics: int = 1) -> Value:
    """RMSNorm (one fp32 statistic a row) or LayerNorm (two): saves its input."""
    out = activation(graph, f"{name}.out", rows, width, element)
    stats = activation(graph, f"{name}.statistics", rows, statistics, 4, gradient=False)
    return graph.call(name, [x], [out], saved=[x], extra=[stats])


class Linear(NamedTuple):
    """One tensor-parallel linear: widths, and whether its input or output is divided along the sequence."""

    rows: int  # local output width
    columns: int  # local input width
    tokens: int
    tokens_between: int
    element: int
    lora: Lora | None = None  # its weight is frozen, with an adapter beside it or without

    @property
    def divided(self) -> bool:
        """Whether sequence parallelism divides one side."""
        return self.tokens != self.tokens_between


def column_linear(graph: Graph, name: str, x: Value, linear: Linear) -> Value:
    """y = x W^T with W's rows divided: with sequence parallelism x is gathered for each product and dropped again."""
    e = linear.element
    out = activation(graph, f"{name}.out", linear.tokens, linear.rows, e)
    sizes, kind = (linear.tokens, linear.columns, e), Category.COMMUNICATION
    names = ("gathered input", "full input gradient") if linear.divided else ()
    whole = [transient(graph, f"{name}.{what}", *sizes, category=kind) for what in names]
    flops, lora = 2 * linear.tokens * linear.rows * linear.columns, linear.lora
    if lora is None:
        return graph.call(
            name, [x], [out], saved=[x], temporaries=whole[:1], backward_temporaries=whole,
            weight_gradients=[weight_gradient(graph, name, linear)], flops=flops,
        )
    if not lora.corrects(name):
        return graph.call(name, [x], [out], temporaries=whole[:1], backward_temporaries=whole[1:], flops=flops)
    base = Base(linear.rows, linear.columns, linear.tokens, linear.tokens, e, lora.tp)
    if lora.of_mcore_bridge:  # its adapter reads the norm's output as it is divided
        made = graph.call(name, [x], [out], temporaries=whole[:1], backward_temporaries=whole[1:], flops=flops)
        return column_adapter(graph, name, x, made, base._replace(tokens_out=linear.tokens_between), lora)
    x = gathered(graph, name, x, base) if linear.divided else x
    return column_adapter(graph, name, x, graph.call(name, [x], [out], flops=flops), base, lora)


def row_linear(graph: Graph, name: str, x: Value, linear: Linear) -> Value:
    """y = x W^T with W's columns divided: the sum over ranks is scattered along the sequence, if that is divided."""
    e = linear.element
    out = activation(graph, f"{name}.out", linear.tokens_between, linear.rows, e)
    full = transient(graph, f"{name}.full output", linear.tokens, linear.rows, e, category=Category.COMMUNICATION)
    whole = [full] if linear.divided else []
    flops, lora = 2 * linear.tokens * linear.rows * linear.columns, linear.lora
    if lora is None:
        return graph.call(
            name, [x], [out], saved=[x], temporaries=whole, backward_temporaries=whole,
            weight_gradients=[weight_gradient(graph, name, linear)], flops=flops,
        )
    graph.call(name, [x], [out], temporaries=whole, backward_temporaries=whole, flops=flops)
    if not lora.corrects(name):
        return out
    base = Base(linear.rows, linear.columns, linear.tokens, linear.tokens_between, e, lora.tp)
    return row_adapter(graph, name, x, out, base, lora)


def weight_gradient(graph: Graph, name: str, linear: Linear) -> Tensor:
    """What backward allocates for a weight unless the product adds into the gradient buffer itself."""
    num_bytes, formula = product(linear.rows, linear.columns, linear.element)
    return graph.tensor(f"{name}.weight gradient", num_bytes, Category.GRADIENTS, formula)


def dropout_add(graph: Graph, name: str, x: Value, residual: Value, *, rows: int, width: int, element: int,
                dropout: bool) -> Value:
    """residual + dropout(x): one kernel; the mask is one byte an element.

    Source: Megatron-LM core/fusions/fused_bias_dropout.py
    """
    added = x
    if dropout:
        num_bytes, formula = product(rows, width, element)
        added = graph.value(f"{name}.dropped", 0, gradient_bytes=num_bytes, formula=formula)
        mask = activation(graph, f"{name}.mask", rows, width, 1, gradient=False)
        graph.call(f"{name}.dropout", [x], [added], extra=[mask])
    out = activation(graph, f"{name}.out", rows, width, element)
    return graph.call(name, [residual, added], [out], passes_gradient=True)


def fused_activation(graph: Graph, name: str, x: Value, *, rows: int, width: int, element: int) -> Value:
    """Bias-GeLU, SwiGLU or squared ReLU in one kernel that saves its input and nothing else."""
    out = activation(graph, f"{name}.out", rows, width, element)
    return graph.call(name, [x], [out], saved=[x])
