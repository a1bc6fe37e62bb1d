"""What TensorRT-LLM chooses where a question leaves it open, by version and card.

[args] NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py `KvCacheConfig`, `BuildConfig`; from 1.0 on the PyTorch
backend is the default, before a TensorRT engine is built
[blocks] tensorrt_llm/_torch/pyexecutor/py_executor_creator.py: blocks of 64 tokens for latent attention on Hopper
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.model import MultiLatentAttention
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.choices import FLAG, Known, typed_options
from vramcast.engines.serving.requests import ALLOW_LONG

PYTORCH_SINCE: Final[Version] = (1, 0)

DEFAULT_FRACTION: Final = 0.9
"""`free_gpu_memory_fraction` [args]."""

DEFAULT_TOKENS: Final = 8192
"""`max_num_tokens` [args]."""

DEFAULT_SEQUENCES: Final = 2048
"""`max_batch_size` [args]."""

PYTORCH_BLOCK: Final = 32
BUILT_BLOCK: Final = 64
OLD_BUILT_BLOCK: Final = 128
"""Tokens of a block: of the PyTorch backend, of builds from 0.9 on, of older ones [args]."""

HOPPER: Final = 90

OPTIONS: Final[dict[str, Known]] = {
    ALLOW_LONG: FLAG,  # TLLM_ALLOW_LONG_MAX_MODEL_LEN
    "max-tokens": Known(int),  # KvCacheConfig.max_tokens
    # KvCacheConfig.max_attention_window as the network has them; else all at full length
    "sliding-windows": Known(bool, about="windows"),
}
"""Engine options and what their values may be."""


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    pytorch: bool  # else a TensorRT engine
    fraction: float
    tokens: int  # of the step that is run before the cache is sized
    sequences: int
    block_tokens: int
    kv_dtype: str  # "auto": as activations
    windows: bool  # sliding windows have blocks of their own
    max_tokens: int | None


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: InvalidSpec or UnknownName for a choice that TensorRT-LLM does not offer
    """
    plan, options = job.plan, typed_options(job, OPTIONS)
    limit = options.get("max-tokens")
    return Settings(
        pytorch=job.version >= PYTORCH_SINCE,
        fraction=plan.memory_fraction or DEFAULT_FRACTION,
        tokens=plan.batched_tokens or DEFAULT_TOKENS,
        sequences=plan.max_sequences or DEFAULT_SEQUENCES,
        block_tokens=plan.block_tokens or _block(job),
        kv_dtype=plan.kv_dtype,
        windows=bool(options.get("sliding-windows", False)),
        max_tokens=None if limit is None else int(limit),
    )


def _block(job: ServeJob) -> int:
    if job.version < PYTORCH_SINCE:
        return BUILT_BLOCK if job.version >= (0, 9) else OLD_BUILT_BLOCK
    latent = any(isinstance(run.layer.mixer, MultiLatentAttention) for run in job.model.main.runs)
    return BUILT_BLOCK if latent and job.cluster.gpu.sm == HOPPER else PYTORCH_BLOCK
