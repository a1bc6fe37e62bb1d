"""Trainable corrections beside a frozen linear layer.

Symbols:  T tokens   I in features   O out features   r rank
[LoRA] Hu et al., arXiv:2106.09685: y = W x + s B A x
[DoRA] Liu et al., arXiv:2402.09353: the direction of W + s B A, with a learned magnitude
[PEFT] peft src/peft/tuners/lora/layer.py `Linear.forward`: x is cast to the adapter's dtype; result + lora_B(lora_A(x))
[PEFT4] peft src/peft/tuners/lora/bnb.py `Linear4bit.forward`, `Linear8bitLt.forward`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from vramcast.domain.program import Category
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.units import ceil_div


class Adapter(Struct, frozen=True):
    """Which linear layers are corrected, and how."""

    method: str  # key of ADAPTERS
    rank: int
    targets: tuple[str, ...]  # paths within one layer, "attention.q"
    width: int = 4  # bytes of an adapter weight: PEFT keeps them in fp32
    compute: int = 4  # bytes of what its products read and write
    dropout: float = 0.0
    options: tuple[tuple[str, float], ...] = ()  # what else the method needs
    stacked: bool = False  # experts are corrected as one tensor, before their product

    def option(self, name: str, default: float = 0.0) -> float:
        """One of the method's own numbers."""
        return dict(self.options).get(name, default)


class AdapterWeight(Struct, frozen=True):
    """One tensor a method adds to a linear layer."""

    name: str
    shape: tuple[int, ...]
    width: int  # bytes of one element
    learns: bool = True


class Target(Struct, frozen=True):
    """The linear layer that is corrected."""

    path: str
    tokens: int
    out_features: int
    in_features: int
    width: int  # of the frozen layer's output and weight [bytes]
    copies: int = 1  # layers of that shape in one product, each with a correction of its own
    packed: bool = False  # bitsandbytes' layer, whose adapter PEFT writes for itself
    cloned: bool = False

    @property
    def elements(self) -> int:
        """O I of all copies."""
        return self.copies * self.out_features * self.in_features


def product(
    graph: Graph, name: str, x: Value, *, tokens: int, shape: tuple[int, int], adapter: Adapter, copies: int = 1
) -> Value:
    """x W^T with small weights of (O, I) elements of the adapter's width."""
    out_features, in_features = shape
    y, size = graph.value(name, tokens * out_features * adapter.compute), copies * out_features * in_features
    gradients = [graph.tensor(f"{name}.weight_gradient", size * adapter.width, Category.GRADIENTS)]
    extra = []
    if adapter.compute != adapter.width:
        # autocast's copy of the fp32 weight
        extra = [graph.value(f"{name}.weight_cast", size * adapter.compute, gradient_bytes=0)]
    return graph.call(
        "linear", [x], [y], saved=[x], extra=extra, weight_gradients=gradients,
        flops=2 * tokens * out_features * in_features,
    )


def lora(graph: Graph, x: Value, base: Value, target: Target, adapter: Adapter) -> Value:
    """base + s B(A(dropout(x))), then back to the base's dtype [PEFT].

    Over a packed layer the input is left to autocast where it runs, and the base may be cloned [PEFT4].
    """
    t, path, copies = target.tokens, target.path, target.copies
    elements = t * target.in_features
    autocast = adapter.compute != adapter.width
    width = x.num_bytes // elements if target.packed and autocast else adapter.width
    wide = cast(graph, x, elements=elements, to_bytes=width, name=f"{path}.lora_input")
    if target.cloned:
        base = graph.call("clone", [base], [graph.value(f"{path}.cloned", base.num_bytes)], passes_gradient=True)
    dropped = wide
    if adapter.dropout:
        dropped = graph.value(f"{path}.lora_dropped", wide.num_bytes, gradient_bytes=wide.gradient_bytes)
        mask = graph.value(f"{path}.lora_mask", elements, gradient_bytes=0)
        graph.call("dropout", [wide], [dropped], extra=[mask])
    dropped = cast(graph, dropped, elements=elements, to_bytes=adapter.compute, name=f"{path}.lora_autocast")
    shapes = (adapter.rank, target.in_features), (target.out_features, adapter.rank)
    a = product(graph, f"{path}.lora_A", dropped, tokens=t, shape=shapes[0], adapter=adapter, copies=copies)
    b = product(graph, f"{path}.lora_B", a, tokens=t, shape=shapes[1], adapter=adapter, copies=copies)
    scaled = aten.unary(graph, b, num_bytes=b.num_bytes, name=f"{path}.lora_scaled")
    if target.packed and not autocast:
        scaled = cast(
            graph, scaled, elements=t * target.out_features, to_bytes=target.width, name=f"{path}.lora_narrowed"
        )
    total = aten.add(graph, base, scaled, num_bytes=max(base.num_bytes, scaled.num_bytes), name=f"{path}.lora_sum")
    graph.hold(wide)
    return cast(graph, total, elements=t * target.out_features, to_bytes=target.width, name=f"{path}.adapted")


def folded(graph: Graph, x: Value, target: Target, adapter: Adapter) -> Value:
    """x (W + s B A)^T: stacked experts are corrected whole, in a copy that lives until backward.

    Source: [PEFT] `ParamWrapper.get_delta_factors`, `_LoraFactorsProxy.forward`: A and B in the dtype of W, baddbmm
    """
    path, t, compute = target.path, target.tokens, target.width
    count = target.copies * adapter.rank * (target.in_features + target.out_features)
    factors = graph.value(f"{path}.lora_factors", count * compute)
    gradients = [graph.tensor(f"{path}.lora.weight_gradient", count * adapter.width, Category.GRADIENTS)]
    graph.call("cast", [], [factors], weight_gradients=gradients)
    whole = graph.value(f"{path}.folded", target.elements * compute)
    graph.call("baddbmm", [factors], [whole], saved=[factors], flops=2 * adapter.rank * target.elements)
    x = cast(graph, x, elements=t * target.in_features, to_bytes=compute, name=f"{path}.input")
    y = graph.value(path, t * target.out_features * compute)
    return graph.call(
        "linear", [x, whole], [y], saved=[x, whole], flops=2 * t * target.out_features * target.in_features
    )


def _lora_weights(rows: int, columns: int, adapter: Adapter) -> tuple[AdapterWeight, ...]:
    return (
        AdapterWeight("A", (adapter.rank, columns), adapter.width),
        AdapterWeight("B", (rows, adapter.rank), adapter.width),
    )


def _dora_weights(rows: int, columns: int, adapter: Adapter) -> tuple[AdapterWeight, ...]:
    return (*_lora_weights(rows, columns, adapter), AdapterWeight("magnitude", (rows,), adapter.width))


def _dora(graph: Graph, x: Value, base: Value, target: Target, adapter: Adapter) -> Value:
    """[DoRA] peft tuners/lora/dora.py: the norm of W + s B A is made without gradient, both outputs are scaled."""
    size = target.elements * adapter.width
    temporaries = [graph.tensor(f"{target.path}.dora_{name}", size) for name in ("product", "scaled", "sum")]
    graph.call("dora_norm", [x], [], temporaries=temporaries, differentiable=False)
    scaled = aten.unary(graph, base, num_bytes=base.num_bytes, name=f"{target.path}.dora_base", saves="input")
    return lora(graph, x, scaled, target, adapter)


def _any_weights(rows: int, columns: int, adapter: Adapter) -> tuple[AdapterWeight, ...]:
    """As many trainable elements as the run says each corrected layer has; else as LoRA of that rank."""
    count = round(adapter.option("elements", adapter.rank * (rows + columns)))
    return (AdapterWeight("weights", (count,), adapter.width),)


def _adalora_weights(rows: int, columns: int, adapter: Adapter) -> tuple[AdapterWeight, ...]:
    """And three running averages of their importance [tuners/adalora/layer.py `RankAllocator.update_ipt`]."""
    weights = _any_weights(rows, columns, adapter)
    return (*weights, AdapterWeight("importance", (3 * weights[0].shape[0],), adapter.width, learns=False))


def _osf_weights(rows: int, columns: int, adapter: Adapter) -> tuple[AdapterWeight, ...]:
    """All singular vectors in the weight's own 16 bits, of which the low ones learn [tuners/osf/utils.py]."""
    narrow = min(rows, columns)
    learning = min(round(adapter.option("elements")), (rows + columns) * narrow)
    kept = (rows + columns) * narrow - learning
    return AdapterWeight("low", (learning,), 2), AdapterWeight("high", (kept,), 2, learns=False)


def _frod_weights(rows: int, columns: int, adapter: Adapter) -> tuple[AdapterWeight, ...]:
    """A frozen fp32 basis per layer beside what learns [tuners/frod/layer.py `frod_U`]."""
    basis = AdapterWeight("basis", (rows, min(rows, columns)), 4, learns=False)
    return (*_any_weights(rows, columns, adapter), basis)


def _materialised(
    graph: Graph, x: Value, base: Value, target: Target, adapter: Adapter, *, saved: int, temporary: int,
    input_width: int = 4, replaces_base: bool = False,
) -> Value:
    """base + x W'^T with a whole O x I matrix W' that every forward builds [PEFT: src/peft/tuners/<method>/layer.py].

    Args:
        saved: of the matrix and its factors, until backward [bytes of an element of the matrix]
        temporary: beside them while forward runs [bytes of an element of the matrix]
        input_width: saved of the input: 4 a cast copy, 2 the input itself, 0 none [bytes of an element of it]
        replaces_base: the frozen product is not computed
    """
    path, t = target.path, target.tokens
    width = max(input_width, 2)
    wide = cast(graph, x, elements=t * target.in_features, to_bytes=width, name=f"{path}.adapter_input")
    kept = graph.value(f"{path}.materialised", saved * target.elements, gradient_bytes=0)
    making = graph.tensor(f"{path}.materialising", temporary * target.elements)
    graph.call("materialise", [x], [], temporaries=[making], differentiable=False)
    out = graph.value(f"{path}.correction", t * target.out_features * width)
    size = round(adapter.option("elements", adapter.rank * (target.out_features + target.in_features)))
    graph.call(
        "linear", [wide], [out], saved=[wide] if input_width else [], extra=[kept],
        weight_gradients=[graph.tensor(f"{path}.adapter_gradient", size * adapter.width, Category.GRADIENTS)],
        backward_temporaries=[graph.tensor(f"{path}.materialised_gradient", 2 * width * target.elements)],
    )
    return _summed(graph, None if replaces_base else base, out, target)


def _narrow(graph: Graph, x: Value, base: Value, target: Target, adapter: Adapter, *, copies: int) -> Value:
    """base + a small product of T r elements, so many of which are saved instead of the input."""
    path, t = target.path, target.tokens
    wide = cast(graph, x, elements=t * target.in_features, to_bytes=adapter.width, name=f"{path}.adapter_input")
    small = graph.value(f"{path}.narrow", t * adapter.rank * adapter.width * copies)
    graph.call("reduce", [wide], [small])
    out = graph.value(f"{path}.correction", t * target.out_features * adapter.width)
    size = round(adapter.option("elements", adapter.rank * target.out_features))
    gradients = [graph.tensor(f"{path}.adapter_gradient", size * adapter.width, Category.GRADIENTS)]
    graph.call("linear", [small], [out], saved=[small], weight_gradients=gradients)
    return _summed(graph, base, out, target)


def _summed(graph: Graph, base: Value | None, out: Value, target: Target) -> Value:
    if base is not None:
        out = aten.add(graph, base, out, num_bytes=max(base.num_bytes, out.num_bytes), name=f"{target.path}.sum")
    elements = target.tokens * target.out_features
    return cast(graph, out, elements=elements, to_bytes=target.width, name=f"{target.path}.adapted")


def _hra(graph: Graph, x: Value, base: Value, target: Target, adapter: Adapter) -> Value:
    """r Householder reflections of the identity, each keeping the I x I product before it [tuners/hra/layer.py]."""
    reflections = ceil_div(4 * adapter.rank * target.in_features**2, target.elements)
    return _materialised(graph, x, base, target, adapter, saved=12 + reflections, temporary=8, replaces_base=True)


CAYLEY_POWERS: Final = 5
"""R, Q and its powers, blocks of b x b each [tuners/oft/layer.py `_cayley_batch`]."""


def _rotated(graph: Graph, x: Value, base: Value, target: Target, adapter: Adapter) -> Value:
    """base of x R, with R of I / b orthogonal blocks of b x b [peft tuners/oft/layer.py `OFTRotationModule.forward`].

    x is cast to the adapter's dtype, by autocast back; the product with all blocks is copied into its places.
    """
    path, elements = target.path, target.tokens * target.in_features
    wide = cast(graph, x, elements=elements, to_bytes=adapter.width, name=f"{path}.oft_input")
    read = cast(graph, wide, elements=elements, to_bytes=adapter.compute, name=f"{path}.oft_autocast")
    blocks = graph.value(f"{path}.oft_blocks", CAYLEY_POWERS * target.copies * target.in_features * adapter.rank
                         * adapter.width, gradient_bytes=0)
    size = target.copies * _oft_elements(target.in_features, adapter)
    gradients = [graph.tensor(f"{path}.adapter_gradient", size * adapter.width, Category.GRADIENTS)]
    turned = graph.call("bmm", [read], [graph.value(f"{path}.turned", read.num_bytes)], saved=[read], extra=[blocks],
                        weight_gradients=gradients, flops=2 * elements * adapter.rank)
    rotated = aten.unary(graph, turned, num_bytes=turned.num_bytes, name=f"{path}.rotated")
    graph.hold(wide)
    out = graph.view(base, f"{path}.adapted", gradient_bytes=base.num_bytes)
    return graph.call("linear_of_rotated", [base, rotated], [out], passes_gradient=True)


def _oft_elements(columns: int, adapter: Adapter) -> int:
    """Above the diagonal of every block of b x b; the rank is b."""
    return round(adapter.option("elements", columns * (adapter.rank - 1) // 2))


def _oft_weights(rows: int, columns: int, adapter: Adapter) -> tuple[AdapterWeight, ...]:
    return (AdapterWeight("weights", (_oft_elements(columns, adapter),), adapter.width),)


class Method(Struct, frozen=True):
    """A kind of correction: its forward and its weights."""

    forward: Callable[[Graph, Value, Value, Target, Adapter], Value]
    weights: Callable[[int, int, Adapter], tuple[AdapterWeight, ...]] = _any_weights


ADAPTERS: Final[dict[str, Method]] = {
    "lora": Method(lora, _lora_weights),
    "dora": Method(_dora, _dora_weights),
    "adalora": Method(lora, _adalora_weights),
    "vblora": Method(lora),
    "gralora": Method(lora),
    "lily": Method(lora),
    "c3a": Method(partial(_materialised, saved=0, temporary=16)),
    "oft": Method(_rotated, _oft_weights),
    "boft": Method(partial(_materialised, saved=8, temporary=8)),
    "hra": Method(_hra),
    "vera": Method(lora),
    "pvera": Method(lora),
    "randlora": Method(lora),
    "delora": Method(lora),
    "road": Method(partial(_materialised, saved=0, temporary=0)),
    "fourierft": Method(partial(_materialised, saved=4, temporary=12)),
    "waveft": Method(partial(_materialised, saved=4, temporary=12)),
    "shira": Method(partial(_materialised, saved=2, temporary=6, input_width=2, replaces_base=True)),
    "hira": Method(partial(_materialised, saved=4, temporary=4)),
    "loha": Method(partial(_materialised, saved=4, temporary=12)),
    "lokr": Method(partial(_materialised, saved=4, temporary=4)),
    "peanut": Method(partial(_materialised, saved=8, temporary=4)),
    "miss-bat": Method(partial(_materialised, saved=8, temporary=10, replaces_base=True)),
    "glora": Method(partial(_materialised, saved=2, temporary=8, input_width=2)),
    "frod": Method(partial(_materialised, saved=6, temporary=4, input_width=2, replaces_base=True), _frod_weights),
    "osf": Method(partial(_materialised, saved=2, temporary=4, input_width=2, replaces_base=True), _osf_weights),
    # the second attention keeps queries, rotated queries, its output and the gated sum, 16 bits each
    "adaption-prompt": Method(partial(_materialised, saved=0, temporary=0, input_width=8)),
    "bone": Method(partial(_materialised, saved=8, temporary=10, replaces_base=True)),
    "unilora": Method(lora),
    "deft": Method(_dora, _any_weights),
    "tinylora": Method(partial(_narrow, copies=2)),
    "adamss": Method(partial(_narrow, copies=2)),
    "beft": Method(partial(_narrow, copies=1)),
    "miss": Method(partial(_narrow, copies=1)),
    "psoft": Method(partial(_narrow, copies=3)),
    "ia3": Method(partial(_materialised, saved=0, temporary=0, input_width=2)),
}
"""Methods by name."""
