"""Trainable corrections beside a frozen linear layer.

Symbols:  T tokens   I in features   O out features   r rank
[LoRA] Hu et al., arXiv:2106.09685: y = W x + s B A x
[DoRA] Liu et al., arXiv:2402.09353: the direction of W + s B A, with a learned magnitude
[PEFT] peft src/peft/tuners/lora/layer.py `Linear.forward`: x is cast to the adapter's dtype, result + lora_B(lora_A(x)) * s
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vramcast.domain.program import Category
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast


class Adapter(NamedTuple):
    """Which linear layers are corrected, and how."""

    method: str  # key of ADAPTERS
    rank: int
    targets: tuple[str, ...]  # paths, "attention.q"
    width: int = 4  # bytes of an adapter weight: PEFT keeps them in fp32
    compute: int = 4  # bytes of what its products read and write
    dropout: float = 0.0
    options: tuple[tuple[str, float], ...] = ()  # what else the method needs

    def option(self, name: str, default: float = 0.0) -> float:
        """One of the method's own numbers."""
        return dict(self.options).get(name, default)


class Target(NamedTuple):
    """The linear layer that is corrected."""

    path: str
    tokens: int
    out_features: int
    in_features: int
    width: int  # of the frozen layer's output and weight [bytes]

    @property
    def elements(self) -> int:
        """O I."""
        return self.out_features * self.in_features


def product(
    graph: Graph, name: str, x: Value, *, tokens: int, shape: tuple[int, int], adapter: Adapter, trainable: bool = True
) -> Value:
    """x W^T with a small weight of (O, I) elements of the adapter's width."""
    out_features, in_features = shape
    y = graph.value(name, tokens * out_features * adapter.compute)
    gradients = []
    if trainable:
        size = out_features * in_features * adapter.width
        gradients = [graph.tensor(f"{name}.weight_gradient", size, Category.GRADIENTS)]
    extra = []
    if adapter.compute != adapter.width:
        # autocast's copy of the fp32 weight
        extra = [graph.value(f"{name}.weight_cast", out_features * in_features * adapter.compute, gradient_bytes=0)]
    return graph.call(
        "linear", [x], [y], saved=[x] if trainable else [], extra=extra, weight_gradients=gradients,
        flops=2 * tokens * out_features * in_features,
    )


def lora(graph: Graph, x: Value, base: Value, target: Target, adapter: Adapter) -> Value:
    """base + s B(A(dropout(x))), then back to the base's dtype [PEFT]."""
    t, path = target.tokens, target.path
    elements = t * target.in_features
    wide = cast(graph, x, elements=elements, to_bytes=adapter.width, name=f"{path}.lora_input")
    dropped = wide
    if adapter.dropout:
        dropped = graph.value(f"{path}.lora_dropped", wide.num_bytes, gradient_bytes=wide.gradient_bytes)
        mask = graph.value(f"{path}.lora_mask", elements, gradient_bytes=0)
        graph.call("dropout", [wide], [dropped], extra=[mask])
    dropped = cast(graph, dropped, elements=elements, to_bytes=adapter.compute, name=f"{path}.lora_autocast")
    a = product(graph, f"{path}.lora_A", dropped, tokens=t, shape=(adapter.rank, target.in_features), adapter=adapter)
    b = product(graph, f"{path}.lora_B", a, tokens=t, shape=(target.out_features, adapter.rank), adapter=adapter)
    scaled = aten.unary(graph, b, num_bytes=b.num_bytes, name=f"{path}.lora_scaled")
    total = aten.add(graph, base, scaled, num_bytes=max(base.num_bytes, scaled.num_bytes), name=f"{path}.lora_sum")
    graph.hold(wide)
    return cast(graph, total, elements=t * target.out_features, to_bytes=target.width, name=f"{path}.adapted")


def lora_elements(out_features: int, in_features: int, adapter: Adapter) -> tuple[int, ...]:
    """Elements of each trainable tensor: A and B."""
    return adapter.rank * in_features, out_features * adapter.rank


class Method(NamedTuple):
    """A kind of correction: its forward and its weights."""

    forward: Callable[[Graph, Value, Value, Target, Adapter], Value]
    elements: Callable[[int, int, Adapter], tuple[int, ...]]


ADAPTERS: Final[dict[str, Method]] = {
    "lora": Method(lora, lora_elements),
}
"""Methods by name."""
