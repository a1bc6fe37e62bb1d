"""Which cards an engine runs on, and which formats of weights it has kernels for there.

[vllm] docs.vllm.ai getting_started/installation/gpu: v0.14 asks for compute capability 7.0, v0.31 for 7.5; AMD gfx90a,
gfx942, gfx950, gfx110x.   [formats] docs.vllm.ai v0.9.2 features/quantization/supported_hardware: INT8 and AWQ from
Turing, FP8 and 4-bit floats by Marlin from Ampere, GPTQ from Volta.
[trt] nvidia.github.io/TensorRT-LLM 0.18.2 reference/support-matrix: SM80 and later.
[sglang] docs.sglang.ai start/install: SM75 and later, AMD Instinct.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.serving import Version

INSTINCT: Final = ("gfx90a", "gfx942", "gfx950")
RADEON: Final = ("gfx1100", "gfx1101", "gfx1200", "gfx1201")


class Support(NamedTuple):
    """Cards that one range of versions of an engine runs on."""

    since: Version
    oldest_sm: int  # compute capability x 10 of NVIDIA's cards
    amd: tuple[str, ...] = ()
    others: bool = False  # cards of other vendors too


SUPPORT: Final[dict[str, tuple[Support, ...]]] = {
    "vllm": (Support((0, 31), 75, INSTINCT + RADEON), Support((0,), 70, INSTINCT + RADEON)),
    "sglang": (Support((0,), 75, INSTINCT),),
    "tensorrt-llm": (Support((0, 18), 80), Support((0,), 70)),
    "llama.cpp": (Support((0,), 50, INSTINCT + RADEON, others=True),),
    "ik_llama.cpp": (Support((0,), 50, INSTINCT + RADEON, others=True),),
    "transformers": (Support((0,), 50, INSTINCT + RADEON),),
}
"""Engine -> versions, newest first."""

FORMAT_SM: Final[tuple[tuple[str, int], ...]] = (
    ("fp8", 80), ("nvfp4", 80), ("mxfp4", 80), ("int8", 75), ("awq", 75), ("int4", 75),
)
"""Beginning of a format's name -> oldest compute capability x 10 with a kernel [formats]."""


def runs_on(engine: str, version: Version, gpu: Gpu) -> bool:
    """Whether an engine runs on a card at all."""
    support = next((row for row in SUPPORT.get(engine, ()) if version >= row.since), None)
    if support is None:
        return True
    if gpu.vendor == "NVIDIA":
        return (gpu.sm or 0) >= support.oldest_sm
    if gpu.vendor == "AMD":
        return gpu.compute_capability in support.amd
    return support.others


def has_kernel(stored: str, gpu: Gpu) -> bool:
    """Whether products with weights of that format run on a card; only NVIDIA's generations are known to differ."""
    oldest = next((sm for prefix, sm in FORMAT_SM if stored.startswith(prefix)), 0)
    return gpu.sm is None or gpu.sm >= oldest


def dtype_on(gpu: Gpu, dtype: str) -> str:
    """The dtype a model of that dtype runs in on a card."""
    return "fp16" if dtype == "bf16" and not gpu.has_bf16 else dtype
