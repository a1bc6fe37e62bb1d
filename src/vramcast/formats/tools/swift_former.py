"""ms-swift's arguments before release 3: `--sft_type`, `--model_type`, `--dtype`, `--batch_size`.

[swift 1.5] modelscope/ms-swift 97e4d198b swift/llm/utils/argument.py `SftArguments`, swift/llm/sft.py
[swift 2] modelscope/ms-swift 2.5 swift/llm/utils/argument.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.catalogue.formats import networks_of
from vramcast.errors import Note
from vramcast.formats.reading import ELSEWHERE, Reading, lengths_of, shown, together
from vramcast.formats.tools.transformers import ARGUMENTS, optimizer_of
from vramcast.formats.watched import Known, Watched

KNOWN: Final = Known("swift", "former", (Known("swift", "arguments"), ARGUMENTS))

FORMER: Final = ("sft_type", "lora_dropout_p", "lora_target_modules", "quantization_bit", "use_flash_attn",
                 "custom_train_dataset_path", "model_id_or_path")
"""Names that releases since 3 do not have."""

LENGTH: Final = 2048
"""max_length where nobody says it."""

SAMPLES: Final = 16
"""Samples of a step that gradient_accumulation_steps is made from where nobody says it."""

GALORE_RANK: Final = 128
"""galore_rank where nobody says it [swift 2 argument.py]."""

STORED: Final = re.compile(r"-(int4|int8|awq)$")

OF_ADAPTERS: Final = ("lora_target_modules", "lora_rank", "lora_dropout_p", "target_modules", "use_dora")

USUAL: Final = "attention.q,attention.k,attention.v"

SPLIT: Final = {"DEFAULT": USUAL, "AUTO": USUAL, "ALL": "all"}
"""Words of `lora_target_modules`."""


def is_former(table: Mapping[str, Any]) -> bool:
    """Whether arguments are of a release before 3."""
    return any(name in table for name in FORMER) or ("model_type" in table and "model" not in table)


def read_former(table: Mapping[str, Any]) -> Reading:
    """What such a command trains."""
    values = Watched(table, KNOWN)
    kind, stored = values.get("sft_type", "lora"), _stored(values)
    options = together(
        {"engine": "huggingface", "engine-option": ("shifted_loss=true",)}, _model(values),
        _precision(values, kind, stored), _recompute(values), _attention(values), _adapters(values, kind, stored),
        _optimizer(values),
    )
    options |= {"seq-len": values.count("max_length") or LENGTH} | lengths_of(packed=False)
    if values.get("deepspeed") or values.get("deepspeed_config_path"):
        values.cannot("deepspeed" if "deepspeed" in values else "deepspeed_config_path", ELSEWHERE, file="deepspeed")
    micro, steps = values.count("batch_size") or 1, values.count("gradient_accumulation_steps")
    batch = {"micro": micro} | ({"accumulation": steps} if steps else {"global": SAMPLES})
    values.get("tuner_backend")
    notes = () if "max_length" in values else (Note("max_length is not given: {}, as ms-swift has it", LENGTH),)
    return Reading("swift", options, {}, batch, tuple(values.unread()), notes)


def _model(values: Watched) -> dict[str, Any]:
    if model := values.text("model_id_or_path"):
        values.get("model_type")
        return {"model": model}
    named = values.text("model_type")
    if named is None:
        return {}
    found = networks_of("swift")["models"].get(STORED.sub("", named))
    if found is None:
        values.cannot("model_type", "{} is not known here; give MODEL", shown(named), option="model")
        return {}
    return {"model": found}


def _stored(values: Watched) -> str:
    """How frozen weights lie."""
    found = STORED.search(str(values.get("model_type") or values.get("model_id_or_path") or "").lower())
    if found is not None:
        values.get("quantization_bit")
        return {"int4": "gptq-int4", "int8": "gptq-int8", "awq": "awq-int4"}[found[1]]
    bits = values.whole("quantization_bit") or 0
    values.only("bnb_4bit_quant_type", "nf4")
    values.get("bnb_4bit_comp_dtype")  # of what is unpacked for a while
    double = values.flag("bnb_4bit_use_double_quant") is not False
    if bits not in (0, 4, 8):
        values.refuse("quantization_bit", "0, 4 or 8", option="base-weights")
    return {4: "nf4-dq" if double else "nf4", 8: "int8"}.get(bits, "")


def _precision(values: Watched, kind: Any, stored: str) -> dict[str, Any]:
    """AWQ computes in fp16 whatever is said."""
    dtype = "fp16" if stored == "awq-int4" else str(values.get("dtype", "bf16"))
    values.ignore("bf16", "fp16", "dtype")
    if dtype not in ("bf16", "fp16", "fp32", "AUTO"):
        values.refuse("dtype", "bf16, fp16, fp32 or AUTO", option="precision")
    dtype = "bf16" if dtype == "AUTO" else dtype
    if dtype == "fp32":
        return {"precision": dtype}
    if kind == "full":  # weights in that type, and the trainer's autocast [swift 1.5 sft.py `bf16=args.bf16`]
        return {"precision": dtype, "engine-option": ("autocast=true",)}
    return {"precision": f"amp-{dtype}"}


def _recompute(values: Watched) -> dict[str, Any]:
    if values.flag("gradient_checkpointing") is False:
        return {"recompute": "none"}
    return {"recompute": "full", "engine-option": ("reentrant=true",)}


def _attention(values: Watched) -> dict[str, Any]:
    flash = values.flag("use_flash_attn")
    return {} if flash is None else {"attention": "flash" if flash else "eager"}


def _optimizer(values: Watched) -> dict[str, Any]:
    if not values.flag("use_galore"):
        return optimizer_of(Watched({"optim": values.get("optim", "adamw_torch")}))
    values.get("optim")
    for name in ("galore_optim_per_parameter", "galore_with_embedding", "galore_quantization"):
        values.only(name, False)
    return {"optimizer": f"galore:{values.count('galore_rank') or GALORE_RANK}"}


def _adapters(values: Watched, kind: Any, stored: str) -> dict[str, Any]:
    """LoRA: ms-swift's own keeps adapters in the type of the weights, PEFT's in fp32."""
    if kind not in ("lora", "adalora"):
        if kind != "full":
            values.cannot("sft_type", "{} is not modelled; lora, adalora and full are", shown(kind), option="peft")
        values.ignore(*OF_ADAPTERS)
        return {}
    own = values.get("tuner_backend") == "swift" and not stored and values.get("dtype", "bf16") in ("bf16", "AUTO")
    given = values.get("lora_target_modules") or values.get("target_modules") or "DEFAULT"
    named = given if isinstance(given, list) else str(given).split(",")
    found: dict[str, Any] = {
        "peft": "dora" if values.flag("use_dora") else str(kind), "lora-rank": values.count("lora_rank") or 8,
        "lora-dropout": values.number("lora_dropout_p", 0.05), "adapter-dtype": "bf16" if own else "fp32",
        "lora-targets": ",".join(SPLIT.get(word, word) for word in map(str, named)),
    }
    return found | ({"base-weights": stored} if stored else {})
