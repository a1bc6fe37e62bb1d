"""What the parts of a graph share: weights, inputs, sizes, feed-forward blocks, and where the two engines differ.

Symbols:  H hidden   T tokens of a micro-batch   N cells of the cache

[graph] ggml-org/llama.cpp src/llama-graph.cpp; [ik] ikawrakow/ik_llama.cpp src/llama.cpp `llm_build_*` at bb8ff4e.
[ffn] ggml-org/llama.cpp src/llama-graph.cpp `build_ffn`, `build_moe_ffn`. [ik] ikawrakow/ik_llama.cpp src/llama.cpp
`llm_build_ffn`, `llm_build_moe_ffn`.
"""

from __future__ import annotations

from collections.abc import Callable

from vramcast.domain.model import MLP, Model, MoE, Norm
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed, placed
from vramcast.engines.llamacpp.settings import Settings
from vramcast.units import round_up

WeightPlace = Callable[[str, int | None], tuple[str, int]]
"""Name and layer of a weight -> its type and the backend whose memory holds it."""


class Build:
    """One graph in the making."""

    def __init__(
        self, model: Model, settings: Settings, *, weights: WeightPlace, layer_backends: tuple[int, ...], host: int
    ) -> None:
        self.model, self.settings, self.graph = model, settings, Graph()
        self.host = host
        self.layer_backends = layer_backends  # of the cache, by layer
        self._weights = weights
        self._made: dict[str, Tensor] = {}
        self.tokens = settings.tokens
        self.outputs = settings.outputs
        self.positions = fed("i32", self.tokens)

    def weight(self, name: str, layer: int | None, *ne: int) -> Tensor:
        """A weight by its GGUF name, made once."""
        key = name if layer is None else f"blk.{layer}.{name}"
        if key not in self._made:
            dtype, home = self._weights(name, layer)
            self._made[key] = placed(dtype if len(ne) > 1 else "f32", *ne, home=home, weight=True)
        return self._made[key]

    def cache(self, name: str, layer: int, dtype: str, *ne: int) -> Tensor:
        """A cache tensor of a layer."""
        key = f"{name}.{layer}"
        if key not in self._made:
            home = self.layer_backends[layer] if self.settings.cache_on_cards else self.host
            self._made[key] = placed(dtype, *ne, home=home)
        return self._made[key]

    def once(self, key: str, make: Callable[[], Tensor]) -> Tensor:
        """An input or what is derived of it, made once."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def mask(self, cells: int, name: str = "mask") -> Tensor:
        """The attention mask as attention reads it."""
        settings = self.settings
        streams = settings.streams
        rows = settings.mask_rows // streams

        def whole() -> Tensor:
            return fed("f16" if settings.flash and settings.has("half mask") else "f32", cells, rows, 1, streams)

        made = self.once(name, whole)
        if not settings.flash or made.dtype == "f16":
            return made
        return self.once(f"{name} in half", lambda: ops.cast(made, "f16"))

    def linear(self, name: str, x: Tensor, width: int, *, layer: int | None, bias: bool = False) -> Tensor:
        """A product with a weight of so many outputs, and its bias."""
        result = ops.mul_mat(self.weight(f"{name}.weight", layer, x.ne[0], width), x)
        return self.add(result, self.weight(f"{name}.bias", layer, width)) if bias else result

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """A sum of the first one's shape."""
        return ops.like("add", a, b)

    def norm(self, name: str, x: Tensor, kind: Norm | None, *, layer: int | None) -> Tensor:
        """A norm with its weights; ik_llama.cpp computes an RMS norm in one operator."""
        if kind is None:
            return x
        weight = self.weight(f"{name}.weight", layer, x.ne[0])
        if kind is Norm.RMS and self.settings.fork:
            return ops.like("fused_rms_norm", x, weight)
        normed = ops.like("rms_norm" if kind is Norm.RMS else "norm", x)
        if layer is not None:
            normed.backend = self._norm_backend(layer)
        if kind is Norm.PLAIN:
            return normed
        scaled = ops.like("mul", normed, weight)
        return self.add(scaled, self.weight(f"{name}.bias", layer, x.ne[0])) if kind is Norm.LAYER else scaled

    def _norm_backend(self, layer: int) -> int:
        """Norms are put where their layer is when all layers are on cards or batches are small [graph_get_cb]."""
        if self.host not in self.layer_backends or self.tokens < 32:
            return self.layer_backends[layer]
        return -1

    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """activation(gate) * up."""
        if self.settings.fork and activation in ("silu", "relu", "gelu", "gelu_pytorch_tanh"):
            return ops.like("fused_mul_unary", gate, up)
        if self.settings.has("fused gates"):
            return ops.like("glu", gate, up)
        return ops.like("mul", ops.like("unary", gate), up)

    def expand(self, *tensors: Tensor) -> None:
        """Fix the order of nodes so far."""
        for tensor in tensors:
            self.graph.expand(tensor)


def window_cells(settings: Settings, window: int) -> int:
    """Cells of the cache of sliding-window layers, per stream.

    Source: src/llama-kv-cache-iswa.cpp `llama_kv_cache_iswa`: the window of every sequence and one micro-batch
    """
    cells = settings.context // settings.streams
    if settings.swa_full or not settings.has("sliding cache"):
        return cells
    sequences = settings.slots if settings.unified or not settings.has("streams") else 1
    wanted = window * sequences + settings.micro_batch
    if settings.has("padded context"):
        return round_up(min(cells, wanted), 256)
    return min(cells, round_up(wanted, 256 if settings.flash else 32))


def feed_forward(build: Build, mlp: MLP, x: Tensor, *, layer: int, suffix: str = "") -> Tensor:
    """up, gate, activation, down."""
    up = build.linear(f"ffn_up{suffix}", x, mlp.width, layer=layer, bias=mlp.bias)
    if mlp.gated:
        gate = build.linear(f"ffn_gate{suffix}", x, mlp.width, layer=layer, bias=mlp.bias)
        inner = build.gated(gate, up, mlp.activation)
    else:
        inner = ops.like("unary", up)
    return build.linear(f"ffn_down{suffix}", inner, build.model.hidden, layer=layer, bias=mlp.bias)


def experts(build: Build, moe: MoE, x: Tensor, *, layer: int) -> Tensor:
    """Routed experts, shared ones added."""
    routed = _routed(build, moe, x, layer)
    if not moe.shared_width:
        return routed
    shared_mlp = MLP(
        width=moe.shared_width, gated=moe.expert.gated, activation=moe.expert.activation, bias=moe.expert.bias
    )
    shared = feed_forward(build, shared_mlp, x, layer=layer, suffix="_shexp")
    if moe.shared_gate:
        gate = ops.like("unary", build.linear("ffn_gate_inp_shexp", x, 1, layer=layer))
        shared = ops.like("mul", shared, gate)
    return build.add(routed, shared)


def _routed(build: Build, moe: MoE, x: Tensor, layer: int) -> Tensor:
    settings, tokens = build.settings, x.ne[1]
    probabilities, scores = _probabilities(build, moe, x, layer)
    ids = ops.top_k(scores, moe.top_k)
    weights = ops.get_rows(ops.reshape(probabilities, 1, moe.num_experts, tokens), ids)
    flat = ops.reshape(weights, moe.top_k, tokens)
    total = ops.sum_rows(flat)
    if build.settings.has("clamped weights"):
        total = ops.like("clamp", total)
    weights = ops.reshape(ops.like("div", flat, total), 1, moe.top_k, tokens)
    if moe.score_bias:  # such routers scale the weights too
        weights = ops.like("scale", weights)
    if settings.has("early weights"):
        build.expand(weights)
    if moe.latent_width:
        x = build.linear("ffn_latent_down", x, moe.latent_width, layer=layer)
    width = x.ne[0]
    inner = _inner(build, moe, ops.reshape(x, width, 1, tokens), ids, layer)
    down = build.weight("ffn_down_exps.weight", layer, moe.expert.width, width, moe.num_experts)
    each = ops.mul_mat_id(down, inner, ids)
    if moe.expert.bias:
        each = ops.like("add_id", each, build.weight("ffn_down_exps.bias", layer, width, moe.num_experts), ids)
    summed = _summed(build, ops.like("mul", each, weights), moe.top_k, tokens)
    return build.linear("ffn_latent_up", summed, build.model.hidden, layer=layer) if moe.latent_width else summed


def _probabilities(build: Build, moe: MoE, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """What experts are weighted by, and what they are chosen by."""
    logits = build.linear("ffn_gate_inp", x, moe.num_experts, layer=layer, bias=moe.router_bias)
    if not moe.score_bias:
        probabilities = logits if moe.router_bias else ops.like("soft_max", logits)
        return probabilities, probabilities
    probabilities = ops.like("unary", logits)
    return probabilities, build.add(probabilities, build.weight("exp_probs_b.bias", layer, moe.num_experts))


def _inner(build: Build, moe: MoE, x: Tensor, ids: Tensor, layer: int) -> Tensor:
    """Activated products of the chosen experts: (F, k, tokens)."""
    expert, count, width = moe.expert, moe.num_experts, x.ne[0]
    up = build.weight("ffn_up_exps.weight", layer, width, expert.width, count)
    if not expert.gated:
        return ops.like("unary", ops.mul_mat_id(up, x, ids))
    gate = build.weight("ffn_gate_exps.weight", layer, width, expert.width, count)
    if build.settings.fused_experts:
        return ops.moe_up_gate(up, gate, x, ids)
    raised, gated = ops.mul_mat_id(up, x, ids), ops.mul_mat_id(gate, x, ids)
    if expert.bias:
        raised = ops.like("add_id", raised, build.weight("ffn_up_exps.bias", layer, expert.width, count), ids)
        gated = ops.like("add_id", gated, build.weight("ffn_gate_exps.bias", layer, expert.width, count), ids)
    return build.gated(gated, raised, expert.activation)


def _summed(build: Build, each: Tensor, top_k: int, tokens: int) -> Tensor:
    """The sum over the chosen experts."""
    settings = build.settings

    def part() -> Tensor:
        return ops.view(each, each.ne[0], tokens, steps=(each.nb[2],))

    if settings.has("ordered experts"):
        build.expand(each)
    if top_k == 1:
        return ops.cont(part())
    if settings.fork and top_k > 2:
        first = part()
        return ops.sized("multi_add", "f32", (each.ne[0], tokens), first)
    parts = [part() for _ in range(top_k)]
    if settings.has("ordered experts"):
        build.expand(*parts)
    total = parts[0]
    for one in parts[1:]:
        total = build.add(total, one)
        if settings.has("ordered experts"):
            build.expand(total)
    return total
