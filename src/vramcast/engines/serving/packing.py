"""How kernels lay out mxfp4 experts: sizes rounded up, values and scales padded, scales kept twice, biases in fp32.

[marlin] vllm-project/vllm vllm/model_executor/layers/quantization/mxfp4.py `create_weights`, later
fused_moe/oracle/mxfp4.py `mxfp4_round_up_hidden_size_and_intermediate_size`
[triton] vllm/third_party/triton_kernels/tensor_details/layout_details/hopper_value.py, hopper_scale.py `swizzle_data`
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.model import MoE
from vramcast.units import ceil_div, round_up

BLOCK = 32
"""Numbers that share a scale of one byte."""


class Packing(NamedTuple):
    """One layout of the experts' two matrices: gate and up together, and down."""

    name: str
    hidden: int  # what the residual stream is rounded up to [channels]
    inner: int  # what the width of an expert on one rank is rounded up to [channels]
    values: tuple[int, int] = (1, 1)  # what packed inputs [bytes] and outputs of a matrix are padded to
    scales: int = 1  # what outputs are padded to where scales are laid out anew
    own_scales: bool = False  # scales as they were loaded stay beside those laid out anew [triton]
    bias_width: int = 2  # [bytes]


MARLIN = Packing("Marlin", 256, 128)


def padding_bytes(moe: MoE, hidden: int, *, divided: int, experts: int, packing: Packing) -> int:
    """Bytes that the layout of one layer's experts takes beyond a checkpoint's.

    Args:
        moe: the layer
        hidden: width of the residual stream [channels]
        divided: ranks that share one expert's matrices
        experts: on this rank
        packing: the layout
    """
    inner, ups = ceil_div(moe.expert.width, divided), 2 if moe.expert.gated else 1
    h, f = round_up(hidden, packing.hidden), round_up(inner, packing.inner)
    rows, columns = packing.values
    packed = bare = 0
    for inputs, outputs, plain in ((h, ups * f, hidden * ups * inner), (f, h, inner * hidden)):
        packed += round_up(inputs // 2, rows) * round_up(outputs, columns)
        packed += ceil_div(inputs, BLOCK) * round_up(outputs, packing.scales)
        packed += ceil_div(inputs, BLOCK) * outputs * packing.own_scales
        bare += plain // 2 + plain // BLOCK
    if moe.expert.bias:
        packed += (ups * f + h) * packing.bias_width
        bare += (ups * inner + hidden) * 2
    return (packed - bare) * experts
