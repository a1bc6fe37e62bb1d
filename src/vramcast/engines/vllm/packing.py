"""Which kernels multiply mxfp4 experts, by version and card, and how they lay the experts out.

[select] vllm-project/vllm vllm/model_executor/layers/quantization/mxfp4.py `get_mxfp4_backend`, since 0.18
fused_moe/oracle/mxfp4.py `select_mxfp4_moe_backend`, read in the wheels 0.11.0 to 0.33.0
[triton] triton_kernels, which 0.11.1 requires beside torch 2.9 (images have it; wheels bring it since 0.12, as
vllm/third_party/triton_kernels). Its layout keeps the scales it was made of up to 0.24
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.device import Gpu
from vramcast.domain.model import Model
from vramcast.domain.serving import Version
from vramcast.engines.serving.packing import MARLIN, Packing

HOPPER: Final = 90
BLACKWELL: Final = (100, 103)

TRITON: Final[tuple[tuple[Version, Packing], ...]] = (
    ((0, 25), Packing("Triton", 1, 64, values=(32, 16), scales=256, bias_width=4)),
    ((0, 22), Packing("Triton", 1, 64, values=(32, 16), scales=256, own_scales=True, bias_width=4)),
    ((0, 17), Packing("Triton", 1, 64, values=(64, 64), scales=256, own_scales=True, bias_width=4)),
    ((0, 11, 1), Packing("Triton", 1, 64, values=(32, 16), scales=256, own_scales=True, bias_width=4)),
)
FLASHINFER: Final[tuple[tuple[Version, Packing], ...]] = (
    ((0, 27), Packing("FlashInfer", 256, 128, bias_width=4)),
    ((0, 10, 1), Packing("FlashInfer", 256, 256, bias_width=4)),
)
ROCM: Final = Packing("Triton", 256, 256, bias_width=4)
"""Layouts by the first version that has them; Marlin's is that of other cards, versions and adapters [select]."""

WITH_BIASES: Final = frozenset({"gpt_oss"})
"""Families whose activation Triton's and FlashInfer's kernels were written for."""


def packing_of(model: Model, gpu: Gpu, version: Version, *, adapters: bool) -> Packing:
    """The layout of a network's mxfp4 experts.

    Args:
        model: the network
        gpu: the card
        version: of vLLM
        adapters: whether there are slots for them
    """
    if model.family not in WITH_BIASES or adapters:
        return MARLIN
    if gpu.vendor == "AMD":
        return ROCM
    table = TRITON if gpu.sm == HOPPER else FLASHINFER if gpu.sm in BLACKWELL else ()
    return next((packing for since, packing in table if version >= since), MARLIN)
