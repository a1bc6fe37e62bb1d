"""Which cards bitsandbytes has kernels for.

[bnb] bitsandbytes 0.50.2 backends/: kernels of its own for CUDA, ROCm, XPU and HPU; other devices go through PyTorch.
[vllm] platforms/rocm.py `supported_quantization` has bitsandbytes from 0.12 on
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.device import Gpu
from vramcast.domain.version import Version
from vramcast.errors import Unsupported

NO_BITSANDBYTES: Final = ("Huawei", "Moore Threads")
"""Vendors whose cards bitsandbytes has no kernels for [bnb]."""

ROCM_BITSANDBYTES_SINCE: Final[Version] = (0, 12)
"""vLLM on AMD's cards [vllm]."""


def has_bitsandbytes(gpu: Gpu, engine: str = "", version: Version = ()) -> bool:
    """Whether bitsandbytes has kernels of its own for a card, and an engine takes it there."""
    refused = engine == "vllm" and gpu.vendor == "AMD" and version < ROCM_BITSANDBYTES_SINCE
    return gpu.vendor not in NO_BITSANDBYTES and not refused


def refuse_bitsandbytes(stored: str, gpu: Gpu, engine: str = "", version: Version = ()) -> None:
    """Raise Unsupported for what bitsandbytes would store on a card that it has no kernels for."""
    if not has_bitsandbytes(gpu, engine, version):
        raise Unsupported(
            f"{stored} is bitsandbytes', which has no kernels for {gpu.vendor}'s {gpu.name} here; use another format, "
            "or NVIDIA's cards"
        )
