"""What lies between products and attention: norms, rotary embedding, gates, routing.

Eager engines run the operators of the tape that memory comes from (`blocks.transformer.decoder_layer`), one kernel
each. Serving engines fuse them; what is left is listed here, and a test holds it against the compiled tape.
[vllm] vllm/model_executor/layers: layernorm.py `RMSNorm` adds the residual, activation.py `SiluAndMul`,
rotary_embedding turns queries and keys in one kernel, fused_moe sorts tokens by expert and sums their outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import MLP, Attention, Layer, LinearAttention, Mamba, MoE, MultiLatentAttention
from vramcast.timing.work import Setting, Work
from vramcast.units import ceil_div

NOT_POINTWISE: Final = frozenset({
    "linear", "quantised_linear", "flash_attention", "efficient_attention", "cudnn_attention", "repeat_kv", "scan",
    "causal_conv1d", "hold", "slice", "view", "chunk", "promote", "all_reduce", "all_gather", "reduce_scatter",
})
"""Operators of a tape that are counted elsewhere, or move nothing."""

FP32: Final = 4


def pointwise(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    """The small operators of one layer."""
    if setting.execution.fused:
        yield from _norms(layer, setting, hidden)
        yield from _rotary(layer, setting)
        yield from _channel(layer, setting, hidden)
    else:
        yield from _tape(layer, setting, hidden)


def _norms(layer: Layer, setting: Setting, hidden: int) -> Iterator[Work]:
    """x and the residual in, their sum and its norm out."""
    parts = sum(part is not None for part in (layer.mixer, layer.channel))
    count = parts * (2 if layer.post_norms else 1) - layer.shared_input_norm
    for _ in range(count):
        yield Work("norm", activation_bytes=4.0 * setting.step.rows * hidden * setting.placement.width)


def _rotary(layer: Layer, setting: Setting) -> Iterator[Work]:
    """Queries and keys turned in place, normed before where the family does; gates of the output."""
    mixer, tp, rows = layer.mixer, setting.placement.tp, setting.step.rows * setting.placement.width
    match mixer:
        case Attention():
            width = ceil_div(mixer.num_heads, tp) + max(1, mixer.num_kv_heads // tp)
            if mixer.rope:
                yield Work("rotary", activation_bytes=2.0 * rows * width * mixer.head_dim)
            if mixer.qk_norm != "none":
                yield Work("query and key norm", activation_bytes=2.0 * rows * width * mixer.head_dim)
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


def _channel(layer: Layer, setting: Setting, hidden: int) -> Iterator[Work]:
    """Activations of feed-forward widths; of experts also the routing, and the sum of what they return."""
    placement, rows = setting.placement, setting.step.rows
    if isinstance(layer.channel, MLP):
        yield _activation(layer.channel, rows, layer.channel.width, placement.tp, placement.width)
    elif isinstance(layer.channel, MoE):
        moe = layer.channel
        chosen = rows * moe.top_k
        yield Work("routing", activation_bytes=2.0 * rows * moe.num_experts * FP32, kernels=3.0)
        # under expert parallelism a rank has fewer rows of whole experts: the same bytes
        yield _activation(moe.expert, chosen, moe.expert.width, max(placement.tp, placement.ep), placement.width)
        returned = (chosen + rows) * (moe.latent_width or hidden)
        yield Work("experts summed", activation_bytes=float(returned * placement.width))
        if moe.shared_width:
            yield _activation(moe.expert, rows, moe.shared_width, placement.tp, placement.width)


def _activation(mlp: MLP, rows: int, width: int, ranks: int, element: int) -> Work:
    """One or two inputs, one output."""
    return Work("activation", activation_bytes=(3.0 if mlp.gated else 2.0) * rows * ceil_div(width, ranks) * element)


def _tape(layer: Layer, setting: Setting, hidden: int, *, variant: str = "eager") -> Iterator[Work]:
    """Every operator that eager PyTorch starts."""
    from vramcast.blocks.sizes import Sizes  # 15 ms that only eager engines need
    from vramcast.blocks.transformer import decoder_layer
    from vramcast.operators.linear import Numerics

    step, placement = setting.step, setting.placement
    sizes = Sizes(
        batch=step.sequences, seq_len=step.tokens, hidden=hidden, tp=placement.tp, frozen=True,
        numerics=Numerics(*(placement.width,) * 4), norm=variant, activation=variant, rope=variant,
    )
    for operator in decoder_layer(_plain(layer), sizes).operators:
        if operator.name in NOT_POINTWISE:
            continue
        size = sum(value.num_bytes for value in (*operator.inputs, *operator.outputs))
        yield Work(operator.name, activation_bytes=size)


def _plain(layer: Layer) -> Layer:
    """The layer whose tape is written: an indexer's few vectors are counted with its products."""
    if isinstance(layer.mixer, MultiLatentAttention) and layer.mixer.indexer_heads:
        return replace(layer, mixer=replace(layer.mixer, indexer_heads=0))
    return layer
