"""Which cards an engine runs on, and which formats of weights and caches it has kernels for there.

[vllm] docs.vllm.ai getting_started/installation/gpu: v0.14 asks for compute capability 7.0, v0.31 for 7.5; AMD gfx90a,
gfx942, gfx950, gfx110x.   [formats] vllm model_executor/layers/quantization `get_min_capability` in the wheels 0.6.6,
0.11.0 to 0.14.0 and 0.19.0: Marlin reads compressed-tensors on Turing from 0.12 on, FP8 and 4-bit floats from 0.14 on;
platforms/rocm.py `supported_quantization` has bitsandbytes from 0.12 on.
[caches] vllm v1/attention/backends/flashinfer.py and triton_attn.py at 0.19.0: below 7.5 only Triton is left, which
cannot compile e4m3 there.
[trt] nvidia.github.io/TensorRT-LLM 0.18.2 and 1.x reference/support-matrix: SM80 and later, FP8 from Ada, FP4 from
Blackwell.
[sglang] docs.sglang.ai start/install: SM75 and later, AMD Instinct; srt/layers/quantization `get_min_capability` at
0.5.9.   [transformers] quantizers/quantizer_finegrained_fp8.py and quantizer_mxfp4.py `validate_environment` at 4.57:
older cards are refused or read the weights back into 16 bits; flash-attn 2 is written for Ampere and later.
[bnb] bitsandbytes 0.50.2 backends/: kernels of its own for CUDA, ROCm, XPU and HPU; other devices go through PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.serving import PipelineJob, ServeJob, Version
from vramcast.domain.version import named
from vramcast.errors import Unsupported
from vramcast.states.storage import BITSANDBYTES

INSTINCT: Final = ("gfx90a", "gfx942", "gfx950")
RADEON: Final = ("gfx1100", "gfx1101", "gfx1200", "gfx1201")


class Support(NamedTuple):
    """Cards that one range of versions of an engine runs on."""

    since: Version
    oldest_sm: int  # compute capability x 10 of NVIDIA's cards
    amd: tuple[str, ...] = ()
    others: bool = False  # cards of other vendors too
    ported: bool = False  # other vendors have builds or plugins of theirs


SUPPORT: Final[dict[str, tuple[Support, ...]]] = {
    "vllm": (
        Support((0, 31), 75, INSTINCT + RADEON, ported=True), Support((0,), 70, INSTINCT + RADEON, ported=True),
    ),
    "sglang": (Support((0,), 75, INSTINCT, ported=True),),
    "tensorrt-llm": (Support((0, 18), 80), Support((0,), 70)),
    "llama.cpp": (Support((0,), 50, INSTINCT + RADEON, others=True),),
    "ik_llama.cpp": (Support((0,), 50, INSTINCT + RADEON, others=True),),
    "transformers": (Support((0,), 50, INSTINCT + RADEON, ported=True),),
}
"""Engine -> versions, newest first."""

_MARLIN: Final = {"int8-bnb": 70, "int8": 75, "awq": 75, "nf4": 70, "gptq": 60}

FORMAT_SM: Final[dict[str, tuple[tuple[Version, Mapping[str, int]], ...]]] = {
    "vllm": (
        ((0, 14), _MARLIN | {"fp8": 75, "nvfp4": 75, "mxfp4": 80, "int4": 75}),
        ((0, 12), _MARLIN | {"fp8": 80, "nvfp4": 80, "mxfp4": 80, "int4": 75}),
        ((0,), _MARLIN | {"fp8": 80, "nvfp4": 80, "mxfp4": 80, "int4": 80}),
    ),
    "sglang": (((0,), _MARLIN | {"fp8": 80, "nvfp4": 100, "mxfp4": 80, "int4": 80}),),
    "tensorrt-llm": (((0,), {"fp8": 89, "nvfp4": 100}),),
    "transformers": (((0,), {"fp8": 89, "mxfp4": 75, "awq": 75}),),
}
"""Engine -> since a version: beginning of a format's name -> oldest compute capability x 10 with a kernel [formats]."""

CACHE_SM: Final[dict[str, tuple[tuple[Version, Mapping[str, int]], ...]]] = {
    "vllm": (((0, 8), {"fp8": 75}), ((0,), {})),
    "tensorrt-llm": (((0,), {"fp8": 89, "nvfp4": 100}),),
}
"""The same of formats of the cache [caches, trt]."""

NO_BITSANDBYTES: Final = ("Huawei", "Moore Threads")
"""Vendors whose cards bitsandbytes has no kernels for [bnb]."""

ROCM_BITSANDBYTES_SINCE: Final[Version] = (0, 12)
"""vLLM on AMD's cards [formats]."""

FLASH_SM: Final = 80
"""flash-attn 2."""


def support_of(engine: str, version: Version) -> Support | None:
    """What a version runs on; None where nothing is known to limit it."""
    return next((row for row in SUPPORT.get(engine, ()) if version >= row.since), None)


def runs_on(engine: str, version: Version, gpu: Gpu) -> bool:
    """Whether an engine runs on a card at all, its own releases that is."""
    support = support_of(engine, version)
    if support is None:
        return True
    if gpu.vendor == "NVIDIA":
        return (gpu.sm or 0) >= support.oldest_sm
    if gpu.vendor == "AMD":
        return gpu.compute_capability in support.amd
    return support.others


def is_ported(engine: str, version: Version, gpu: Gpu) -> bool:
    """Whether it is the vendor of a card that makes an engine run there."""
    support = support_of(engine, version)
    return support is not None and support.ported and gpu.vendor not in ("NVIDIA", "AMD")


def has_kernel(stored: str, gpu: Gpu, engine: str, version: Version) -> bool:
    """Whether products with weights of that format run on a card; of others than NVIDIA's, bitsandbytes is known of."""
    if stored in BITSANDBYTES and not has_bitsandbytes(gpu, engine, version):
        return False
    return gpu.sm is None or gpu.sm >= _oldest(FORMAT_SM, stored, engine, version)


def has_bitsandbytes(gpu: Gpu, engine: str = "", version: Version = ()) -> bool:
    """Whether bitsandbytes has kernels of its own for a card, and an engine takes it there."""
    refused = engine == "vllm" and gpu.vendor == "AMD" and version < ROCM_BITSANDBYTES_SINCE
    return gpu.vendor not in NO_BITSANDBYTES and not refused


def _oldest(
    table: Mapping[str, tuple[tuple[Version, Mapping[str, int]], ...]], stored: str, engine: str, version: Version
) -> int:
    rows = next((row for since, row in table.get(engine, ()) if version >= since), {})
    return next((sm for prefix, sm in rows.items() if stored.startswith(prefix)), 0)


def dtype_on(gpu: Gpu, dtype: str) -> str:
    """The dtype a model of that dtype runs in on a card."""
    return "fp16" if dtype == "bf16" and not gpu.has_bf16 else dtype


def refuse_card(job: ServeJob) -> None:
    """Raise Unsupported for a card that the engine does not run on, or on which it has no kernels for the plan."""
    gpu, plan, engine = job.cluster.gpu, job.plan, job.engine
    if not runs_on(engine, job.version, gpu) and not is_ported(engine, job.version, gpu):
        raise Unsupported(f"{named(engine, job.version)} does not run on {gpu.name}; {_instead(job)}")
    stored = plan.weights or job.model.quantisation or ""
    if stored in BITSANDBYTES:
        refuse_bitsandbytes(stored, gpu, engine, job.version)
    for option, value, table in (("weights", stored, FORMAT_SM), ("kv-dtype", plan.kv_dtype, CACHE_SM)):
        oldest = _oldest(table, value, engine, job.version)
        if gpu.sm is not None and gpu.sm < oldest:
            raise Unsupported(
                f"{option}={value} needs compute capability {_dotted(oldest)} under {named(engine, job.version)}, and "
                f"{gpu.name} has {gpu.compute_capability}; use a newer card or another format"
            )
    if engine == "vllm" and plan.dtype == "bf16" and gpu.sm is not None and not gpu.has_bf16:
        raise Unsupported(f"vllm refuses dtype=bf16 on {gpu.name}, which has no bf16; use --dtype fp16")
    if engine == "transformers" and plan.attention == "flash" and gpu.sm is not None and gpu.sm < FLASH_SM:
        raise Unsupported(
            f"attention=flash needs compute capability {_dotted(FLASH_SM)}, and {gpu.name} has "
            f"{gpu.compute_capability}; use sdpa"
        )


def refuse_bitsandbytes(stored: str, gpu: Gpu, engine: str = "", version: Version = ()) -> None:
    """Raise Unsupported for what bitsandbytes would store on a card that it has no kernels for."""
    if not has_bitsandbytes(gpu, engine, version):
        raise Unsupported(
            f"{stored} is bitsandbytes', which has no kernels for {gpu.vendor}'s {gpu.name} here; use another format, "
            "or NVIDIA's cards"
        )


def refuse_pipeline_card(job: PipelineJob) -> None:
    """The same of a diffusion pipeline."""
    if job.plan.weights in BITSANDBYTES:
        refuse_bitsandbytes(job.plan.weights, job.cluster.gpu)


def ported_caution(job: ServeJob) -> str | None:
    """What is to be said where a card's vendor makes the engine run."""
    gpu = job.cluster.gpu
    if not is_ported(job.engine, job.version, gpu):
        return None
    return f"{job.engine} runs on {gpu.name} in {gpu.vendor}'s own build: memory is that of its CUDA build"


def _instead(job: ServeJob) -> str:
    gpu = job.cluster.gpu
    others = [name for name, rows in SUPPORT.items() if runs_on(name, rows[0].since, gpu)]
    return f"use --engine {' or '.join(others)}" if others else "use another card"


def _dotted(sm: int) -> str:
    """As NVIDIA writes a compute capability.

    >>> _dotted(75), _dotted(100)
    ('7.5', '10.0')
    """
    return f"{sm // 10}.{sm % 10}"

