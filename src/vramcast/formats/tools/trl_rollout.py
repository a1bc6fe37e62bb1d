"""What TRL's arguments say of an engine that generates on the trainer's cards (`use_vllm`, `vllm_mode: colocate`).

[TRL] huggingface/trl 1.9.0 trl/trainer/{grpo,rloo}_config.py, trl/generation/vllm_generation.py; until 0.29 the mode
is "server" where nobody says it (#5255)
"""

from __future__ import annotations

from typing import Any, Final

from vramcast.formats.table import Row, read_options
from vramcast.formats.watched import Watched

ROWS: Final = (
    Row("samples", "num_generations"),
    Row("memory_fraction", "vllm_gpu_memory_utilization", 0.3),
    Row("rollout_tp", "vllm_tensor_parallel_size"),
    Row("context", "vllm_max_model_length"),
    Row("sleep", "vllm_enable_sleep_mode", False),
    Row("epochs", "num_iterations"),
    Row("steps_per_generation", "steps_per_generation"),
    Row("generation_batch_size", "generation_batch_size"),
)

MODES: Final = {"server": False, "colocate": True}
"""`vllm_mode` -> whether the engine is on the trainer's cards."""


def is_colocated(values: Watched, release: str = "") -> bool:
    """Whether an engine generates on the trainer's cards.

    Args:
        release: the last one that has every name of these arguments; "": the newest does
    """
    colocated = values.one_of("vllm_mode", MODES)
    return values.flag("use_vllm") is True and (not release if colocated is None else colocated)


def rollout_of(values: Watched, release: str) -> dict[str, Any]:
    """The options of `vramcast rl` beside those of the trainer; none where no engine is on its cards."""
    if not is_colocated(values, release):
        return {}
    said = read_options(ROWS, values)
    values.only("vllm_model_impl", "vllm")
    entry = values.known.entry("num_generations") if values.known is not None else None
    return {"rollout": "vllm", **({} if entry is None else {"samples": entry.default}), **said}
