"""The arguments of Transformers' Trainer and of LLaMA-Factory, and Accelerate's launch configuration.

[HF] transformers training_args.py   [LF] llamafactory hparams   [acc] accelerate commands/config/config_args.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.question.configs.deepspeed import read as read_deepspeed
from vramcast.question.configs.reading import ELSEWHERE, Config, Reading, count, table, unknown

OPTIMIZERS: Final = {
    "adamw_torch": ("adamw", "foreach"), "adamw_torch_fused": ("adamw", "fused"), "adamw_hf": ("adamw", "loop"),
    "adamw_8bit": ("adamw-8bit", None), "adamw_bnb_8bit": ("adamw-8bit", None),
    "paged_adamw_8bit": ("adamw-8bit", None), "paged_adamw_32bit": ("adamw", None), "sgd": ("sgd", None),
    "adafactor": ("adafactor", None),
    "lion_32bit": ("lion", None), "adagrad": ("adagrad", None), "rmsprop": ("rmsprop", None),
}

LORA_TARGETS: Final = {
    "q_proj": "attention.q", "k_proj": "attention.k", "v_proj": "attention.v", "o_proj": "attention.o",
    "gate_proj": "mlp.gate", "up_proj": "mlp.up", "down_proj": "mlp.down",
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


def read_trainer(config: Config) -> Reading:
    """Arguments of the Trainer, with those that LLaMA-Factory adds."""
    values = config.table or {}
    factory = "finetuning_type" in values or "cutoff_len" in values
    options: dict[str, Any] = {"engine": "huggingface", **_precision(values), **_optimizer(values)}
    if values.get("gradient_checkpointing") is True or (factory and not values.get("disable_gradient_checkpointing")):
        options["recompute"] = "full"
    if values.get("torch_compile") is True:
        options["compile"] = True
    if isinstance(values.get("model_name_or_path"), str):
        options["model"] = values["model_name_or_path"]
    for name in ("cutoff_len", "max_length", "max_seq_length", "model_max_length"):
        if count(values.get(name)) is not None:
            options["seq-len"] = values[name]
    options |= _adapters(values)
    warnings: list[str] = []
    batch = {
        kind: size for kind, name in (
            ("micro", "per_device_train_batch_size"), ("accumulation", "gradient_accumulation_steps"),
        ) if (size := count(values.get(name))) is not None
    }
    inner = values.get("deepspeed")
    if isinstance(inner, Mapping):
        found = read_deepspeed(Config(config.name, "", inner))
        options = found.options | options | {"engine": "huggingface"}
        warnings += found.warnings
    elif isinstance(inner, str):
        warnings.append(f"deepspeed: {inner} {ELSEWHERE}")
    if values.get("fsdp"):
        named = [FSDP[name.upper()] for name in str(values["fsdp"]).split() if name.upper() in FSDP]
        shards = named[0] if named else "everything"
        options |= {"engine": "torchtitan", "shards": shards}
        warnings.append("fsdp of the Trainer is answered as FSDP2 of torchtitan")
    known = ("llamafactory", "arguments") if factory else ("transformers", "TrainingArguments")
    own = {name: value for name, value in values.items() if factory or name not in (*HARMLESS, "max_seq_length")}
    warnings += unknown(*known, own)
    name = "llama-factory" if factory else "transformers"
    return Reading(name, options, batch, tuple(values), tuple(warnings))


def _precision(values: Mapping[str, Any]) -> dict[str, Any]:
    if values.get("pure_bf16") is True:
        return {"precision": "bf16"}
    for name, precision in (("bf16", "amp-bf16"), ("fp16", "amp-fp16")):
        if values.get(name) is True:
            return {"precision": precision}
    return {"precision": "tf32" if values.get("tf32") is True else "fp32"}


def _optimizer(values: Mapping[str, Any]) -> dict[str, Any]:
    name = values.get("optim")
    if not isinstance(name, str):
        return {}
    optimizer, kernel = OPTIMIZERS.get(name, (name.replace("_", "-"), None))
    return {"optimizer": optimizer} | ({"optimizer-kernel": kernel} if kernel else {})


def _adapters(values: Mapping[str, Any]) -> dict[str, Any]:
    if values.get("finetuning_type") != "lora":
        return {}
    found: dict[str, Any] = {"peft": "dora" if values.get("use_dora") is True else "lora", "lora-rank": 8}
    if count(values.get("lora_rank")) is not None:
        found["lora-rank"] = values["lora_rank"]
    targets = values.get("lora_target", "all")
    listed = targets if isinstance(targets, list) else str(targets).split(",")
    named = [LORA_TARGETS[name.strip()] for name in map(str, listed) if name.strip() in LORA_TARGETS]
    found["lora-targets"] = ",".join(named or LORA_TARGETS.values())
    bits = {4: "nf4-dq", 8: "int8"}.get(values.get("quantization_bit"))  # type: ignore[arg-type]
    return found | ({"base-weights": bits} if bits else {})


def read_accelerate(config: Config) -> Reading:
    """Launch configuration: how ranks share the work."""
    values = config.table or {}
    kind = str(values.get("distributed_type", "NO")).upper()
    mixed = {"bf16": "amp-bf16", "fp16": "amp-fp16", "fp8": "fp8", "no": "fp32"}.get(str(values.get("mixed_precision")))
    options: dict[str, Any] = {"precision": mixed} if mixed else {}
    warnings = list(unknown("accelerate", "config", values))
    batch: dict[str, int] = {}
    fsdp, zero = table(values.get("fsdp_config")), table(values.get("deepspeed_config"))
    if kind == "FSDP":
        options |= _fsdp(fsdp)
        warnings += unknown("accelerate", "fsdp_config", fsdp)
    elif kind == "DEEPSPEED":
        options |= {"engine": "deepspeed", "zero": str(zero.get("zero_stage", 2))}
        for name, option in (
            ("offload_optimizer_device", "offload-optimizer"), ("offload_param_device", "offload-parameters"),
        ):
            if zero.get(name) in ("cpu", "nvme"):
                options[option] = zero[name]
        if options.get("precision", "").startswith("amp-"):
            options["precision"] = options["precision"].replace("amp-", "mixed-")
        if "deepspeed_config_file" in zero:
            warnings.append(f"deepspeed_config_file: {zero['deepspeed_config_file']} {ELSEWHERE}")
            options = {name: value for name, value in options.items() if name not in ("zero", "precision")}
        if count(zero.get("gradient_accumulation_steps")) is not None:
            batch["accumulation"] = zero["gradient_accumulation_steps"]
        warnings += unknown("accelerate", "deepspeed_config", zero)
    else:
        options["engine"] = "pytorch"
    return Reading("accelerate", options, batch, tuple(values), tuple(warnings))


def _fsdp(fsdp: Mapping[str, Any]) -> dict[str, Any]:
    strategy = str(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
    found: dict[str, Any] = {"engine": "torchtitan", "shards": FSDP.get(strategy, "everything")}
    if fsdp.get("fsdp_reshard_after_forward") is False:
        found["reshard-after-forward"] = False
    if fsdp.get("fsdp_offload_params") is True:
        found["offload-optimizer"] = "cpu"
    if fsdp.get("fsdp_activation_checkpointing") is True:
        found["recompute"] = "full"
    return found
