"""LLaMA-Factory's YAML: one file of model, method, data and TrainingArguments.

[LF] llamafactory 0.9.5 hparams/*.py, hparams/parser.py `get_train_args`, model/adapter.py, model/model_utils/*.py
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.engines.eager.releases import LIGER
from vramcast.question.configs.reading import Config, Reading, Unread, together
from vramcast.question.configs.trainers import ARGUMENTS, FUSED_HEAD, arguments_of, precision_of
from vramcast.question.configs.watched import Known, Watched

FACTORY: Final = Known("llamafactory", "arguments", (ARGUMENTS,))

STAGES: Final = {"pt": "pretrain", "sft": "sft", "dpo": "dpo"}
"""`stage` -> what is optimised. Rewards (rm) and PPO have TRL's value head beside the language head, whose logits are
computed too [LF model/loader.py `add_valuehead`, train/rm/trainer.py]: that is not the reward model of `objective`."""

CUTOFF: Final = 2048
"""cutoff_len where nobody says it [LF hparams/data_args.py]."""

RANK: Final = 8
"""lora_rank where nobody says it [LF hparams/finetuning_args.py]."""

KERNELS: Final = {"auto": None, "sdpa": None, "fa2": "flash", "fa3": "flash", "disabled": "eager"}
"""`flash_attn` -> kernel; None: as Transformers chooses [LF model_utils/attention.py]."""

TOWERS: Final = Unread("model_name_or_path", "names a model with towers, which LLaMA-Factory leaves frozen; that is "
                       "not modelled", of_towers=True)
"""Whatever the template: the network decides [LF model_utils/visual.py `COMPOSITE_MODELS`]."""

ALL: Final = "all-linear"

QUANTISED: Final = re.compile(
    r"(?i)(?<![a-z])(?:gptq|awq|aqlm|hqq|eetq|exl2|gguf|fp8|int8|int4|bnb|mxfp4|nvfp4|w4a16|w8a8)(?![a-z])"
)
"""What names of checkpoints say of how their weights are stored."""

STORED: Final = {"gptq": "gptq-int4", "awq": "awq-int4"}


def read_factory(config: Config) -> Reading:
    """The arguments of `llamafactory-cli train`."""
    values = Watched(config.table or {}, FACTORY)
    options: dict[str, Any] = {"engine": "huggingface"} | _precision(values)
    if not values.flag("do_train"):
        values.cannot("do_train", "is not true, so LLaMA-Factory trains nothing")
    objective = values.one_of("stage", STAGES, option="objective")
    options |= {"objective": objective or "sft"}
    if model := values.text("model_name_or_path"):
        options["model"] = model
    values.get("template")
    options["seq-len"] = values.count("cutoff_len") or CUTOFF
    if (kernel := values.one_of("flash_attn", KERNELS, option="attention")) is not None:
        options["attention"] = kernel
    kernels = _kernels(values, options["objective"])
    options = together(options, _recompute(values), kernels, _low_rank(values), _adapters(values))
    if options["engine"] == "unsloth":  # which prepares packed bases itself
        pairs = options.get("engine-option", ())
        options["engine-option"] = tuple(pair for pair in pairs if not pair.startswith(("prepare_kbit=", "dtype=")))
    if options["objective"] == "sft" and not kernels and not values.flag("torch_compile"):
        options["loss"] = "eager"  # its trainer of this stage is not TRL's [LF train/sft/trainer.py]
    values.only("pref_loss", "sigmoid", "hinge", "ipo")
    values.only("pref_ftx", 0, 0.0)
    read = arguments_of(values, config.name)
    notes = [] if "cutoff_len" in values else [f"cutoff_len is not given: {CUTOFF}, as LLaMA-Factory has it"]
    workers = values.count("ray_num_workers")
    options, unread = together(options, read.options), (*values.unread(), *read.unread, TOWERS)
    return Reading("llama-factory", options, {}, read.batch, unread, (*notes, *read.notes), ranks=workers)


def _precision(values: Watched) -> dict[str, Any]:
    """What learns is fp32 under autocast, or all of it bf16 [LF adapter.py `init_adapter`]."""
    if values.flag("pure_bf16"):
        values.get("bf16")
        return {"precision": "bf16"}
    if values.flag("fp8"):
        values.cannot("fp8", option="precision")
    found = precision_of(values)
    if found == {"precision": "fp32"} and values.get("finetuning_type", "lora") == "lora":
        return {"precision": "bf16"}  # frozen weights as the checkpoint has them, adapters in fp32, no autocast
    return found


def _recompute(values: Watched) -> dict[str, Any]:
    """Layers run again unless that is switched off, by the reentrant code [LF model_utils/checkpointing.py]."""
    if values.flag("use_unsloth_gc"):
        values.cannot("use_unsloth_gc")
    for name in ("gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_checkpointing",
                 "activation_checkpointing_kwargs"):
        values.get(name)  # LLaMA-Factory switches them itself
    if values.flag("disable_gradient_checkpointing"):
        values.get("use_reentrant_gc")
        return {"recompute": "none"}
    reentrant = values.flag("use_reentrant_gc") is not False
    return {"recompute": "full", "engine-option": (f"reentrant={str(reentrant).lower()}",)}


def _kernels(values: Watched, objective: str) -> dict[str, Any]:
    """Whose kernels run beside PyTorch's; preferences need logits, which Liger's head never makes [LF model/loader.py
    `require_logits`]."""
    if values.flag("use_unsloth"):
        values.get("enable_liger_kernel")  # which it replaces
        return {"engine": "unsloth"}
    if not values.flag("enable_liger_kernel"):
        return {}
    kernels = liger_of_stage(objective)
    return {"engine-option": ("liger=true" if kernels == LIGER else f"liger={'+'.join(kernels)}",)}


def liger_of_stage(objective: str) -> tuple[str, ...]:
    """Kernels of Liger that LLaMA-Factory switches on, and that the loss of the objective runs through."""
    return LIGER if objective in ("pretrain", "sft") else tuple(name for name in LIGER if name != FUSED_HEAD)


def _low_rank(values: Watched) -> dict[str, Any]:
    """GaLore and APOLLO as LLaMA-Factory switches them [LF train/trainer_utils.py]."""
    for name in ("galore", "apollo"):
        if values.flag(f"use_{name}"):
            if values.flag(f"{name}_layerwise"):
                values.cannot(f"{name}_layerwise")
            values.only(f"{name}_target", "all", ["all"])
            values.only(f"{name}_proj_type", "std")
            return {"optimizer": f"{name}:{values.count(f'{name}_rank') or 16}"}
        for other in values:
            if other.startswith(f"{name}_"):
                values.get(other)
    return {}


def _adapters(values: Watched) -> dict[str, Any]:
    kind = values.get("finetuning_type", "lora")
    if kind == "full":
        for name in values:
            if name.startswith("lora_") or name in ("use_dora", "additional_target", "use_rslora"):
                values.get(name)
        return {}
    if kind != "lora":
        values.cannot("finetuning_type", f"{str(kind)[:40]} is not modelled", option="peft")
        return {}
    found: dict[str, Any] = {"peft": "dora" if values.flag("use_dora") else "lora"}
    found["lora-rank"] = values.count("lora_rank") or RANK
    found["lora-targets"] = _names(values.get("lora_target", "all"))
    found["adapter-dtype"] = "bf16" if values.flag("pure_bf16") else "fp32"  # whatever TRL does: [LF model/adapter.py]
    if (dropout := values.number("lora_dropout")) is not None:
        found["lora-dropout"] = dropout
    if saved := values.get("additional_target"):
        found["modules-to-save"] = _names(saved)
    return found | _stored(values)


def _names(given: Any) -> str:
    """Modules by the names that transformers gives them; "all": every linear layer but the head."""
    listed = [str(name).strip() for name in (given if isinstance(given, list) else str(given).split(","))]
    return ALL if listed == ["all"] else ",".join(listed)


def _stored(values: Watched) -> dict[str, Any]:
    """The frozen weights: quantised while they load [LF model_utils/quantization.py]."""
    bits = values.one_of("quantization_bit", {"4": 4, "8": 8}, option="base-weights")
    values.only("quantization_method", "bnb", "BNB", "bitsandbytes")
    if (named := QUANTISED.search(str(values.get("model_name_or_path", "")))) is not None:
        eight = re.search(r"(?i)int8|8-?bit", str(values.get("model_name_or_path")))
        kind = "gptq-int8" if eight and named[0].lower() == "gptq" else STORED.get(named[0].lower())
        if kind is None:
            values.cannot("model_name_or_path", f"{named[0]} weights are not modelled", option="base-weights")
        return {"base-weights": kind} if kind else {}
    loaded = f"dtype={'float16' if values.flag('fp16') else 'bfloat16'}"  # whatever TRL does: [LF model/loader.py]
    if bits is None:
        return {"engine-option": (loaded,)}
    prepared = "norms" if values.flag("upcast_layernorm") else "none"
    found: dict[str, Any] = {"engine-option": (f"prepare_kbit={prepared}", loaded)}
    if bits == 8:
        return found | {"base-weights": "int8"}
    values.only("quantization_type", "nf4")
    return found | {"base-weights": "nf4" if values.flag("double_quantization") is False else "nf4-dq"}
