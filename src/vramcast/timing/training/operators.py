"""Operations and bytes of every operator of a layer in a training step, and those that a model needs at least.

Stable: `matrices`, `met`, `entry_matrices`, `exit_matrices`, `output_elements`.

Stable: `forward_flops`.

Symbols:  T tokens of a rank   H hidden   F feed-forward width   D head width   k experts per token

[autograd] y = x W^T: backward multiplies twice, for x and for W: pytorch tools/autograd/derivatives.yaml `mm`.
[FA2] Dao, arXiv:2307.08691, section 2: backward of attention recomputes the scores, 5 products where forward has 2.
[TE] TransformerEngine: norms, gates and rotary embedding are one kernel each way.
[permute] Megatron-LM core/transformer/moe/token_dispatcher.py: tokens are sorted by rank, sent, sorted by expert.
[PaLM] Chowdhery et al., arXiv:2204.02311, appendix B: two operations a weight and token forward, and attention;
neither the engine's kernels nor what they repeat. Here a causal mask's half is left out, which no kernel has to
compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import embedding_parameters, head_parameters, stack_parameters
from vramcast.blocks.parts import adapter_of
from vramcast.domain.model import (
    MLP,
    Attention,
    Channel,
    Head,
    Layer,
    LinearAttention,
    Mamba,
    Mixer,
    Model,
    MoE,
    MultiLatentAttention,
    Parameter,
)
from vramcast.parallel.layout import Layout
from vramcast.states.optimizers import local_shape
from vramcast.timing.training.parts import Operator, Shape, Style, part_of
from vramcast.timing.work import FUSED, SCAN_CHUNK
from vramcast.units import FP32

OF_DISTANCES: Final = frozenset({"attention.position_k", "attention.position_q"})
"""They project DeBERTa's table of distances, once a layer however many sequences there are: not counted."""

POOLED: Final = frozenset({"head.pooler", "head.classifier", "projection"})
"""They read one position of a sequence: its class token, or its last one."""

OUTPUT: Final = "head.output"
"""The projection to the vocabulary, whose weight may be the embedding's."""

PATCHES: Final = "vision.patch"
"""A convolution whose kernel is its stride: a product of every patch's pixels."""


def matrices(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """Weights that multiply activations; tables, vectors and depthwise convolutions left out."""
    return (
        parameter for parameter in parameters
        if parameter.kind == "matrix" and len(parameter.shape) > 1 and parameter.path not in OF_DISTANCES
    )


def met(parameter: Parameter, channel: Channel | None) -> float:
    """Share of a layer's weight that one token meets: of E experts its k."""
    return channel.top_k / channel.num_experts if parameter.expert and isinstance(channel, MoE) else 1.0


def entry_matrices(model: Model) -> tuple[Parameter, ...]:
    """Products between the tokens or patches and the first layer."""
    patches = (p for p in stack_parameters(model.main) if p.path == PATCHES)
    return (*matrices(embedding_parameters(model)), *patches)


def exit_matrices(model: Model) -> tuple[Parameter, ...]:
    """Products behind the last layer, the one with the vocabulary left out."""
    found = matrices((*stack_parameters(model.main), *head_parameters(model)))
    return tuple(parameter for parameter in found if parameter.path != OUTPUT)


def output_elements(model: Model) -> int:
    """Weights of the projection to the vocabulary; 0 without a language-model head."""
    if model.head not in (Head.LM, Head.MLM):
        return 0
    return model.vocab * (model.embedding_width or model.hidden)


if TYPE_CHECKING:
    from vramcast.blocks.parts import Sizes


def layer_operators(layer: Layer, *, hidden: int, shape: Shape, style: Style) -> Iterator[Operator]:
    """Products, attention and the pointwise rest of one residual layer; transfers are `timing.training.transfers`'."""
    if style.sizes is not None:
        from vramcast.timing.training.tape import taped

        sizes = replace(style.sizes, hidden=hidden, tp=shape.tp, sequence_parallel=shape.sequence_parallel)
        yield from (operator.times(shape.tokens).on(shape.ep) for operator in taped(layer, sizes, style.float8))
        yield from _beside_the_tape(layer, sizes, shape, style)
    else:
        yield from _products(layer, hidden, shape, style)
        yield from _pointwise(layer, hidden, shape, style)
    yield from mixing(layer.mixer, shape, style)


NOT_TAPED: Final = frozenset({"mamba.x", "mamba.dt", "indexer.q", "indexer.k", "indexer.weights"})
"""Products that the tape has no operator of: Mamba's kernel computes dt, B and C between its convolution and its scan
[mamba_ssm/ops/selective_scan_interface.py `MambaInnerFn`]; an indexer's are left out of memory."""


def _beside_the_tape(layer: Layer, sizes: Sizes, shape: Shape, style: Style) -> Iterator[Operator]:
    for parameter in matrices(layer_parameters(layer, hidden=sizes.hidden)):
        if parameter.path in NOT_TAPED and adapter_of(sizes, parameter.path) is None:
            rows, out, columns, weights = _sizes(parameter, layer, shape)
            product = _product(parameter, style, rows * columns, rows * out, weights, flops=2.0 * rows * out * columns)
            if sizes.frozen and not sizes.trains(parameter.path):
                product = replace(
                    product, backward_flops=product.flops, backward_bytes=product.bytes, backward_kernels=1.0,
                    backward_weight_bytes=product.weight_bytes,
                )
            yield product


def _layout(layer: Layer, shape: Shape) -> Layout:
    kv_heads = layer.mixer.num_kv_heads if isinstance(layer.mixer, Attention) else 0
    return Layout(tp=shape.tp, ep=shape.ep, etp=shape.etp, kv_heads=kv_heads)


def _products(layer: Layer, hidden: int, shape: Shape, style: Style) -> Iterator[Operator]:
    parameters = tuple(matrices(layer_parameters(layer, hidden=hidden)))
    paths = {parameter.path for parameter in parameters}
    for parameter in parameters:
        merged = style.fused and FUSED.get(parameter.path) in paths
        rows, out, columns, weights = _sizes(parameter, layer, shape)
        entering, kernels = (0.0, 0.0) if merged else (rows * columns, 1.0)
        product = _product(parameter, style, entering, rows * out, weights, flops=2.0 * rows * out * columns)
        yield replace(product, kernels=kernels, backward_kernels=2 * kernels)
        if style.summed_bytes:
            yield Operator(
                f"{parameter.path}.gradient", "pointwise", "gradient", kernels=0.0, backward_kernels=1.0,
                backward_weight_bytes=weights * style.summed_bytes,
            )
        if style.converted_bytes:
            yield Operator(  # inputs forward, gradients of outputs backward, as they are and transposed
                "conversion", "pointwise", part_of(parameter.path), bytes=entering * style.converted_bytes,
                backward_bytes=rows * out * style.converted_bytes, kernels=2 * kernels,
            )


def _sizes(parameter: Parameter, layer: Layer, shape: Shape) -> tuple[float, int, int, int]:
    """Rows, output and input features of a product on one rank, and its weights."""
    local = local_shape(parameter, _layout(layer, shape))
    if not (parameter.expert and isinstance(layer.channel, MoE)):
        return shape.tokens, prod(local[:-1]), local[-1], prod(local)
    # every rank of the expert group sends its tokens: T k E_local / E from each of ep ranks
    rows = shape.tokens * layer.channel.top_k * shape.etp / shape.tp
    return rows, prod(local[1:-1]), local[-1], prod(local)


def _product(
    parameter: Parameter, style: Style, entering: float, leaving: float, weights: int, *, flops: float
) -> Operator:
    """y = x W^T and its two products backward; in the kernel of another one that reads the same x, x is not counted."""
    moved = (entering + leaving) * style.width
    read = float(weights * style.width)
    return Operator(
        parameter.path, "grouped" if parameter.expert else "product", part_of(parameter.path), flops, moved, 2 * flops,
        2 * moved, weight_bytes=read, backward_weight_bytes=read + weights * style.gradient_bytes,
    )


def mixing(mixer: Mixer | None, shape: Shape, style: Style) -> Iterator[Operator]:
    """What mixes the positions of a sequence: softmax(QK)V, or a scan."""
    match mixer:
        case Attention():
            heads, kv_heads = mixer.num_heads / shape.tp, max(1.0, mixer.num_kv_heads / shape.tp)
            widths = (mixer.head_dim, mixer.v_head_dim or mixer.head_dim)
            yield _attention(shape, style, heads, kv_heads, widths, mixer.window)
        case MultiLatentAttention():
            heads = mixer.num_heads / shape.tp
            widths = (mixer.qk_nope_dim + mixer.qk_rope_dim, mixer.v_head_dim)
            yield _attention(shape, style, heads, heads, widths, None)
        case Mamba():
            yield _scan(shape, style, 6.0 * mixer.inner_dim * mixer.state_dim, mixer.inner_dim)
        case LinearAttention():
            inner = mixer.num_v_heads * mixer.v_head_dim
            yield _scan(shape, style, 2.0 * inner * (3 * mixer.k_head_dim + 2 * SCAN_CHUNK), inner)


def attended(seq_len: int, window: int | None, *, causal: bool = True) -> float:
    """Keys a query meets on average: under a causal mask itself and those before it, else all of the sequence.

    >>> attended(4096, None), attended(4096, 1024), attended(4096, None, causal=False)
    (2048.5, 896.125, 4096)
    """
    if not causal:
        return min(seq_len, window or seq_len)
    if window is None or window >= seq_len:
        return (seq_len + 1) / 2
    return (window * (window + 1) / 2 + (seq_len - window) * window) / seq_len


def _attention(
    shape: Shape, style: Style, heads: float, kv_heads: float, widths: tuple[int, int], window: int | None
) -> Operator:
    """Flash attention does not compute the masked half [FA2]; materialised scores are written and read whole."""
    if style.eager_scores:
        scores = shape.tokens * shape.seq_len * heads
        flops, moved = 2.0 * scores * sum(widths), scores * style.eager_scores
        return Operator("attention.scores", "scores", "core", flops, moved, 2 * flops, 1.5 * moved, 5.0, 9.0)
    flops = 2.0 * shape.tokens * attended(shape.seq_len, window, causal=shape.causal) * heads * sum(widths)
    moved = shape.tokens * (heads + kv_heads) * sum(widths) * style.width
    return Operator(
        "attention.scores", "attention", "core", flops, moved, 2.5 * flops, 3 * moved, kernels=1.0, backward_kernels=2.0
    )


def _scan(shape: Shape, style: Style, flops: float, inner: int) -> Operator:
    rows = shape.tokens / shape.tp
    moved = 6.0 * rows * inner * style.width
    return Operator("scan", "attention", "core", flops * rows, moved, 2.5 * flops * rows, 3 * moved, 4.0, 8.0)


def _elements(name: str, part: str, forward: float, backward: float, kernels: float = 1.0) -> Operator:
    return Operator(
        name, "pointwise", part, bytes=forward, backward_bytes=backward, kernels=kernels, backward_kernels=kernels
    )


def _pointwise(layer: Layer, hidden: int, shape: Shape, style: Style) -> Iterator[Operator]:
    """[TE] Reads and writes: a norm 2 forward and 3 backward, a sum 3 and 3, a gate 3 and 5, a rotation 2 and 2."""
    size = shape.residual_tokens * hidden * style.residual
    for part in (layer.mixer, layer.channel):
        if part is None:
            continue
        norms = 2 if layer.post_norms else 1
        yield _elements("norm", "norm", 2 * norms * size, 3 * norms * size, norms)
        yield _elements("residual", "residual", 3 * size, 3 * size)
    yield from _mixer_pointwise(layer.mixer, shape, style)
    yield from _channel_pointwise(layer.channel, hidden, shape, style)


def _mixer_pointwise(mixer: Mixer | None, shape: Shape, style: Style) -> Iterator[Operator]:
    rows = shape.tokens * style.width
    match mixer:
        case Attention():
            heads = mixer.num_heads / shape.tp
            kv_heads = max(1.0, mixer.num_kv_heads / shape.tp)
            if mixer.rope:
                turned = (heads + kv_heads) * mixer.head_dim * rows
                yield _elements("rotary", "mixer", 2 * turned, 2 * turned, 2)
            if mixer.qk_norm != "none":
                normed = (heads + kv_heads) * mixer.head_dim * rows
                yield _elements("query and key norm", "mixer", 2 * normed, 3 * normed, 2)
            # gradients of queries, keys and values are joined for the product backward
            joined = (heads + 2 * kv_heads) * mixer.head_dim * rows
            yield _elements("queries, keys, values", "mixer", 0.0, 2 * joined)
        case MultiLatentAttention():
            heads = mixer.num_heads / shape.tp
            ranks = mixer.kv_lora_rank + (mixer.q_lora_rank or 0)
            yield _elements("latent norms", "up_proj", 2 * rows * ranks, 3 * rows * ranks, 2)
            # rotated halves are joined with the others: queries and keys are written anew
            joined = heads * (mixer.qk_nope_dim + mixer.qk_rope_dim) * rows
            yield _elements("rotary and joined heads", "up_proj", 4 * joined, 4 * joined, 6)
        case Mamba():
            yield _elements("gated norm", "mixer", 3 * rows * mixer.inner_dim / shape.tp,
                            5 * rows * mixer.inner_dim / shape.tp)
        case LinearAttention():
            inner = mixer.num_v_heads * mixer.v_head_dim / shape.tp
            yield _elements("gated norm", "mixer", 3 * rows * inner, 5 * rows * inner)


def _channel_pointwise(channel: MLP | MoE | None, hidden: int, shape: Shape, style: Style) -> Iterator[Operator]:
    if isinstance(channel, MLP):
        yield _gate(channel, shape.tokens * style.width * channel.width / shape.tp, "mlp")
    elif isinstance(channel, MoE):
        own = shape.tokens / shape.tp  # tokens a rank routes: sequence parallelism goes with experts
        yield _elements("routing", "router", 4.0 * own * channel.num_experts * FP32,
                        4.0 * own * channel.num_experts * FP32, 12)
        chosen = own * channel.top_k
        width = (channel.latent_width or hidden) * style.width
        moved = (6 * chosen + 2 * own) * width  # [permute] there and back
        yield _elements("permute", "channel", moved, moved, 8)
        yield _gate(channel.expert, chosen * channel.expert.width * style.width, "expert gate")
        if channel.shared_width:
            yield _gate(channel.expert, shape.tokens * style.width * channel.shared_width / shape.tp, "mlp")


def _gate(mlp: MLP, size: float, name: str) -> Operator:
    """One or two inputs of a width, one output."""
    forward, backward = (3.0, 5.0) if mlp.gated else (2.0, 3.0)
    return _elements(name, "gate", forward * size, backward * size)


MOST_KNOWN: Final = 1024
"""Layers whose active weights are kept [count]."""


class Useful(NamedTuple):
    """Operations of one token forward."""

    products: float  # of layers and ends with their weights
    output: float  # of the projection to the vocabulary
    attention: float  # softmax(QK)V and scans


def forward_flops(model: Model, seq_len: int) -> Useful:
    """What one token of a sequence needs forward.

    Leaves out: norms, gates, losses, depthwise convolutions, tables of relative positions, multi-token prediction.

    Args:
        model: of one stack
        seq_len: positions of a sequence [tokens]
    """
    runs = model.main.runs
    shape = Shape(1, seq_len, causal=model.main.causal)
    ends = sum(
        parameter.elements / (seq_len if parameter.path in POOLED else 1)
        for parameter in (*entry_matrices(model), *exit_matrices(model))
    )
    layers = sum(run.count * active_elements(run.layer, hidden=model.hidden) for run in runs)
    scores = sum(
        run.count * operator.flops for run in runs for operator in mixing(run.layer.mixer, shape, Style())
    )
    return Useful(2.0 * (layers + ends), 2.0 * output_elements(model), scores / seq_len)


@lru_cache(maxsize=MOST_KNOWN)
def active_elements(layer: Layer, *, hidden: int) -> float:
    """Weights of a layer's products that one token meets."""
    return sum(
        parameter.elements * met(parameter, layer.channel)
        for parameter in matrices(layer_parameters(layer, hidden=hidden))
    )
