"""A litgpt block as eager PyTorch runs it: one weight for queries, keys and values, LoRA over all three at once.

Symbols:  T tokens   H hidden   A heads   G key/value heads   D head width   F feed-forward width   r rank
[litgpt] litgpt/model.py `Block`, `CausalSelfAttention`, `apply_rope`, `RMSNorm`; lora.py `LoRAQKVLinear`;
adapter.py and adapter_v2.py
[bnb] bitsandbytes autograd/_functions.py `MatMul4Bit` (0.41, 0.42): keeps its input although the weight is frozen
[autograd] pytorch tools/autograd/derivatives.yaml `index_copy`: the source is saved
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import MLP, Attention, Layer, Norm
from vramcast.domain.program import Category
from vramcast.operators import aten
from vramcast.operators.activation import FUSED, activation
from vramcast.operators.attention import KERNELS, Scores
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import QUANTISED
from vramcast.operators.norm import Norm as NormSpec
from vramcast.operators.norm import layer_norm, rms_norm

WIDTH = 2  # bytes of an element: bf16-true
PROMPT = 10  # adapter_prompt_length


class Tuning(NamedTuple):
    """What learns."""

    method: str = "full"  # full, lora, adapter, adapter_v2
    rank: int = 8
    targets: tuple[str, ...] = ()  # q, k, v, out, mlp, head
    dropout: float = 0.05
    stored: str = "full"  # key of QUANTISED: how frozen linear weights are stored

    @property
    def full(self) -> bool:
        """Whether every weight learns."""
        return self.method == "full"

    @property
    def norms_learn(self) -> bool:
        """Adapter v2 trains the norms."""
        return self.method in ("full", "adapter_v2")


class Tokens(NamedTuple):
    """One micro-batch."""

    batch: int
    length: int

    @property
    def rows(self) -> int:
        """T."""
        return self.batch * self.length


def block(layer: Layer, hidden: int, tokens: Tokens, tuning: Tuning, *, flows: bool, prompted: bool = True) -> Graph:
    """One block.

    Args:
        tokens: the micro-batch
        tuning: what learns
        flows: a gradient arrives at its input: something before it learns
        prompted: LLaMA-Adapter's prompt is in this block
    """
    graph = Graph(owner="decoder.layers")
    size = tokens.rows * hidden * WIDTH
    x = graph.input("hidden", size, gradient_bytes=size if flows else 0)
    part = _Block(graph, layer, hidden, tokens, tuning._replace(method="full_frozen") if not prompted else tuning)
    graph.returns(part.build(x))
    return graph


class _Block:
    def __init__(self, graph: Graph, layer: Layer, hidden: int, tokens: Tokens, tuning: Tuning) -> None:
        assert isinstance(layer.mixer, Attention)
        assert isinstance(layer.channel, MLP)
        self.graph, self.layer, self.hidden, self.tokens, self.tuning = graph, layer, hidden, tokens, tuning
        self.attention, self.mlp = layer.mixer, layer.channel

    def build(self, x: Value) -> Value:
        graph, layer = self.graph, self.layer
        first = self.norm("norm_1", x)
        mixed = self.attend(first)
        if layer.post_norms:
            mixed = self.norm("post_attention_norm", mixed)
        if layer.parallel:
            second = first if layer.shared_input_norm else self.norm("norm_2", x)
            graph.hold(first)
            both = self.add("attention_residual", x, mixed)
            fed = self.feed(second)
            out = self.add("residual", both, fed)
            graph.hold(mixed)
            return out
        middle = self.add("attention_residual", x, mixed)
        graph.hold(first, mixed)
        fed = self.feed(self.norm("norm_2", middle))
        if layer.post_norms:
            fed = self.norm("post_mlp_norm", fed)
        return self.add("residual", fed, middle)

    def size(self, width: int) -> int:
        """Bytes of one row per token."""
        return self.tokens.rows * width * WIDTH

    def add(self, name: str, a: Value, b: Value) -> Value:
        return aten.add(self.graph, a, b, num_bytes=a.num_bytes, name=name)

    def norm(self, name: str, x: Value) -> Value:
        return norm(self.graph, name, x, self.layer.norm, self.tokens.rows, self.hidden, self.tuning)

    def linear(self, path: str, x: Value, shape: tuple[int, int], *, target: str = "") -> Value:
        return linear(self.graph, path, x, self.tokens.rows, shape, self.tuning, target=target)

    def attend(self, x: Value) -> Value:
        """qkv, rotary embedding, attention, prompt, projection."""
        spec, graph = self.attention, self.graph
        heads, kv_heads, d = spec.num_heads, spec.num_kv_heads, spec.head_dim
        rows = (heads + 2 * kv_heads) * d
        qkv = self.linear("qkv", x, (rows, self.hidden))
        if self.tuning.method == "lora":
            qkv = self.qkv_lora(x, qkv, heads * d, kv_heads * d)
        views = [graph.view(qkv, name, gradient_bytes=self.size(width) if qkv.gradient_bytes else 0)
                 for name, width in (("q", heads * d), ("k", kv_heads * d), ("v", kv_heads * d))]
        graph.call("split", [qkv], views)
        q = self.rotate(views[0], heads * d)
        k, v = self.rotate(views[1], kv_heads * d), views[2]
        if heads != kv_heads:
            k, v = (self.repeat(value, heads * d) for value in (k, v))
        scores = Scores(self.tokens.batch, self.tokens.length, self.tokens.length, heads, heads, d, d, WIDTH)
        eager = AttentionKernel.EAGER if spec.softcap else AttentionKernel.FLASH
        y = KERNELS[eager](graph, q, k, v, scores)
        if not any(value.gradient_bytes for value in (q, k, v)):
            graph.operators[-1].saved = graph.operators[-1].extra = ()
            y.gradient_bytes = 0
        if self.tuning.method in ("adapter", "adapter_v2"):
            y = self.prompt(q, y, heads, d)
        graph.hold(qkv, *views, q, k, v)
        return self.linear("proj", y, (self.hidden, heads * d), target="out")

    def rotate(self, x: Value, width: int) -> Value:
        """x cos + rotated sin in fp32, cast back, and the unrotated rest concatenated behind: always a new tensor."""
        graph, part = self.graph, round(self.size(width) * self.attention.rope_fraction)
        gradient = part if x.gradient_bytes else 0
        piece = graph.view(x, f"{x.name}.piece", gradient_bytes=gradient)
        graph.call("slice", [x], [piece])
        rotated = graph.value(f"{x.name}.rotated", part, gradient_bytes=gradient)
        graph.call("rotate_half", [piece], [rotated])
        cosine = aten.unary(graph, piece, num_bytes=2 * part, name=f"{x.name}.cos")
        sine = aten.unary(graph, rotated, num_bytes=2 * part, name=f"{x.name}.sin")
        total = aten.add(graph, cosine, sine, num_bytes=2 * part, name=f"{x.name}.sum")
        narrow = aten.unary(graph, total, num_bytes=part, name=f"{x.name}.roped")
        graph.hold(piece, rotated, total)
        size = self.size(width)
        whole = graph.value(f"{x.name}.cat", size, gradient_bytes=size if x.gradient_bytes else 0)
        return graph.call("cat", [narrow, x], [whole], slices_gradient=True)

    def repeat(self, x: Value, width: int) -> Value:
        size = self.size(width)
        copy = self.graph.value(f"{x.name}.repeated", size, gradient_bytes=size if x.gradient_bytes else 0)
        return self.graph.call("repeat_interleave", [x], [copy])

    def qkv_lora(self, x: Value, base: Value, q_width: int, kv_width: int) -> Value:
        """dropout, A, grouped 1-d convolution with B, zero padding of what is not corrected, sum."""
        graph, tuning = self.graph, self.tuning
        widths = [width for name, width in (("q", q_width), ("k", kv_width), ("v", kv_width)) if name in tuning.targets]
        if not widths:
            return base
        dropped = dropout(graph, "qkv", x, tuning.dropout)
        inner, enabled = tuning.rank * len(widths), sum(widths)
        a = product(graph, "qkv.lora_A", dropped, self.tokens.rows, (inner, self.hidden))
        copies = 2 if len(set(widths)) > 1 else 1  # unequal parts are convolved one by one and concatenated
        b = graph.value("qkv.lora_B", self.size(enabled))
        weight = graph.tensor("qkv.lora_B.gradient", enabled * tuning.rank * WIDTH, Category.GRADIENTS)
        pieces = [graph.tensor("qkv.lora_B.pieces", self.size(enabled))] * (copies - 1)
        graph.call("conv1d", [a], [b], saved=[a], temporaries=pieces, weight_gradients=[weight])
        padded = b
        if len(widths) < 3:
            padded = graph.value("qkv.lora_padded", base.num_bytes)
            graph.call("index_copy", [b], [padded], saved=[b])
        scaled = aten.unary(graph, padded, num_bytes=base.num_bytes, name="qkv.lora_scaled")
        return aten.add(graph, base, scaled, num_bytes=base.num_bytes, name="qkv.sum")

    def prompt(self, q: Value, y: Value, heads: int, d: int) -> Value:
        """Attention from the queries to the learned prompt, gated and added [litgpt adapter.py]."""
        graph, t = self.graph, self.tokens
        rows = (heads + 2 * self.attention.num_kv_heads) * d
        keys = graph.value("adapter.qkv", PROMPT * rows * WIDTH)
        weight = graph.tensor("adapter_wte.gradient", PROMPT * self.hidden * WIDTH, Category.GRADIENTS)
        graph.call("adapter_qkv", [], [keys], weight_gradients=[weight])
        mask = graph.value("adapter.mask", t.length * PROMPT, gradient_bytes=0)
        bias = graph.value("adapter.bias", t.rows * heads * 16 * WIDTH, gradient_bytes=0)
        graph.call("mask", [], [mask], differentiable=False)
        graph.call("expand_mask", [mask], [bias], differentiable=False)
        context = graph.value("adapter.context", self.size(heads * d))
        lse = graph.value("adapter.logsumexp", t.batch * heads * t.length * 4, gradient_bytes=0)
        graph.call("efficient_attention", [q, keys], [context], saved=[q, keys, context, bias], extra=[lse])
        gated = graph.value("adapter.gated", self.size(heads * d))
        gate = graph.tensor("gating_factor.gradient", heads * WIDTH, Category.GRADIENTS)
        graph.call("gate", [context], [gated], saved=[context], weight_gradients=[gate],
                   backward_temporaries=[graph.tensor("gating_factor.unreduced", gated.num_bytes)])
        total = aten.add(graph, y, gated, num_bytes=y.num_bytes, name="adapter.sum")
        graph.hold(y)
        return total

    def feed(self, x: Value) -> Value:
        """LLaMAMLP, GemmaMLP or GptNeoxMLP: silu or gelu, one operator each."""
        spec, graph = self.mlp, self.graph
        elements, shape = self.tokens.rows * spec.width, (spec.width, self.hidden)
        first = self.linear("mlp.fc_1", x, shape, target="mlp")
        if not spec.gated:
            act = activation(graph, first, elements=elements, itemsize=WIDTH, variant=FUSED, name="mlp.act")
            graph.hold(x)
            return self.linear("mlp.proj", act, (self.hidden, spec.width), target="mlp")
        second = self.linear("mlp.fc_2", x, shape, target="mlp")
        act = activation(graph, first, elements=elements, itemsize=WIDTH, variant=FUSED, name="mlp.act")
        gated = aten.multiply(graph, act, second, num_bytes=first.num_bytes, name="mlp.product")
        graph.hold(x, first, second)
        return self.linear("mlp.proj", gated, (self.hidden, spec.width), target="mlp")


def norm(graph: Graph, name: str, x: Value, kind: Norm, rows: int, width: int, tuning: Tuning) -> Value:
    """RMSNorm upcasts to fp32 and scales there; layer norm is one kernel."""
    spec = NormSpec(
        rows=rows, width=width, itemsize=WIDTH, weight_itemsize=WIDTH, trainable=tuning.norms_learn, name=name
    )
    if kind is Norm.RMS:
        return rms_norm(graph, x, spec, "gemma")
    if x.gradient_bytes or spec.trainable:
        return layer_norm(graph, x, spec)
    return graph.call("norm", [x], [graph.value(f"{name}.out", spec.num_bytes, gradient_bytes=0)])


def dropout(graph: Graph, name: str, x: Value, probability: float) -> Value:
    """A byte of mask per element."""
    if not probability:
        return x
    out = graph.value(f"{name}.dropped", x.num_bytes, gradient_bytes=x.gradient_bytes)
    mask = graph.value(f"{name}.dropout_mask", x.num_bytes // WIDTH, gradient_bytes=0)
    return graph.call("dropout", [x], [out], extra=[mask] if x.gradient_bytes else [])


def product(graph: Graph, name: str, x: Value, tokens: int, shape: tuple[int, int]) -> Value:
    """x W^T with a weight that learns."""
    weight = graph.tensor(f"{name}.gradient", shape[0] * shape[1] * WIDTH, Category.GRADIENTS)
    y = graph.value(name, tokens * shape[0] * WIDTH)
    return graph.call("linear", [x], [y], saved=[x], weight_gradients=[weight])


def linear(
    graph: Graph, path: str, x: Value, tokens: int, shape: tuple[int, int], tuning: Tuning, *, target: str = ""
) -> Value:
    """A linear layer as the tuning wraps it: learning, frozen, in few bits, with LoRA, with scale and bias."""
    size = tokens * shape[0] * WIDTH
    if tuning.full:
        return product(graph, path, x, tokens, shape)
    y = graph.value(path, size, gradient_bytes=size if x.gradient_bytes else 0)
    if tuning.stored in QUANTISED:
        parts = QUANTISED[tuning.stored].unpacked_bytes(shape[0] * shape[1])
        tensors = [graph.tensor(f"{path}.{name}", count) for name, count in parts]
        graph.call("quantised_linear", [x], [y], saved=[x] if x.gradient_bytes else [], temporaries=tensors,
                   backward_temporaries=tensors)
    else:
        graph.call("linear", [x], [y])
    if tuning.method == "adapter_v2":
        return _scale_and_bias(graph, path, y, shape[0])
    if tuning.method != "lora" or target not in tuning.targets:
        return y
    dropped = dropout(graph, path, x, tuning.dropout)
    a = product(graph, f"{path}.lora_A", dropped, tokens, (tuning.rank, shape[1]))
    b = product(graph, f"{path}.lora_B", a, tokens, (shape[0], tuning.rank))
    scaled = aten.unary(graph, b, num_bytes=size, name=f"{path}.lora_scaled")
    return aten.add(graph, y, scaled, num_bytes=size, name=f"{path}.sum")


def _scale_and_bias(graph: Graph, path: str, y: Value, width: int) -> Value:
    """scale (W x + bias), both learned [litgpt adapter_v2.py `AdapterV2Linear`]."""
    weight = graph.tensor(f"{path}.adapter_bias.gradient", width * WIDTH, Category.GRADIENTS)
    shifted = graph.value(f"{path}.shifted", y.num_bytes)
    graph.call("add", [y], [shifted], passes_gradient=True, weight_gradients=[weight])
    shifted.gradient_bytes = y.num_bytes
    out = aten.scale_by_weight(
        graph, shifted, num_bytes=y.num_bytes, weight_bytes=width * WIDTH, name=f"{path}.scaled"
    )
    graph.hold(y)
    return out
