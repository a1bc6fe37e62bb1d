"""What engines keep beside a checkpoint's weights: rotary tables, absorbed projections, padding of packed experts.

[rotary] vllm-project/vllm vllm/model_executor/layers/rotary_embedding/base.py `_compute_cos_sin_cache`: cosine and sine
of every position, one table for all layers that rotate alike; linear scaling lengthens it (linear_scaling_rope.py)
[absorb] vllm/model_executor/layers/attention/mla_attention.py `process_weights_after_loading`: W_UK and W_UV in 16 bits
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.model import Attention, Mixer, Model, MoE, MultiLatentAttention
from vramcast.domain.program import Category, Tensor
from vramcast.engines.serving.packing import Packing, padding_bytes
from vramcast.engines.serving.stages import Stage
from vramcast.engines.serving.weights import block_bytes

OWN_LOCAL_TABLE: Final = frozenset(("gemma3", "gemma3_text", "gemma4", "gemma4_text"))
"""Families whose windowed layers rotate with another base than the others."""


def beside_weights(
    model: Model,
    stage: Stage,
    *,
    tp: int,
    experts_divided: int,
    local_experts: int,
    packing: Packing | None,
    width: int = 2,
    rotary_width: int | None = None,
) -> Iterator[tuple[Tensor, int]]:
    """Tensors that are loaded with the weights although no checkpoint holds them.

    Args:
        model: the network
        stage: layers of the rank
        tp: ranks that share a layer's matrices
        experts_divided: ranks that share one expert's matrices
        local_experts: experts of one layer on this rank
        packing: how kernels lay the experts out; None: as the checkpoint does
        width: of an activation [bytes]
        rotary_width: of an element of a rotary table; None: as an activation [bytes]
    """
    for name, num_bytes, formula in _rotary_tables(model, rotary_width or width):
        yield _tensor(name, num_bytes, formula), 1
    for run in stage.runs(model):
        mixer, channel = run.layer.mixer, run.layer.channel
        if isinstance(mixer, MultiLatentAttention):
            elements = mixer.num_heads // tp * mixer.kv_lora_rank * (mixer.qk_nope_dim + mixer.v_head_dim)
            yield _tensor("absorbed W_UK and W_UV", elements * width, f"{elements:,} x {width} B"), run.count
        if isinstance(channel, MoE) and packing is not None:
            padding = padding_bytes(
                channel, model.hidden, divided=experts_divided, experts=local_experts, packing=packing
            )
            yield _tensor("experts.padding", padding, f"as {packing.name} lays them out"), run.count


def _rotary_tables(model: Model, width: int) -> Iterator[tuple[str, int, str]]:
    mixers = [run.layer.mixer for run in model.main.runs]
    if model.context is None:
        return
    widths = {(_rotary_width(mixer), _is_local(mixer)) for mixer in mixers if _rotary_width(mixer)}
    if model.family not in OWN_LOCAL_TABLE:
        widths = {(rotary, False) for rotary, _ in widths}
    for rotary, local in sorted(widths):
        positions = model.context if local else round(model.context * model.rope_scale)
        name = "rotary table" + (" of windowed layers" if local else "")
        yield name, positions * rotary * width, f"{positions:,} positions x {rotary} x {width} B"


def _rotary_width(mixer: Mixer | None) -> int:
    """Channels of a head that rotate."""
    if isinstance(mixer, MultiLatentAttention):
        return mixer.qk_rope_dim
    if isinstance(mixer, Attention) and mixer.rope:
        return int(mixer.head_dim * mixer.rope_fraction)
    return 0


def _is_local(mixer: Mixer | None) -> bool:
    return isinstance(mixer, Attention) and mixer.window is not None


def _tensor(name: str, num_bytes: int, formula: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=block_bytes(num_bytes), category=Category.WEIGHTS, owner="beside the checkpoint",
        formula=formula, source="vllm-project/vllm vllm/model_executor/layers/; docs/serving.md",
    )
