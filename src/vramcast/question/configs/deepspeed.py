"""DeepSpeed's JSON [deepspeed runtime/config.py, runtime/zero/config.py]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.question.configs.reading import Config, Reading, Unread
from vramcast.question.configs.watched import Known, Watched

CONFIG: Final = Known("deepspeed", "config")
ZERO: Final = Known("deepspeed", "zero_optimization")

OPTIMIZERS: Final = {
    "AdamW": "adamw", "Adam": "adam", "FusedAdam": "adamw", "DeepSpeedCPUAdam": "adamw", "Lion": "lion",
    "Lamb": "lamb", "Adagrad": "adagrad", "Muon": "muon", "SGD": "sgd",
}
"""`type` as DeepSpeed's documents write it -> ours; any case is taken. Its Adam is AdamW unless `adam_w_mode` is false
[deepspeed runtime/engine.py `_configure_basic_optimizer`]."""

BUFFERS: Final = (
    "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "sub_group_size",
    "stage3_max_reuse_distance",
)
"""Sizes of `zero_optimization` that matter for memory [elements]; "auto" leaves them to the Trainer."""

OF_STAGE_3: Final = ("stage3_", "sub_group_size", "memory_efficient_linear", "zero_hpz_", "zero_quantized_w",
                     "zero_quantized_n", "leaf_module")
"""How names of `zero_optimization` begin that say nothing below stage 3 [deepspeed runtime/zero/stage3.py]."""

SWITCHED: Final = (
    "autotuning", "data_efficiency", "flops_profiler", "hybrid_engine", "torch_autocast", "weight_quantization", "amp",
    "compression_training", "curriculum_learning", "eigenvalue", "elasticity", "nebula", "progressive_layer_drop",
    "quantize_training", "sparse_attention", "zenflow", "compile",
)
"""Tables that say nothing where their "enabled" is false."""


def is_deepspeed(config: Config) -> bool:
    """Whether a table is DeepSpeed's."""
    names = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
    return config.table is not None and any(name in config.table for name in names)


PARAMS: Final = Known("deepspeed", "optimizer_params")

BATCH: Final = {
    "global": "train_batch_size", "micro": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
}

PLACES: Final = {"cpu": "cpu", "nvme": "nvme", "none": None}

OFFLOADED: Final = {"offload_optimizer": "offload-optimizer", "offload_param": "offload-parameters"}
"""Table of `zero_optimization` -> the option of what waits off the GPU."""

WIDTHS: Final = {"bf16": "mixed-bf16", "fp16": "mixed-fp16"}
"""Table of a width of 16 bits -> the recipe, with an fp32 copy unless that is narrow too."""

FILLED_IN: Final = "is auto, which the Trainer fills in; give its arguments with another --from, or {options}"


def read(config: Config) -> Reading:
    """The options of the file."""
    values = Watched(_by_full_names(config.table or {}), CONFIG)
    zero = values.section("zero_optimization", ZERO)
    precision = _precision(values)
    options: dict[str, Any] = {"engine": "deepspeed"} | _stage(zero) | _offload(zero)
    open_precision = not {"bf16", "fp16", "bfloat16"} & set(config.table or {})
    options |= {} if open_precision else precision
    options |= _optimizer(values) | _buffers(values, zero)
    batch = {kind: size for kind, name in BATCH.items() if (size := values.count(name)) is not None}
    values.section("activation_checkpointing")  # each of its names takes memory where the model uses it
    switched(values)
    if not batch and not values.left_open():
        values.cannot(BATCH["micro"], "is not given, nor is train_batch_size; add one, or --micro-batch",
                      option="micro-batch")
    open_ = _auto(values)
    weak = {"grad-accum": 1} if BATCH["accumulation"] in values.left_open() else {}  # as Transformers has it
    weak |= precision if open_precision else {}  # Accelerate puts in what its own file or the Trainer's says
    return Reading(
        "deepspeed", options, weak, batch, (*values.unread(), *open_),
    )


def _by_full_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Names of stage 3 with what stands before them, which DeepSpeed takes either way."""
    zero = given.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return dict(given)
    full = {name: f"stage3_{name}" for name in zero
            if ZERO.entry(name) is None and ZERO.entry(f"stage3_{name}") is not None}
    return {**given, "zero_optimization": {full.get(name, name): value for name, value in zero.items()}}


def _stage(zero: Watched) -> dict[str, Any]:
    stage = zero.get("stage", 0)
    if str(stage) not in ("0", "1", "2", "3"):
        zero.refuse("stage", "0, 1, 2 or 3", option="zero")
        return {}
    if int(stage) == 0:  # states that no rank shares, without the buffers of stage 1
        zero.cannot("stage", "0 is not modelled; --zero 1, 2 and 3 are", option="zero")
    if int(stage) < 3:
        for name in zero:
            if name.startswith(OF_STAGE_3):
                zero.get(name)
    return {"zero": str(stage)}


def _optimizer(values: Watched) -> dict[str, Any]:
    section = values.section("optimizer", Known("deepspeed", "optimizer"))
    known = {name.lower(): optimizer for name, optimizer in OPTIMIZERS.items()}
    named = section.one_of("type", known, lower=True, option="optimizer")
    params = section.section("params", PARAMS)
    for name in ("torch_adam", "amsgrad"):  # PyTorch's own step takes lists of tensors beside the states
        params.only(name, False)
    if named == "adam" and params.flag("adam_w_mode") is not False:
        named = "adamw"
    return {"optimizer": named} if named else {}


def _buffers(values: Watched, zero: Watched) -> dict[str, Any]:
    """Sizes and switches that the engine takes."""
    sizes = [f"{name}={size}" for name in BUFFERS if (size := zero.whole(name)) is not None]
    sizes += [f"{name}=auto" for name in BUFFERS if name in zero.auto]
    if (overlaps := zero.flag("overlap_comm")) is not None:
        sizes.append(f"overlap_comm={str(overlaps).lower()}")
    widths = values.section("data_types")
    if widths.get("grad_accum_dtype") == "fp32":
        sizes.append("grad_accum_dtype=fp32")
    elif "grad_accum_dtype" in widths and widths.get("grad_accum_dtype") != "auto":
        widths.refuse("grad_accum_dtype", "fp32")
    return {"engine-option": tuple(sizes)} if sizes else {}


def switched(values: Watched) -> None:
    """Tables that are switched off say nothing."""
    for name in SWITCHED:
        inner = dict.get(values, name)
        if isinstance(inner, Mapping) and inner.get("enabled", None) is False:
            values.get(name)


def _auto(values: Watched) -> Iterator[Unread]:
    """What only the Trainer knows, and what gives it instead."""
    left = values.left_open()
    found = [(BATCH["micro"], "micro-batch")] if BATCH["micro"] in left else []
    found += [(name, "precision") for name in ("bf16.enabled", "fp16.enabled") if name in left][:1]
    options = " and ".join(f"--{option}" for _, option in found)
    for name, option in found:
        yield Unread(name, FILLED_IN.format(options=options), option)


def _offload(zero: Watched) -> dict[str, Any]:
    found = {}
    for name, option in OFFLOADED.items():
        section = zero.section(name, Known("deepspeed", name))
        device = section.one_of("device", PLACES, option=option)
        if device is None:
            for inner in section:
                section.get(inner)  # of a device that is none
        else:
            found[option] = device
    if zero.flag("cpu_offload"):
        found["offload-optimizer"] = "cpu"
    return found


def _precision(values: Watched) -> dict[str, Any]:
    """bf16 and fp16 keep an fp32 copy, unless masters are narrow, too; with neither DeepSpeed runs in fp32; "auto" is
    the Trainer's."""
    open_, found = False, ""
    values |= {"bf16": values.get("bfloat16")} if "bfloat16" in values and "bf16" not in values else {}
    for name, precision in WIDTHS.items():
        section = values.section(name, Known("deepspeed", name))
        if section.flag("enabled"):
            found = found or (name if _narrow(section, name) else precision)
        elif not section.auto:
            for inner in section:
                section.get(inner)  # switched off
        open_ = open_ or bool(section.auto)
    return {"precision": found} if found else {} if open_ else {"precision": "fp32"}


def _narrow(section: Watched, name: str) -> bool:
    """Whether masters, gradients and states have 16 bits [deepspeed runtime/precision_config.py]."""
    if not section.flag(f"{name}_master_weights_and_grads"):
        section.get("bf16_optimizer_states")
        return False
    if name == "bf16" and not section.flag("bf16_optimizer_states"):
        section.cannot("bf16_master_weights_and_grads", "without bf16_optimizer_states is not modelled",
                       option="precision")
    return True


def under_the_trainer(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of DeepSpeed's file where Transformers' Trainer runs it: sizes are as the file has them."""
    pairs = (*options.get("engine-option", ()), "auto=false")
    return {**options, "engine": "huggingface", "sharded-by": "deepspeed", "engine-option": pairs}
