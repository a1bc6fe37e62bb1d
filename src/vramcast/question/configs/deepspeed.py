"""DeepSpeed's JSON [deepspeed runtime/config.py, runtime/zero/config.py]."""

from __future__ import annotations

from typing import Any, Final

from vramcast.question.configs.reading import Config, Reading, Watched, not_read, table, unknown

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


BATCH: Final = {
    "global": "train_batch_size", "micro": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
}

PLACES: Final = {"cpu": "cpu", "nvme": "nvme", "none": None}

OPTION_OF: Final = {"micro": "micro-batch", "accumulation": "grad-accum"}


def read(config: Config) -> Reading:
    """The options of the file."""
    values = Watched(config.table or {})
    zero = values.section("zero_optimization")
    options: dict[str, Any] = {"engine": "deepspeed", "zero": str(zero.get("stage", 0))}
    options |= _offload(zero) | _precision(values)
    named = values.section("optimizer").get("type")
    if named is not None:
        options["optimizer"] = OPTIMIZERS.get(str(named).lower(), str(named).lower())
    sizes = [f"{name}={size}" for name in BUFFERS if (size := zero.count(name)) is not None]
    if (overlaps := zero.flag("overlap_comm")) is not None:
        sizes.append(f"overlap_comm={str(overlaps).lower()}")
    if sizes:
        options["engine-option"] = tuple(sizes)
    batch = {kind: size for kind, name in BATCH.items() if (size := values.count(name)) is not None}
    checkpointing = values.section("activation_checkpointing")
    warnings = [*unknown("deepspeed", "config", values), *values.said()]
    for section in SECTIONS:
        warnings += unknown("deepspeed", section, table(values.get(section)))
    if checkpointing:
        warnings.append("activation_checkpointing only sets how DeepSpeed's own checkpointing runs; give --recompute "
                        "full where the model uses it")
    auto = _auto(values)
    return Reading("deepspeed", options, batch, tuple(values), tuple(warnings), not_read(values.unread()), auto)


def _auto(values: Watched) -> dict[str, str]:
    """What the Trainer fills in, and sizes that nobody says."""
    said = "says {} is auto, which the Trainer fills in"
    left = values.left_open()
    found = {option: said.format(name) for kind, option in OPTION_OF.items() if (name := BATCH[kind]) in left}
    if not any(name in values for name in BATCH.values()):
        found["micro-batch"] = f"has no {BATCH['micro']}"
    return found | {
        option: said.format(name) for name, option in (
            ("bf16.enabled", "precision"), ("fp16.enabled", "precision"),
        ) if name in left
    } | {f"engine-option {name.partition('.')[2]}": said.format(name) for name in left if name.startswith("zero_")}


def _offload(zero: Watched) -> dict[str, Any]:
    found = {}
    for name, option in (("offload_optimizer", "offload-optimizer"), ("offload_param", "offload-parameters")):
        device = zero.section(name).one_of("device", PLACES)
        if device is not None:
            found[option] = device
    if zero.flag("cpu_offload"):
        found["offload-optimizer"] = "cpu"
    return found


def _precision(values: Watched) -> dict[str, Any]:
    """bf16 and fp16 keep an fp32 copy; with neither DeepSpeed runs in fp32; "auto" is the Trainer's."""
    open_ = False
    for name, precision in (("bf16", "mixed-bf16"), ("fp16", "mixed-fp16")):
        section = values.section(name)
        if section.flag("enabled"):
            return {"precision": precision}
        open_ = open_ or bool(section.auto)
    return {} if open_ else {"precision": "fp32"}
