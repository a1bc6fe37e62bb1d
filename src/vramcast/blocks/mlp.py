"""Feed-forward blocks, gated or not.

[HF] transformers models/llama/modeling_llama.py `LlamaMLP.forward`, models/gpt2/modeling_gpt2.py `GPT2MLP.forward`.
"""

from __future__ import annotations

from vramcast.blocks import parts
from vramcast.blocks.projection import adapter_of, project
from vramcast.blocks.sizes import Sizes
from vramcast.domain.job import share
from vramcast.domain.model import MLP
from vramcast.operators.graph import Graph, Value


def mlp_block(
    graph: Graph, x: Value, *, spec: MLP, sizes: Sizes, tokens: int, owner: str = "mlp", width: int | None = None,
    copies: int = 1,
) -> Value:
    """down(act(gate(x)) * up(x)) or down(act(up(x))).

    Args:
        graph: the block under construction
        x: (tokens, width) states
        spec: feed-forward width and form
        sizes: local sizes and implementations
        tokens: rows of x [tokens]
        owner: prefix of value names, "mlp", "moe.expert"
        width: width of x, when not H
        copies: experts whose rows lie together in x
    """
    hidden = width or sizes.hidden
    inner = share("tp", spec.width, sizes.tp, what="feed-forward width")
    shape, elements = (inner, hidden), tokens * inner

    def up() -> Value:
        return project(
            graph, f"{owner}.up", x, tokens=tokens, shape=shape, sizes=sizes, bias=spec.bias, copies=copies
        )

    if spec.gated and (sizes.fused_gate or adapter_of(sizes, f"{owner}.gate_up") is not None):
        both = project(
            graph, f"{owner}.gate_up", x, tokens=tokens, shape=(2 * inner, hidden), sizes=sizes, bias=spec.bias,
            copies=copies,
        )
        gate, half = _halves(graph, both)
        if sizes.fused_gate:
            product = _gated_halves(graph, owner, gate, half, kind=spec.activation, elements=elements, sizes=sizes)
        else:
            product = parts.gated_activation(
                graph, owner, gate, kind=spec.activation, elements=elements, sizes=sizes, up=lambda: half
            )
    elif spec.gated:
        gate = project(
            graph, f"{owner}.gate", x, tokens=tokens, shape=shape, sizes=sizes, bias=spec.bias, copies=copies
        )
        product = parts.gated_activation(
            graph, owner, gate, kind=spec.activation, elements=elements, sizes=sizes, up=up
        )
    else:
        product = parts.activation(graph, owner, up(), kind=spec.activation, elements=elements, sizes=sizes)
    shape = (hidden, inner)
    return project(
        graph, f"{owner}.down", product, tokens=tokens, shape=shape, sizes=sizes, bias=spec.bias, copies=copies
    )


def _halves(graph: Graph, both: Value) -> tuple[Value, Value]:
    """Gate and up in the storage of one product."""
    gate, up = (graph.view(both, f"{both.name}.{half}", gradient_bytes=both.gradient_bytes // 2) for half in "01")
    gate.num_bytes = up.num_bytes = both.num_bytes // 2
    graph.call("chunk", [both], [gate, up])
    return gate, up


def _gated_halves(graph: Graph, owner: str, gate: Value, up: Value, *, kind: str, elements: int, sizes: Sizes) -> Value:
    """act(gate) * up of two halves that variables hold until the product exists [HF] models/phi3, models/glm4."""
    activated = parts.activation(graph, owner, gate, kind=kind, elements=elements, sizes=sizes)
    product = parts.product(graph, f"{owner}.product", activated, up)
    graph.hold(gate, up)
    return product
