"""LoRA beside Megatron's frozen tensor-parallel linears.

Letters: N tokens inside a tensor-parallel region   n tokens between regions   r rank   t tensor-parallel ranks

[Bridge] NVIDIA-NeMo/Megatron-Bridge at 067f987d src/megatron/bridge/peft/utils.py `ParallelLinearAdapter`,
`get_adapter_attributes_from_linear`; lora_layers.py `LoRALinear.forward`
[mcore] modelscope/mcore-bridge at f020e479 src/mcore_bridge/tuners/lora.py `LoraParallelLinear.update_layer`, `forward`
[TE] TransformerEngine transformer_engine/pytorch/module/linear.py, layernorm_linear.py, grouped_linear.py: an input is
saved only where the weight learns.
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.program import Category
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
    total = _value(graph, f"{name}.lora_sum", base.tokens_out, base.rows, base.element)
    return graph.call(f"{name}.lora_sum", [out, scaled], [total], passes_gradient=True)


def _dropped(graph: Graph, name: str, x: Value, base: Base, lora: Lora) -> Value:
    if not lora.dropout:
        return x
    out = _value(graph, f"{name}.lora_dropped", base.tokens, base.columns, base.element)
    mask = graph.value(f"{name}.lora_mask", base.tokens * base.columns, gradient_bytes=0)
    return graph.call(f"{name}.lora_dropout", [x], [out], extra=[mask])


def _product(
    graph: Graph, name: str, x: Value, tokens: int, rows: int, columns: int, base: Base, tokens_out: int | None = None
) -> Value:
    """The input is kept. Leaves out r wide pieces that are gathered or scattered along the sequence in passing."""
    formula, e = f"{rows:,} x {columns:,} x {base.element} B", base.element
    weight = graph.tensor(f"{name}.weight gradient", rows * columns * e, Category.GRADIENTS, formula)
    out = _value(graph, name, tokens if tokens_out is None else tokens_out, rows, e)
    return graph.call(name, [x], [out], saved=[x], weight_gradients=[weight] * base.experts,
                      flops=2 * tokens * rows * columns)


def _call(graph: Graph, name: str, x: Value, tokens: int, width: int, element: int) -> Value:
    return graph.call(name, [x], [_value(graph, name, tokens, width, element)])


def _value(graph: Graph, name: str, tokens: int, width: int, element: int) -> Value:
    return graph.value(name, tokens * width * element, formula=f"{tokens:,} x {width:,} x {element} B")
