"""DeepSpeed's JSON [deepspeed runtime/config.py, runtime/zero/config.py]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.question.configs.reading import Config, Reading, count, table, unknown

SECTIONS: Final = ("zero_optimization", "bf16", "fp16", "activation_checkpointing")

OPTIMIZERS: Final = {
    "adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "deepspeedcpuadam": "adamw", "lion": "lion",
    "lamb": "lamb", "adagrad": "adagrad", "muon": "muon", "sgd": "sgd",
}

BUFFERS: Final = (
    "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "sub_group_size",
    "stage3_max_reuse_distance",
)
"""Sizes of `zero_optimization` that matter for memory [elements]; "auto" leaves them to the Trainer."""


def is_deepspeed(config: Config) -> bool:
    """Whether a table is DeepSpeed's."""
    names = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
    return config.table is not None and any(name in config.table for name in names)


def read(config: Config) -> Reading:
    """The options of the file."""
    values = config.table or {}
    zero = table(values.get("zero_optimization"))
    options: dict[str, Any] = {"engine": "deepspeed", "zero": str(zero.get("stage", 0))}
    options |= _offload(zero) | _precision(values)
    named = table(values.get("optimizer")).get("type")
    if named is not None:
        options["optimizer"] = OPTIMIZERS.get(str(named).lower(), str(named).lower())
    sizes = [f"{name}={size}" for name in BUFFERS if (size := count(_whole(zero.get(name)))) is not None]
    if zero.get("overlap_comm") is not None:
        sizes.append(f"overlap_comm={str(bool(zero['overlap_comm'])).lower()}")
    if sizes:
        options["engine-option"] = tuple(sizes)
    batch = {
        kind: size for kind, name in (
            ("global", "train_batch_size"), ("micro", "train_micro_batch_size_per_gpu"),
            ("accumulation", "gradient_accumulation_steps"),
        ) if (size := count(values.get(name))) is not None
    }
    warnings = [*unknown("deepspeed", "config", values)]
    for section in SECTIONS:
        warnings += unknown("deepspeed", section, table(values.get(section)))
    if table(values.get("activation_checkpointing")):
        warnings.append("activation_checkpointing only sets how DeepSpeed's own checkpointing runs; give --recompute "
                        "full where the model uses it")
    return Reading("deepspeed", options, batch, tuple(values), tuple(warnings))


def _whole(value: Any) -> Any:
    """5e8 as 500000000."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _offload(zero: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, option in (("offload_optimizer", "offload-optimizer"), ("offload_param", "offload-parameters")):
        device = table(zero.get(name)).get("device")
        if device in ("cpu", "nvme"):
            found[option] = device
    if zero.get("cpu_offload") is True:
        found["offload-optimizer"] = "cpu"
    return found


def _precision(values: Mapping[str, Any]) -> dict[str, Any]:
    """bf16 and fp16 keep an fp32 copy; with neither DeepSpeed runs in fp32; "auto" is the Trainer's."""
    for name, precision in (("bf16", "mixed-bf16"), ("fp16", "mixed-fp16")):
        enabled = table(values.get(name)).get("enabled")
        if enabled is True:
            return {"precision": precision}
        if enabled == "auto":
            return {}
    return {"precision": "fp32"}
