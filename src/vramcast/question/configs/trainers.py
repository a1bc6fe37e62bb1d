"""The arguments of Transformers' Trainer and of LLaMA-Factory, and Accelerate's launch configuration.

[HF] transformers training_args.py   [LF] llamafactory hparams   [acc] accelerate commands/config/config_args.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.question.configs.deepspeed import PLACES
from vramcast.question.configs.deepspeed import read as read_deepspeed
from vramcast.question.configs.reading import ELSEWHERE, Config, Reading, Watched, not_read, unknown

OPTIMIZERS: Final = {
    "adamw_torch": ("adamw", "foreach"), "adamw_torch_fused": ("adamw", "fused"), "adamw_hf": ("adamw", "loop"),
    "adamw_8bit": ("adamw-8bit", None), "adamw_bnb_8bit": ("adamw-8bit", None),
    "paged_adamw_8bit": ("adamw-8bit", None), "paged_adamw_32bit": ("adamw", None), "sgd": ("sgd", None),
    "adafactor": ("adafactor", None),
    "lion_32bit": ("lion", None), "adagrad": ("adagrad", None), "rmsprop": ("rmsprop", None),
}

FSDP: Final = {
    "FULL_SHARD": "everything", "SHARD_GRAD_OP": "optimizer+gradients", "NO_SHARD": "nothing",
    "HYBRID_SHARD": "everything", "1": "everything", "2": "optimizer+gradients", "3": "nothing", "4": "everything",
}

HARMLESS: Final = ("model_name_or_path", "stage", "finetuning_type", "lora_rank", "lora_target", "cutoff_len")


def is_trainer(config: Config) -> bool:
    """Whether a table holds the Trainer's arguments."""
    names = ("per_device_train_batch_size", "gradient_checkpointing", "finetuning_type", "num_train_epochs")
    return config.table is not None and any(name in config.table for name in names)


def is_accelerate(config: Config) -> bool:
    """Whether a table is what `accelerate config` writes."""
    return config.table is not None and "distributed_type" in config.table


LENGTHS: Final = ("cutoff_len", "max_length", "max_seq_length", "model_max_length")

BITS: Final = {"4": "nf4-dq", "8": "int8"}

TRAINERS_BATCH: Final = 8
"""per_device_train_batch_size where nobody says it [transformers training_args.py]."""


def read_trainer(config: Config) -> Reading:
    """Arguments of the Trainer, with those that LLaMA-Factory adds."""
    values = Watched(config.table or {})
    factory = "finetuning_type" in values or "cutoff_len" in values
    options: dict[str, Any] = {"engine": "huggingface", **_precision(values), **_optimizer(values)}
    recomputed = values.flag("gradient_checkpointing")
    if recomputed or (factory and not values.flag("disable_gradient_checkpointing")):
        options["recompute"] = "full"
    if values.flag("torch_compile"):
        options["compile"] = True
    if isinstance(values.get("model_name_or_path"), str):
        options["model"] = values["model_name_or_path"]
    lengths = [size for name in LENGTHS if (size := values.count(name)) is not None]
    options |= {"seq-len": lengths[-1]} if lengths else {}
    options |= _adapters(values)
    warnings: list[str] = []
    notes: list[str] = []
    micro, accumulation = values.count("per_device_train_batch_size"), values.count("gradient_accumulation_steps")
    batch = {"micro": micro or TRAINERS_BATCH} | ({"accumulation": accumulation} if accumulation else {})
    if micro is None:
        notes.append(f"per_device_train_batch_size is not given: {TRAINERS_BATCH}, as Transformers has it")
    inner = values.get("deepspeed")
    if isinstance(inner, Mapping):
        found = read_deepspeed(Config(config.name, "", inner))
        options = found.options | options | {"engine": "huggingface"}
        warnings += found.warnings
        notes += found.notes
    elif isinstance(inner, str):
        warnings.append(f"deepspeed: {inner} {ELSEWHERE}")
    if values.get("fsdp"):
        options |= _trainers_fsdp(values)
        warnings.append("fsdp of the Trainer is answered as FSDP2 of torchtitan")
    known = ("llamafactory", "arguments") if factory else ("transformers", "TrainingArguments")
    own = {name: value for name, value in values.items() if factory or name not in (*HARMLESS, "max_seq_length")}
    warnings += [*values.said(), *unknown(*known, own)]
    name = "llama-factory" if factory else "transformers"
    auto = {} if "seq-len" in options else {"seq-len": "says no length of the samples"}
    return Reading(
        name, options, batch, tuple(values), tuple(warnings), (*notes, *not_read(values.unread(HARMLESS))), auto
    )


def _trainers_fsdp(values: Watched) -> dict[str, Any]:
    """The words of `fsdp`: a strategy, and what goes with it."""
    found: dict[str, Any] = {"engine": "torchtitan", "shards": "everything"}
    text = values.get("fsdp")
    for word in text if isinstance(text, list) else str(text).split():
        name = str(word).upper()
        if name in FSDP:
            found["shards"] = FSDP[name]
        elif name == "OFFLOAD":
            found["offload-optimizer"] = "cpu"
        elif name not in ("AUTO_WRAP", "TRUE"):
            values.refuse("fsdp", word, f"one of {', '.join(FSDP).lower()}, offload, auto_wrap")
    return found


def _precision(values: Watched) -> dict[str, Any]:
    if values.flag("pure_bf16"):
        return {"precision": "bf16"}
    for name, precision in (("bf16", "amp-bf16"), ("fp16", "amp-fp16")):
        if values.flag(name):
            return {"precision": precision}
    return {} if values.auto else {"precision": "tf32" if values.flag("tf32") else "fp32"}


def _optimizer(values: Watched) -> dict[str, Any]:
    name = values.get("optim")
    if not isinstance(name, str):
        return {}
    optimizer, kernel = OPTIMIZERS.get(name, (name.replace("_", "-"), None))
    return {"optimizer": optimizer} | ({"optimizer-kernel": kernel} if kernel else {})


def _adapters(values: Watched) -> dict[str, Any]:
    kind = values.get("finetuning_type")
    if kind != "lora":
        if kind not in (None, "full"):
            values.warnings.append(f"finetuning_type: {str(kind)[:40]} is not modelled; answered as full training")
        return {}
    found: dict[str, Any] = {"peft": "dora" if values.flag("use_dora") else "lora", "lora-rank": 8}
    if (rank := values.count("lora_rank")) is not None:
        found["lora-rank"] = rank
    targets = values.get("lora_target", "all")
    found["lora-targets"] = tuple(map(str, targets)) if isinstance(targets, list) else str(targets)
    bits = values.one_of("quantization_bit", BITS)
    return found | ({"base-weights": bits} if bits else {})


MIXED: Final = {"bf16": "amp-bf16", "fp16": "amp-fp16", "fp8": "fp8", "no": "fp32"}

KINDS: Final = ("FSDP", "DEEPSPEED", "NO", "MULTI_GPU", "MULTI_CPU")


def read_accelerate(config: Config) -> Reading:
    """Launch configuration: how ranks share the work."""
    values = Watched(config.table or {})
    kind = str(values.get("distributed_type", "NO")).upper()
    if kind not in KINDS:
        values.refuse("distributed_type", kind, f"one of {', '.join(KINDS)}; answered as one process a card")
    # YAML reads the word no as false
    mixed = "fp32" if values.get("mixed_precision") is False else values.one_of("mixed_precision", MIXED)
    options: dict[str, Any] = {"precision": mixed} if mixed else {}
    warnings = list(unknown("accelerate", "config", values))
    batch: dict[str, int] = {}
    fsdp, zero = values.section("fsdp_config"), values.section("deepspeed_config")
    if kind == "FSDP":
        options |= _fsdp(fsdp)
        warnings += unknown("accelerate", "fsdp_config", fsdp)
    elif kind == "DEEPSPEED":
        options |= _zero(zero)
        if options.get("precision", "").startswith("amp-"):
            options["precision"] = options["precision"].replace("amp-", "mixed-")
        if "deepspeed_config_file" in zero:
            warnings.append(f"deepspeed_config_file: {zero['deepspeed_config_file']} {ELSEWHERE}")
            options = {name: value for name, value in options.items() if name not in ("zero", "precision")}
        if (accumulation := zero.count("gradient_accumulation_steps")) is not None:
            batch["accumulation"] = accumulation
        warnings += unknown("accelerate", "deepspeed_config", zero)
    else:
        options["engine"] = "pytorch"
    return Reading(
        "accelerate", options, batch, tuple(values), (*warnings, *values.said()), not_read(values.unread())
    )


def _zero(zero: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {"engine": "deepspeed", "zero": str(zero.get("zero_stage", 2))}
    for name, option in (
        ("offload_optimizer_device", "offload-optimizer"), ("offload_param_device", "offload-parameters"),
    ):
        if (place := zero.one_of(name, PLACES)) is not None:
            found[option] = place
    return found


def _fsdp(fsdp: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {}
    strategy = str(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
    reshards = fsdp.get("fsdp_reshard_after_forward")
    if isinstance(reshards, str) and reshards.upper() in FSDP:  # newer files of FSDP 1 name the strategy here
        strategy = reshards.upper()
    elif fsdp.flag("fsdp_reshard_after_forward") is False:
        found["reshard-after-forward"] = False
    if strategy not in FSDP:
        fsdp.refuse("fsdp_sharding_strategy", strategy, f"one of {', '.join(FSDP)}; answered as FULL_SHARD")
    found |= {"engine": "torchtitan", "shards": FSDP.get(strategy, "everything")}
    if fsdp.flag("fsdp_offload_params"):
        found["offload-optimizer"] = "cpu"
    if fsdp.flag("fsdp_activation_checkpointing"):
        found["recompute"] = "full"
    return found
