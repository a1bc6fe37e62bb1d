"""Rotary position embedding of queries and keys.

Symbols:  E elements of one of q, k   D head dimension
[hf] transformers models/llama/modeling_llama.py `apply_rotary_pos_emb`, `rotate_half`
[liger] Liger-Kernel src/liger_kernel/ops/rope.py: rotates in place, forward and backward
[titan] torchtitan torchtitan/models/llama/model.py `apply_rotary_emb`
[te] TransformerEngine transformer_engine/pytorch/attention/rope.py `FusedRoPEFunc`: keeps the frequencies only
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value


def _rotate_half(graph: Graph, x: Value, num_bytes: int) -> Value:
    """cat(-x2, x1): the halves are views; each slice's gradient is padded to full size [derivatives: slice]."""
    half = num_bytes // 2
    gradient = half if x.gradient_bytes else 0
    first = graph.view(x, f"{x.name}.x1", gradient_bytes=gradient)
    second = graph.view(x, f"{x.name}.x2", gradient_bytes=gradient)
    graph.call("slice", [x], [first])
    graph.call("slice", [x], [second])
    negated = graph.value(f"{x.name}.neg", half, gradient_bytes=gradient)
    graph.call("neg", [second], [negated])
    rotated = graph.value(f"{x.name}.rotated", num_bytes, gradient_bytes=2 * gradient)
    graph.call("cat", [negated, first], [rotated], slices_gradient=True)
    graph.hold(first, second)
    return rotated


def _huggingface(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[hf]: x * cos + rotate_half(x) * sin; only cos and sin are kept, which the model owns."""
    cosine = aten.unary(graph, x, num_bytes=num_bytes, name=f"{x.name}.cos")
    rotated = _rotate_half(graph, x, num_bytes)
    sine = aten.unary(graph, rotated, num_bytes=num_bytes, name=f"{x.name}.sin")
    return aten.add(graph, cosine, sine, num_bytes=num_bytes, name=f"{x.name}.rope")


def _in_place(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[liger]: the same storage forward and backward; num_bytes stay where they are."""
    del num_bytes
    out = graph.view(x, f"{x.name}.rope")
    return graph.call("rope", [x], [out], passes_gradient=True)


def _fused(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[te], torch.compile: one output forward, one gradient backward."""
    return aten.unary(graph, x, num_bytes=num_bytes, name=f"{x.name}.rope")


def _complex(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[titan] `apply_rotary_emb`: fp32 pairs times complex numbers that do not learn, then back."""
    elements = num_bytes // 2
    wide = aten.unary(graph, x, num_bytes=4 * elements, name=f"{x.name}.fp32")
    turned = aten.unary(graph, wide, num_bytes=4 * elements, name=f"{x.name}.turned")
    return aten.unary(graph, turned, num_bytes=num_bytes, name=f"{x.name}.rope")


ROPE_VARIANTS: Final[dict[str, Callable[[Graph, Value, int], Value]]] = {
    "eager": _huggingface,
    "huggingface": _huggingface,
    "complex": _complex,
    "compiled": _fused,
    "megatron": _fused,
    "transformer_engine": _fused,
    "liger": _in_place,
}


def rope(
    graph: Graph, q: Value, k: Value, *, q_bytes: int, k_bytes: int, variant: str = "eager"
) -> tuple[Value, Value]:
    """Append the rotation of q and k; `variant` is a key of ROPE_VARIANTS."""
    build = ROPE_VARIANTS[variant]
    q_out = build(graph, q, q_bytes)
    k_out = build(graph, k, k_bytes)
    graph.hold(q, k)  # the caller's variables, until both are rotated
    return q_out, k_out
