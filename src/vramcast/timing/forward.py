"""A whole forward on one pipeline stage: products, token mixing, the pointwise rest, head, sampler, collectives.

Eager engines run the operators of the tape that memory comes from (`blocks.transformer.decoder_layer`), one kernel
each. Serving engines fuse them; what is left is listed here, and a test holds it against the compiled tape.

Symbols:  B sequences   S new tokens   K tokens attended to   A heads   G key/value heads   D head width   N state
width   T rows   E experts   k experts per token Products follow from the weights themselves, so that every weight is
read once.

[MLA] DeepSeek-V2, arXiv:2405.04434, section 2.1: in decoding the up-projections are absorbed: every head attends over
the one compressed vector; in prefill keys and values are expanded.
[DSA] DeepSeek-V3.2: the indexer scores every cached token, attention reads the 2,048 best (`index_topk` of the
config).
[FA] Dao, arXiv:2307.08691: a causal mask halves the work of a prompt.
[vllm] vllm/model_executor/layers: layernorm.py `RMSNorm` adds the residual, activation.py `SiluAndMul`,
rotary_embedding turns queries and keys in one kernel, fused_moe sorts tokens by expert and sums their outputs.
[proposed] sglang 0.5.9 srt/layers/attention/hybrid_linear_attn_backend.py `update_mamba_state_after_mtp_verify`
[minimax] vllm 0.19.0 vllm/model_executor/layers/mamba/linear_attn.py `MiniMaxText01RMSNormTP.forward_qk`: squares of
queries and keys are summed over tensor-parallel ranks, two fp32 numbers a token
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Final

from vramcast import blocks, operators
from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import embedding_parameters, head_parameters
from vramcast.domain.model import (
    MLP,
    Attention,
    Head,
    Layer,
    LinearAttention,
    Mamba,
    Mixer,
    Model,
    MoE,
    MultiLatentAttention,
    Norm,
    Parameter,
    Run,
    Split,
)
from vramcast.parallel.layout import Layout
from vramcast.states.optimizers import local_shape
from vramcast.states.storage import format_of, local_kv_heads, state_bytes, token_bytes
from vramcast.timing.kernels import WHOLE
from vramcast.timing.work import FUSED, ROUTING, SCAN_CHUNK, Placement, Setting, Sizes, Step, Work, collective
from vramcast.units import FP32, ceil_div

INDEXED_TOKENS: Final = 2048
"""Tokens that sparse attention reads [DSA]."""


def mixing(mixer: Mixer | None, setting: Setting) -> Iterator[Work]:
    """What mixes tokens in one layer, projections left out."""
    match mixer:
        case Attention():
            yield from _attention(mixer, setting)
        case MultiLatentAttention():
            yield from _latent(mixer, setting.step, setting.placement)
        case Mamba() | LinearAttention():
            yield _scan(mixer, setting.step, setting.placement)


def attended(step: Step, window: int | None) -> float:
    """Tokens that one new token attends to, on average over the step."""
    if step.tokens == 1:
        return min(step.cached + 1, window or step.cached + 1)
    if window is None or step.cached + step.tokens <= window:
        return step.cached + (step.tokens + 1) / 2
    # the first tokens see fewer than a window
    filling = max(0, min(window - step.cached, step.tokens))
    return (filling * (step.cached + (filling + 1) / 2) + (step.tokens - filling) * window) / step.tokens


def _attention(mixer: Attention, setting: Setting) -> Iterator[Work]:
    step, placement, execution = setting.step, setting.placement, setting.execution
    heads, kv_heads = ceil_div(mixer.num_heads, placement.tp), local_kv_heads(mixer.num_kv_heads, placement.tp)
    widths = mixer.head_dim + (mixer.v_head_dim or mixer.head_dim)
    keys = attended(step, mixer.window)
    kept = min(step.cached + step.tokens, mixer.window or step.cached + step.tokens)
    per_token = token_bytes(mixer, tp=placement.tp, k_dtype=placement.k_dtype, v_dtype=placement.v_dtype)
    cache = step.sequences * kept * per_token / placement.dcp
    limit = execution.sequence_bytes_per_s
    rereads = execution.rereads if step.decodes else 0.0
    copies = heads / kv_heads if execution.copies_cache else 1.0 + rereads * (heads / kv_heads - 1)
    if execution.copies_cache:
        # concatenation reads and writes everything, the repetition reads it and writes a copy for every query head
        grown = step.sequences * (step.cached + step.tokens) * per_token
        yield Work("attention.cache", cache_bytes=(2 + (1 + copies if copies > 1 else 0)) * grown, kernels=4)
    else:
        yield Work("attention.cache", cache_bytes=step.rows * per_token)
    yield Work(
        "attention.scores",
        flops=2 * step.rows * keys * heads * widths / placement.dcp,
        cache_bytes=cache * copies,
        activation_bytes=2 * step.rows * heads * mixer.head_dim * placement.width,
        bytes_per_s=limit * step.sequences if limit and step.decodes else None,
        sizes=_attention_sizes(mixer, setting, heads / kv_heads, heads, copies) if execution.fused else None,
    )


def _attention_sizes(mixer: Attention, setting: Setting, group: float, heads: int, copies: float) -> Sizes | None:
    """What the kernel of attention is looked up by. Tables know no cached tokens before a prompt: a chunk behind
    others is as long as one of as many operations; heads that read anew what they share are those of smaller groups."""
    step, placement = setting.step, setting.placement
    fixed: dict[str, float] = {"width": mixer.head_dim, "window": mixer.window or WHOLE}
    stored = placement.k_dtype if placement.k_dtype.startswith("fp8") else placement.whole
    if step.decodes:
        context = (step.cached + 1) / placement.dcp
        grouped = group / copies * (1 + step.proposed)  # queries of proposals read the same keys
        return Sizes("generation", (context, step.sequences * heads * copies / group, grouped), fixed, stored)
    if mixer.v_head_dim not in (None, mixer.head_dim):
        return None
    longer = 1 + 2 * step.cached / step.tokens if mixer.window is None else 1.0
    return Sizes("context", (step.tokens, step.sequences * heads * longer, group), fixed, stored)


def _latent(mixer: MultiLatentAttention, step: Step, placement: Placement) -> Iterator[Work]:
    heads = ceil_div(mixer.num_heads, placement.tp)
    keys, kept = attended(step, None), step.cached + step.tokens
    indexed = bool(mixer.indexer_heads)
    per_token = token_bytes(mixer, tp=placement.tp, k_dtype=placement.k_dtype)
    index_bytes = mixer.indexer_dim + 4 * ceil_div(mixer.indexer_dim, 128) if indexed else 0
    if indexed:
        flops = 2 * step.rows * keys * mixer.indexer_heads * mixer.indexer_dim
        yield Work("indexer.scores", flops=flops, cache_bytes=step.sequences * kept * index_bytes)
        keys = min(keys, INDEXED_TOKENS)
        kept = min(kept, INDEXED_TOKENS) if step.decodes else kept
    absorbed = 2 * mixer.kv_lora_rank + mixer.qk_rope_dim
    expanded = mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim
    yield Work("attention.cache", cache_bytes=step.rows * per_token)
    yield Work(
        "attention.scores",
        flops=2 * step.rows * keys * heads * (absorbed if step.decodes else expanded) / placement.dcp,
        cache_bytes=step.sequences * kept * (per_token - index_bytes) / placement.dcp,
        activation_bytes=2 * step.rows * heads * mixer.v_head_dim * placement.width,
        sizes=None if indexed else _latent_sizes(mixer, step, placement, heads),
    )


def _latent_sizes(mixer: MultiLatentAttention, step: Step, placement: Placement, heads: int) -> Sizes:
    stored = placement.k_dtype if placement.k_dtype.startswith("fp8") else placement.whole
    if step.decodes:
        point = ((step.cached + 1) / placement.dcp, step.sequences, heads * (1 + step.proposed))
        return Sizes("latent_generation", point, {"rank": mixer.kv_lora_rank, "rope": mixer.qk_rope_dim}, stored)
    longer = 1 + 2 * step.cached / step.tokens
    widths = mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim
    return Sizes("latent_context", (step.tokens, step.sequences * heads * longer), {"widths": widths}, stored)


CHUNKED_KERNELS: Final = 10
"""Convolution, gates, and a gated delta rule by chunks: norms, cumulated gates, scores, triangular inverse, w and u,
states, outputs [fla-org/flash-linear-attention fla/ops/gated_delta_rule/chunk.py]."""


def _scan(mixer: Mamba | LinearAttention, step: Step, placement: Placement) -> Work:
    """The state is read and written once a step, or once a chunk of a prompt; behind every proposal it is kept, and
    that of the last accepted one becomes the sequence's own [proposed]."""
    if isinstance(mixer, Mamba):
        inner = ceil_div(mixer.inner_dim, placement.tp)
        flops = 6.0 * step.rows * inner * mixer.state_dim
    else:
        inner = ceil_div(mixer.num_v_heads, placement.tp) * mixer.v_head_dim
        within = 0 if step.decodes else SCAN_CHUNK
        flops = 2.0 * step.rows * inner * (3 * mixer.k_head_dim + 2 * within)
    state = state_bytes(mixer, tp=placement.tp, conv_width=placement.width)
    visits = step.sequences * (2 * max(1, ceil_div(step.tokens, SCAN_CHUNK)) + (step.proposed and step.proposed + 2))
    return Work(
        "scan", flops=flops, cache_bytes=visits * state, activation_bytes=3 * step.rows * inner * placement.width,
        kernels=3 if step.decodes or isinstance(mixer, Mamba) else CHUNKED_KERNELS,
    )


NOT_POINTWISE: Final = frozenset({
    "linear", "quantised_linear", "flash_attention", "efficient_attention", "cudnn_attention", "repeat_kv", "scan",
    "causal_conv1d", "hold", "slice", "view", "chunk", "promote", "all_reduce", "all_gather", "reduce_scatter",
})
"""Operators of a tape that are counted elsewhere, or move nothing."""


def pointwise(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    if setting.execution.fused:
        # x and the residual in, their sum and its norm out
        parts = sum(part is not None for part in (layer.mixer, layer.channel))
        count = parts * (2 if layer.post_norms else 1) - layer.shared_input_norm
        for _ in range(count):
            yield Work("norm", activation_bytes=4.0 * setting.step.rows * hidden * setting.placement.width)
        yield from _rotary(layer, setting)
        yield from _channel(layer, setting, hidden)
    else:
        yield from _tape(layer, setting, hidden)


def _rotary(layer: Layer, setting: Setting) -> Iterator[Work]:
    """Queries and keys turned in place, normed before where the family does; gates of the output."""
    mixer, tp, rows = layer.mixer, setting.placement.tp, setting.step.rows * setting.placement.width
    match mixer:
        case Attention():
            width = ceil_div(mixer.num_heads, tp) + max(1, mixer.num_kv_heads // tp)
            if mixer.rope:
                yield Work("rotary", activation_bytes=2.0 * rows * width * mixer.head_dim)
            if mixer.qk_norm != "none":
                passes = 2.0 if _normed_over_ranks(layer) and tp > 1 else 1.0  # squares summed before, scaled behind
                yield Work("query and key norm", activation_bytes=2.0 * passes * rows * width * mixer.head_dim,
                           kernels=passes)
            if mixer.output_gate:
                yield Work("gate", activation_bytes=3.0 * rows * ceil_div(mixer.num_heads, tp) * mixer.head_dim)
        case MultiLatentAttention():
            ranks = mixer.kv_lora_rank + (mixer.q_lora_rank or 0)
            yield Work("latent norms", activation_bytes=2.0 * rows * ranks, kernels=2.0)
            turned = ceil_div(mixer.num_heads, tp) * mixer.qk_rope_dim + mixer.qk_rope_dim
            yield Work("rotary", activation_bytes=2.0 * rows * turned)
        case Mamba():
            yield Work("gated norm", activation_bytes=3.0 * rows * ceil_div(mixer.inner_dim, tp))
        case LinearAttention():
            yield Work("gated norm", activation_bytes=3.0 * rows * ceil_div(mixer.num_v_heads, tp) * mixer.v_head_dim)
        case None:
            return


def _normed_over_ranks(layer: Layer) -> bool:
    """Whether the norm of queries and keys is one over the heads of all ranks [minimax]."""
    mixer = layer.mixer
    return isinstance(mixer, Attention) and mixer.qk_norm == "full" and mixer.qk_norm_kind is Norm.RMS


def _channel(layer: Layer, setting: Setting, hidden: int) -> Iterator[Work]:
    """Activations of feed-forward widths; of experts the routing: their kernels include what is between."""
    placement, rows = setting.placement, setting.step.rows
    if isinstance(layer.channel, MLP):
        yield _activation(layer.channel, rows, layer.channel.width, placement.tp, placement.width)
    elif isinstance(layer.channel, MoE):
        moe = layer.channel
        yield Work(ROUTING, operands=setting.placement.quantised, kernels=3.0,
                   activation_bytes=2.0 * rows * moe.num_experts * FP32)
        if moe.shared_width:
            yield _activation(moe.expert, rows, moe.shared_width, placement.tp, placement.width)


def _activation(mlp: MLP, rows: int, width: int, ranks: int, element: int) -> Work:
    """One or two inputs, one output."""
    return Work("activation", activation_bytes=(3.0 if mlp.gated else 2.0) * rows * ceil_div(width, ranks) * element)


def _tape(layer: Layer, setting: Setting, hidden: int) -> Iterator[Work]:
    """Every operator that eager PyTorch starts."""
    step, placement = setting.step, setting.placement
    sizes = blocks.parts.Sizes(
        batch=step.sequences, seq_len=step.tokens, hidden=hidden, tp=placement.tp, frozen=True,
        numerics=operators.linear.Numerics(*(placement.width,) * 4),
    )
    for operator in blocks.transformer.decoder_layer(layer.without_indexer, sizes).operators:
        if operator.name in NOT_POINTWISE:
            continue
        size = sum(value.num_bytes for value in (*operator.inputs, *operator.outputs))
        yield Work(operator.name, activation_bytes=size)


def layer_work(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    """Everything one residual layer does in a step on one rank."""
    yield from _products(layer, setting, hidden=hidden)
    yield from mixing(layer.mixer, setting)
    yield from pointwise(layer, setting, hidden=hidden)
    yield from _collectives(layer, setting, hidden=hidden)


def met_experts(experts: int, *, top_k: int, rows: float) -> float:
    """Distinct experts that so many tokens meet, when each picks k of them at random.

    >>> round(met_experts(128, top_k=8, rows=1)), round(met_experts(128, top_k=8, rows=64))
    (8, 126)
    """
    missed: float = (1 - min(1.0, top_k / experts)) ** rows
    return experts * (1 - missed)


def _products(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    execution, placement = setting.execution, setting.placement
    parameters = [p for p in layer_parameters(layer, hidden=hidden) if len(p.shape) > 1 and p.kind != "norm"]
    paths = {parameter.path for parameter in parameters}
    groups: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        leader = FUSED.get(parameter.path) if execution.fused else None
        key = EXPERTS if parameter.expert and execution.fused else leader if leader in paths else parameter.path
        groups.setdefault(key, []).append(parameter)
    for path, members in groups.items():
        yield _product(path, members, layer, setting, hidden=hidden)
    if isinstance(layer.channel, MoE) and execution.loops_experts:
        moe = layer.channel
        met = met_experts(moe.num_experts, top_k=moe.top_k, rows=setting.step.rows)
        count = met if execution.meets_experts else moe.num_experts
        looped = sum(execution.kernels_of(placement.stored_as(p)) for p in parameters if p.expert)
        yield Work("moe.loop", kernels=count * (execution.loops_experts + looped))


def _layout(layer: Layer, placement: Placement) -> Layout:
    kv_heads = layer.mixer.num_kv_heads if isinstance(layer.mixer, Attention) else 0
    whole_experts = placement.ep > 1
    return Layout(tp=placement.tp, ep=placement.ep, etp=1 if whole_experts else placement.tp, kv_heads=kv_heads)


def _product(path: str, members: list[Parameter], layer: Layer, setting: Setting, *, hidden: int) -> Work:
    """y = W x of one kernel for the rows of the step: one weight, some that read the same x, or all experts."""
    step, placement, execution = setting.step, setting.placement, setting.execution
    layout, stored = _layout(layer, placement), placement.stored_as(members[0])
    moe = layer.channel if isinstance(layer.channel, MoE) and members[0].expert else None
    rows: float = step.rows
    met = 1.0
    if moe is not None:
        # every rank of an expert group sends its tokens: rows of the group x k / E on each expert
        everybody = step.rows * (placement.ep // placement.tp if placement.ep > placement.tp else 1)
        met = met_experts(moe.num_experts, top_k=moe.top_k, rows=everybody) / moe.num_experts
        rows = everybody * moe.top_k / placement.ep
    flops = weight_bytes = activation_bytes = 0.0
    kernels, outputs, inputs = 0.0, 0, 0
    for parameter in members:
        shape = _turned(parameter, local_shape(parameter, layout), placement.tp)
        size = prod(shape[1:-1] if parameter.expert else shape[:-1])
        own = format_of(placement.stored_as(parameter))
        flops += 2.0 * rows * size * shape[-1]
        weight_bytes += own.num_bytes(shape) * met
        first = parameter is members[0] or FUSED.get(parameter.path) is None
        activation_bytes += rows * (first * shape[-1] + size) * placement.width
        kernels += first * execution.kernels_of(placement.stored_as(parameter))
        outputs, inputs = outputs + size, shape[-1]
    sizes = Sizes("gemm", (rows, outputs, inputs), {}, stored)
    if moe is not None:
        degrees = (1, placement.ep) if placement.ep > 1 else (placement.tp, 1)
        for one in between(moe, setting, hidden=hidden) if execution.fused else ():
            activation_bytes, kernels = activation_bytes + one.activation_bytes, kernels + one.kernels
        sizes = Sizes("experts", (everybody, *degrees), {
            "hidden": moe.latent_width or hidden, "inter": moe.expert.width, "count": moe.num_experts,
            "top_k": moe.top_k,
        }, stored + placement.experts_by)
    elif path == "attention.kv_b" and isinstance(layer.mixer, MultiLatentAttention) and step.decodes:
        mixer = layer.mixer
        heads = ceil_div(mixer.num_heads, placement.tp)
        sizes = Sizes("absorbed", (rows, heads), {"inner": mixer.v_head_dim, "rank": mixer.kv_lora_rank}, stored)
    return Work(
        path, flops=flops, operands=stored, weight_bytes=weight_bytes, activation_bytes=activation_bytes,
        kernels=kernels, sizes=sizes if execution.fused else None,
    )


def _turned(parameter: Parameter, shape: tuple[int, ...], tp: int) -> tuple[int, ...]:
    """Of a weight whose columns are divided, rows and columns as the product has them: `local_shape` divides rows."""
    if parameter.split is not Split.ROW or parameter.expert or len(shape) != 2 or shape[0] == parameter.shape[0]:
        return shape
    return parameter.shape[0], ceil_div(parameter.shape[1], tp)


def between(moe: MoE, setting: Setting, *, hidden: int) -> Iterator[Work]:
    """Activation of the chosen experts and the sum of what they return, which the kernels of experts include.

    Under expert parallelism a rank has fewer rows of whole experts: the same bytes.
    """
    rows, placement = setting.step.rows, setting.placement
    ranks = max(placement.tp, placement.ep)
    yield _activation(moe.expert, rows * moe.top_k, moe.expert.width, ranks, placement.width)
    yield Work("experts summed",
               activation_bytes=float(rows * (moe.top_k + 1) * (moe.latent_width or hidden) * placement.width))


EXPERTS: Final = "moe.experts"
"""All products of routed experts, where one kernel or a few run them together."""


def _collectives(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    """One sum after each part under tensor parallelism; tokens to their experts and back under expert parallelism."""
    placement = setting.placement
    size = setting.step.rows * hidden * placement.width
    moe = layer.channel if isinstance(layer.channel, MoE) else None
    spread = moe is not None and placement.ep > placement.tp
    parts = (layer.mixer is not None) + (layer.channel is not None and not spread)
    if placement.tp > 1:
        for _ in range(parts):
            yield collective("all-reduce", size, ranks=placement.tp)
        if _normed_over_ranks(layer):
            yield collective("all-reduce", setting.step.rows * 2.0 * FP32, ranks=placement.tp)
    if spread and moe is not None:
        for _ in range(2):
            yield collective("all-to-all", size * moe.top_k, ranks=placement.ep)


LOGIT_PASSES: Final = 3
"""How often the sampler goes over fp32 logits: softmax, filter, draw."""


def forward_work(
    model: Model, runs: Iterable[Run], setting: Setting, *, first: bool = True, last: bool = True
) -> Iterator[tuple[Work, int]]:
    """What one rank does in a step: each operator and how often it runs.

    Leaves out: towers beside the main stack (vision, encoder), drafts of speculative decoding.

    Args:
        runs: layers of the rank's stage
        setting: sequences and tokens, degrees and formats, how the engine runs kernels
        first: whether the stage has the embedding
        last: whether the stage has the head
    """
    counts: dict[Layer, int] = {}
    for run in runs:
        counts[run.layer] = counts.get(run.layer, 0) + run.count
    if first:
        yield from ((work, 1) for work in _embedding(model, setting))
    for layer, count in counts.items():
        yield from ((work, count) for work in layer_work(layer, setting, hidden=model.hidden))
    if last:
        yield from ((work, 1) for work in _head(model, setting))
    else:
        size = setting.step.rows * model.hidden * setting.placement.width
        # the next stage begins behind the tensor-parallel ranks of this one
        yield collective("send", size, ranks=2 * setting.placement.tp), 1


def _embedding(model: Model, setting: Setting) -> Iterator[Work]:
    """Rows are gathered: a table is never read whole."""
    step, placement = setting.step, setting.placement
    width = sum(parameter.shape[-1] for parameter in embedding_parameters(model) if parameter.kind == "embedding")
    yield Work("embedding", activation_bytes=2.0 * step.rows * width * placement.width)
    if placement.tp > 1:
        yield collective("all-reduce", step.rows * model.hidden * placement.width, ranks=placement.tp)


def _head(model: Model, setting: Setting) -> Iterator[Work]:
    if model.head not in (Head.LM, Head.MLM):
        return
    step, placement = setting.step, setting.placement
    rows = (step.computed or step.sequences) * step.head_rows
    shape = (ceil_div(model.vocab, placement.tp), model.hidden)
    # of the head's own weight, or of the embedding it is tied to
    own = [parameter for parameter in head_parameters(model) if len(parameter.shape) > 1]
    parameter = (own or list(embedding_parameters(model)))[0]
    stored = placement.stored_as(parameter)
    yield Work(
        "head",
        flops=2.0 * rows * shape[0] * shape[1],
        operands=stored,
        weight_bytes=format_of(stored).num_bytes(shape),
        activation_bytes=rows * (shape[0] + shape[1]) * placement.width,
        kernels=setting.execution.kernels_of(stored),
        sizes=Sizes("gemm", (rows, shape[0], shape[1]), {}, stored) if setting.execution.fused else None,
    )
    if placement.tp > 1:
        yield collective("all-gather", rows * model.vocab * placement.width, ranks=placement.tp)
    sampled = step.sequences * model.vocab * 4
    yield Work("sampler", activation_bytes=float(LOGIT_PASSES * sampled), kernels=LOGIT_PASSES)
