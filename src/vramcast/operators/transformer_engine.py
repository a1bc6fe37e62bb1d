"""TransformerEngine and Megatron operators: norms, tensor-parallel linears, fused activations, residual adds, LoRA.

Letters: N tokens inside a tensor-parallel region   n tokens between regions (N / tp with sequence parallelism)
r rank of an adapter   t tensor-parallel ranks

[TE] TransformerEngine transformer_engine/pytorch/module/{linear,layernorm_linear,grouped_linear}.py: an input is saved
only where the weight learns
[Layers] Megatron-LM megatron/core/tensor_parallel/layers.py
[Bridge] NVIDIA-NeMo/Megatron-Bridge at 067f987d src/megatron/bridge/peft/utils.py `ParallelLinearAdapter`,
`get_adapter_attributes_from_linear`; lora_layers.py `LoRALinear.forward`
[mcore] modelscope/mcore-bridge at f020e479 src/mcore_bridge/tuners/lora.py `LoraParallelLinear.update_layer`, `forward`
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from vramcast.domain.program import Category, Tensor
from vramcast.operators.graph import Graph, Value
from vramcast.units import ceil_div


class Lora(NamedTuple):
    """Which linears of a layer are corrected; all their own weights are frozen."""

    rank: int
    products: frozenset[str]  # names on the tape
    dropout: float
    tp: int
    etp: int
    of_mcore_bridge: bool = False  # one small weight of a pair is whole on each rank, and each expert has a pair

    def corrects(self, name: str) -> bool:
        """Whether a linear has an adapter beside it."""
        return name in self.products


class Base(NamedTuple):
    """The frozen linear: its local widths and the positions that it reads and writes."""

    rows: int
    columns: int
    tokens: int
    tokens_out: int
    element: int
    ranks: int  # that divide it
    experts: int = 1  # of the rank, which one grouped product serves


def gathered(graph: Graph, name: str, x: Value, base: Base) -> Value:
    """The norm's output of all ranks, which the adapter reads and keeps [Bridge `return_layernorm_output_gathered`]."""
    return _call(graph, f"{name}.gathered input", x, base.tokens, base.columns, base.element)


def column_adapter(graph: Graph, name: str, x: Value, out: Value, base: Base, lora: Lora) -> Value:
    """Both small weights divided by rows: r / t of the first, whose output is gathered, and all rows of the second.

    mcore-bridge's first weight is whole and reads the rank's own positions; the second gathers what it writes.
    """
    if lora.of_mcore_bridge:
        local = base.tokens_out
        x = _dropped(graph, name, x, base._replace(tokens=local), lora)
        part = _product(graph, f"{name}.lora_in", x, local, lora.rank, base.columns, base)
        turned = _product(graph, f"{name}.lora_out", part, base.tokens, base.rows, lora.rank, base)
        return _scaled_sum(graph, name, turned, out, base._replace(tokens_out=base.tokens))
    x = _dropped(graph, name, x, base, lora)
    part = _product(graph, f"{name}.lora_in", x, base.tokens, ceil_div(lora.rank, base.ranks), base.columns, base)
    if base.ranks > 1:
        part = _call(graph, f"{name}.lora_in gathered", part, base.tokens, lora.rank, base.element)
    turned = _product(graph, f"{name}.lora_out", part, base.tokens, base.rows, lora.rank, base)
    return _scaled_sum(graph, name, turned, out, base)


def row_adapter(graph: Graph, name: str, x: Value, out: Value, base: Base, lora: Lora) -> Value:
    """The first weight divided by columns, the second by rows: its output is gathered, then cut along the sequence.

    mcore-bridge scatters the sum of the first along the sequence; its second weight is whole.
    """
    x = _dropped(graph, name, x, base, lora)
    if lora.of_mcore_bridge:
        part = _product(graph, f"{name}.lora_in", x, base.tokens, lora.rank, base.columns, base, base.tokens_out)
        turned = _product(graph, f"{name}.lora_out", part, base.tokens_out, base.rows, lora.rank, base)
        return _scaled_sum(graph, name, turned, out, base)
    part = _product(graph, f"{name}.lora_in", x, base.tokens, lora.rank, base.columns, base)
    turned = _product(graph, f"{name}.lora_out", part, base.tokens, ceil_div(base.rows, base.ranks), lora.rank, base)
    if base.ranks > 1:
        turned = _call(graph, f"{name}.lora_out gathered", turned, base.tokens, base.rows, base.element)
    if base.tokens_out != base.tokens:
        size = base.tokens_out * base.rows * base.element
        local = graph.view(turned, f"{name}.lora_out, local sequence", gradient_bytes=size)
        turned = graph.call(f"{name}.lora_scatter", [turned], [local])
    return _scaled_sum(graph, name, turned, out, base)


def _scaled_sum(graph: Graph, name: str, turned: Value, out: Value, base: Base) -> Value:
    """x * (alpha / r), then a third tensor for the sum."""
    scaled = _call(graph, f"{name}.lora_scaled", turned, base.tokens_out, base.rows, base.element)
    total = activation(graph, f"{name}.lora_sum", base.tokens_out, base.rows, base.element)
    return graph.call(f"{name}.lora_sum", [out, scaled], [total], passes_gradient=True)


def _dropped(graph: Graph, name: str, x: Value, base: Base, lora: Lora) -> Value:
    if not lora.dropout:
        return x
    out = activation(graph, f"{name}.lora_dropped", base.tokens, base.columns, base.element)
    mask = graph.value(f"{name}.lora_mask", base.tokens * base.columns, gradient_bytes=0)
    return graph.call(f"{name}.lora_dropout", [x], [out], extra=[mask])


def _product(
    graph: Graph, name: str, x: Value, tokens: int, rows: int, columns: int, base: Base, tokens_out: int | None = None
) -> Value:
    """The input is kept. Leaves out r wide pieces that are gathered or scattered along the sequence in passing."""
    weight = transient(graph, f"{name}.weight gradient", rows, columns, base.element, category=Category.GRADIENTS)
    out = activation(graph, name, tokens if tokens_out is None else tokens_out, rows, base.element)
    return graph.call(name, [x], [out], saved=[x], weight_gradients=[weight] * base.experts,
                      flops=2 * tokens * rows * columns)


def _call(graph: Graph, name: str, x: Value, tokens: int, width: int, element: int) -> Value:
    return graph.call(name, [x], [activation(graph, name, tokens, width, element)])


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
    factors = linear.rows, linear.columns, linear.element
    return transient(graph, f"{name}.weight gradient", *factors, category=Category.GRADIENTS)


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
