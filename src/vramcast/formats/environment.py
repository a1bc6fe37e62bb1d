"""Variables of the environment that a script sets: those that frameworks read and that may change memory or time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.catalogue.formats import harmless
from vramcast.formats.reading import NO_GPU, OF_AMD, TIME_ALONE, Unread
from vramcast.formats.watched import is_unset

READ_BY_FRAMEWORKS: Final = ("NVTE_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "NCCL_", "CUDA_", "CUBLAS_", "VLLM_",
                             "SGLANG_", "SGL_", "TRTLLM_", "TLLM_", "LLAMA_ARG_", "GGML_", "OLLAMA_")
"""How their names begin."""

READ_ON_AMD: Final = ("VLLM_ROCM_", "VLLM_USE_TRITON_FLASH_ATTN", "SGLANG_ROCM_", "SGLANG_USE_AITER")
"""Those that ROCm alone reads [vllm _aiter_ops.py, 0.9.1 attention/backends/{rocm_flash_attn,mla/common}.py; sglang
srt/layers/attention/vision.py `_use_aiter`]."""

READ_ON_ASCEND: Final = "ASCEND_RT_VISIBLE_DEVICES"
"""The cards of Ascend that a process sees: who sets it runs on those."""

PACE: Final = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IGNORE_DISABLED_P2P",
               "VLLM_TUNED_CONFIG_FOLDER")
"""Which way NCCL sends what it sends [NCCL 2.28 src/transport/] and by which tiles kernels work [vllm 0.33.0
model_executor/layers/fused_moe/fused_moe.py `get_moe_configs`]: the same buffers, at another speed."""

KERNELS: Final = "VLLM_ATTENTION_BACKEND"

ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def options_of_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Options of `train` that variables give: the allocator's settings."""
    found = next((value for name in ALLOCATOR if (value := variables.get(name)) and not is_unset(value)), None)
    return {} if found is None else {"alloc-conf": found}


def ranks_of(gpus: int | None, nodes: int | None, variables: Mapping[str, str]) -> int | None:
    """Processes that a launcher starts: as many as it says on each machine, or one for each card that it may see."""
    seen = variables.get("CUDA_VISIBLE_DEVICES", "")
    cards = len(seen.split(",")) if seen and not is_unset(seen) else None
    each = min((count for count in (gpus, cards) if count), default=None)
    return each and each * (nodes or 1)


def unread_by_engines(variables: Mapping[str, str]) -> Iterator[Unread]:
    """Whose kernels attend in an engine beside a trainer, where they take scratch that nobody asked them for."""
    if variables.get(KERNELS, "").upper().startswith("FLASHINFER"):
        yield Unread(f"${KERNELS}")


def unread_environment(variables: Mapping[str, str], *, allocator: bool = True) -> Iterator[Unread]:
    """Variables that may change the answer, one each.

    Args:
        variables: names and values
        allocator: whether the allocator's settings are read
    """
    known = harmless("environment", "variables")
    for name, value in variables.items():
        if name == READ_ON_ASCEND and value:
            yield Unread(f"${name}", NO_GPU)
        read = allocator and name in ALLOCATOR and not is_unset(value)
        if not name.startswith(READ_BY_FRAMEWORKS) or not value or read:
            continue
        if name not in known and f"{name}={value}" not in known:
            if name in PACE:
                yield Unread(f"${name}", TIME_ALONE)
                continue
            elsewhere = name == "VLLM_TARGET_DEVICE" and value.lower() not in ("cuda", "rocm")
            about = OF_AMD if name.startswith(READ_ON_AMD) else ""
            yield Unread(f"${name}", NO_GPU) if elsewhere else Unread(f"${name}", about=about)
