"""Rows asked in their own tool's words: the file that was run, read as a user's, gives what their options give."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from truth.contract import Refused
from truth.rows.asked import Row, figure, question, refuse_other_jobs, vision_learns
from vramcast.errors import VramcastError

FSDP: Final = (
    "--use_fsdp --fsdp_version 1 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_sharding_strategy FULL_SHARD "
    "--fsdp_backward_prefetch BACKWARD_PRE --fsdp_offload_params false"
)
"""The benchmarks' accelerate.yaml as options [fms-acceleration scripts/benchmarks/accelerate.yaml]."""

PLUGINS: Final[tuple[tuple[str, str], ...]] = (
    ("baseline-peft-bnb", "--bnb_qlora nf4 true"), ("accelerated-peft-bnb", "--bnb_qlora nf4 false"),
    ("accelerated-peft-autogptq", "--auto_gptq triton_v2 true"),
)
"""How a framework's configuration begins -> the options of sft_trainer that ask the same
[fms-acceleration sample-configurations/*.yaml; fms-hf-tuning tuning/config/acceleration_configs]."""

SAME: Final = "same"

SHORTER: Final = {"bigcode/gpt_bigcode-santacoder": 2048}
"""Networks whose tokenizers stop before the asked length [fms-hf-tuning tuning/sft_trainer.py]."""


def tuning(values: Mapping[str, Any]) -> str:
    """The command line of fms-hf-tuning's sft_trainer."""
    gpus, model = values["num_gpus"], values["model_name_or_path"]
    launch = f"accelerate launch --num_processes {gpus} " + (f"{FSDP} " if values["distributed"] else "")
    plugins = str(values["framework_config"])
    options = {
        "model_name_or_path": model, "use_flash_attn": values["use_flash_attn"], "packing": values["packing"],
        "max_seq_length": min(values["max_seq_len"], SHORTER.get(model, values["max_seq_len"])),
        "peft_method": values["peft_method"], **{name: values[name] for name in (
            "torch_dtype", "bf16", "fp16", "per_device_train_batch_size", "gradient_accumulation_steps",
            "gradient_checkpointing", "r", "lora_alpha", "lora_dropout", "target_modules", "optim", "max_grad_norm",
            "max_steps")},
    }
    words = [f"--{name} {value}" for name, value in options.items() if value is not None]
    words += [option for name, option in PLUGINS if plugins.startswith(name)]
    if "foak" in plugins:
        words.append(f"--fast_kernels {'fused_ce_liger' if 'liger' in plugins else 'true'} true true")
    if "foak" in plugins and "peft" in plugins:
        words.append(f"--fused_lora {'auto_gptq' if 'autogptq' in plugins else 'bitsandbytes'} true")
    if plugins.startswith("moe-scattermoe"):
        words.append(f"--fast_moe {plugins.partition('-ep')[2][:1]}")
    return f"{launch}-m tuning.sft_trainer {' '.join(words)}\n"


def fsdp_qlora(values: Mapping[str, Any]) -> str:
    """The command line of fsdp_qlora's train.py."""
    options = {name: values[name] for name in (
        "train_type", "batch_size", "context_length", "gradient_accumulation_steps", "use_gradient_checkpointing",
        "reentrant_checkpointing", "use_cpu_offload", "use_activation_cpu_offload", "lora_rank", "lora_alpha",
        "lora_dropout")}
    first = {name: str(values[name]).split()[0] for name in (
        "model_name", "sharding_strategy", "precision", "lora_target_modules", "optimizer")}
    words = [f"--{name} {value}" for name, value in (first | options).items()]
    return f"python train.py {' '.join(words)} --dataset dummy\n"


NOTES_OF_SWIFT: Final = ("dataset", "eval", "quantization", "exp_name", "trainable_params_M", "tuner", "tuner_params",
                         "bf16", "fp16")
"""What a row says of its run, and no argument does."""


def swift(values: Mapping[str, Any]) -> str:
    """A command of ms-swift 1 or 2; tables of its tuners name each by what it has."""
    arguments = {name: value for name, value in values.items() if name not in NOTES_OF_SWIFT}
    if "tuner" in values:
        arguments["sft_type"] = values["tuner"]
        arguments |= {"use_galore": True} if "galore_rank" in str(values.get("tuner_params")) else {}
        for pair in filter(None, str(values.get("tuner_params", "")).split("/")):
            name, _, value = pair.partition("=")
            renamed = {"rank": "lora_rank", "target": "lora_target_modules", "alpha": "lora_alpha",
                       "galore_per_parameter": "galore_optim_per_parameter"}.get(name, name)
            if value != "None":
                arguments[renamed] = value
    words = " ".join(f"--{name} {_word(value)}" for name, value in arguments.items())
    # without it one process has some layers on every card
    several = "NPROC_PER_NODE=2 " if "+ddp" in str(values.get("exp_name")) else ""
    return f"{several}swift sft {words}\n"


def _word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "'" + text.replace("'", "") + "'"


def unsloth(values: Mapping[str, Any]) -> str:
    """The calls of a notebook that say what is trained."""
    loader, named = "FastLanguageModel", ("model_name", "max_seq_length", "load_in_4bit", "full_finetuning")
    loads = {name: values.get(name) for name in named}
    adapts = {name: values.get(name) for name in ("r", "target_modules", "lora_dropout")}
    adapts["use_gradient_checkpointing"] = json.loads(str(values["use_gradient_checkpointing"]).replace("False", "0"))
    if adapts["use_gradient_checkpointing"] == 0:
        adapts["use_gradient_checkpointing"] = False
    trains = {name: values.get(name) for name in (
        "per_device_train_batch_size", "gradient_accumulation_steps", "optim", "max_steps", "packing")}
    trains["max_steps"] = int(trains["max_steps"] or 60)
    if "all linear" in str(adapts["target_modules"]):
        loader, adapts = "FastModel", adapts | {"target_modules": None, "finetune_vision_layers": values[VISION]}
    lines = [f"from unsloth import {loader}", f"model, tokenizer = {loader}.from_pretrained({_call(loads)})"]
    if values.get("r") is not None:
        lines.append(f"model = {loader}.get_peft_model(model, {_call(adapts)})")
    lines.append(f"trainer = SFTTrainer(model=model, args=SFTConfig({_call(trains)}))")
    return "\n".join(lines) + "\n"


def _call(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)


class Written(NamedTuple):
    """How a row's configuration is written in its tool's words."""

    name: str
    """Of the file."""
    text: Callable[[Mapping[str, Any]], str]


VISION: Final = "vision"
"""Beside a row's values: whether the vision tower is adapted, too."""

WRITTEN: Final = {
    "fms-hf-tuning sft_trainer": Written("run.sh", tuning), "fsdp_qlora train.py": Written("run.sh", fsdp_qlora),
    "ms-swift": Written("run.sh", swift), "unsloth": Written("notebook.py", unsloth),
}
"""`format` of a row's `config` -> the file that it is."""


def own_question(row: Row, folder: Path, place: Path) -> dict[str, Any] | None:
    """The options of a question that gives the row's own file, on its cards and with its release.

    Args:
        row: with `ask`, and perhaps `config`
        folder: where the rows' file lies
        place: where the file is written

    Returns: None where nothing says how such a configuration is written
    """
    config = row.get("config") or {}
    written = WRITTEN.get(config.get("format", ""))
    if written is None or "options" not in row["ask"]:
        return None
    path = place / written.name
    values = config["values"] | ({VISION: vision_learns(row)} if written.text is unsloth else {})
    path.write_text(written.text(values), encoding="utf-8")
    options = question(row, folder)
    # a size of images that the row does not know either
    unsaid = {"ignore-unread": True} if values.get(VISION) else {}
    return {"from": (path,)} | unsaid | {name: options[name] for name in ("model", "gpus", "engine")}


def in_own_words(row: Row, folder: Path) -> str | None:
    """Whether a row's file and its options are the same question: SAME, or what is wrong; None without a file, or
    where the row says that its options ask another job."""
    try:
        refuse_other_jobs(row)
    except Refused:
        return None
    with tempfile.TemporaryDirectory() as place:
        own = own_question(row, folder, Path(place))
        if own is None:
            return None
        by_options, by_file = (_figure(row, options) for options in (question(row, folder), own))
    if isinstance(by_options, str) or isinstance(by_file, str):
        both = isinstance(by_options, str) and isinstance(by_file, str)
        return "refused both ways" if both else f"options: {by_options}; file: {by_file}"
    return SAME if by_options == by_file else f"{by_options:,.0f} by options, {by_file:,.0f} by its file"


def _figure(row: Row, options: Mapping[str, Any]) -> float | str:
    """The figure, or why there is none."""
    try:
        return figure(row, dict(options)).value
    except (Refused, VramcastError) as error:
        return str(error)
