"""LLaMA-Factory v1's YAML: a loop of its own around transformers, under FSDP2, DeepSpeed or DDP.

[LF1] hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1: config/*.py, core/base_trainer.py `compute_log_probs`,
core/model_engine.py `_init_model`, plugins/trainer_plugins/distributed/{fsdp2,deepspeed}.py, plugins/model_plugins/*
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.formats.reading import (
    ELSEWHERE,
    Config,
    Reading,
    Unread,
    lengths_of,
    listed,
    modules_of,
    table,
    together,
    without_none,
)
from vramcast.formats.tools.llamafactory import ALL, CUTOFF, KERNELS, RANK
from vramcast.formats.watched import Known, Watched

V1: Final = Known("llamafactory-v1", "arguments")

MODEL: Final = "Qwen/Qwen3-4B-Instruct-2507"
"""`model` where nobody says it [LF1 config/model_args.py]."""

LOOP: Final = ("second_loss=true", "reentrant=false")
"""Labels go to the model, too, whose own loss nobody uses."""

OWN_LOOP: Final = ("model_loss=true", "defers_sync=false", "reduce_dtype=float32")
"""And without DeepSpeed: every micro-batch is reduced, in fp32."""

UNDER_DEEPSPEED: Final = ("torch_adam=true",)
"""PyTorch's AdamW is handed to it."""

OF_PAIRS: Final = re.compile(r"(?i)(?<![a-z])(?:dpo|rm|reward|pref\w*|pairs?)(?![a-z])")
"""How data sets of the dpo and rm commands are called: no name of the file says which command it is for."""

BATCHES: Final = {"normal": False, "dynamic_batching": False, "padding_free": True, "dynamic_padding_free": True}
"""`batching_strategy` -> whether samples lie end to end: none has more than micro_batch_size x cutoff_len tokens."""

IMAGES: Final = Unread("train_dataset", "may hold images of sizes that the samples decide; give --image-size",
                       option="image-size", of_towers=True)


def read(config: Config) -> Reading:
    """The arguments of `USE_V1=1 llamafactory-cli sft`."""
    values = Watched(config.table or {}, V1)
    notes = ["the sft command is assumed, which trains on answers"]
    options: dict[str, Any] = {"engine": "pytorch", "objective": "sft", "model": values.text("model") or MODEL,
                               "seq-len": values.count("cutoff_len") or CUTOFF}
    if OF_PAIRS.search(str(values.get("train_dataset", ""))):
        values.cannot("train_dataset", "is named as one of LLaMA-Factory v1's dpo or rm command, which are not "
                      "modelled; its sft command is")
    options |= lengths_of(packed=values.one_of("batching_strategy", BATCHES))
    if (kernel := values.one_of("flash_attn", KERNELS | {"flash_attention_2": "flash", "eager": "eager"},
                                option="attention")) is not None:
        options["attention"] = kernel
    again = values.flag("enable_activation_checkpointing") is not False
    options |= {"recompute": "full" if again else "none", "precision": _precision(values)}
    own = table(values.get("dist_config")).get("name") != "deepspeed"
    options = together(options, {"engine-option": (*LOOP, *(OWN_LOOP if own else UNDER_DEEPSPEED))}, _adapters(values),
                       _kernels(values), _optimizer(values), _sharding(values))
    if not own:
        options.pop("optimizer-kernel", None)
    if values.count("cp_size") not in (None, 1):
        options |= {"cp": values.count("cp_size"), "cp-kind": "ulysses"}
    values.get("cp_mode")
    batch = {"micro": values.count("micro_batch_size") or 1}
    whole = values.count("global_batch_size")
    batch |= {"global": whole} if whole else {"accumulation": 1}
    return Reading("llama-factory v1", options, {}, batch, (*values.unread(), IMAGES), tuple(notes))


def _precision(values: Watched) -> str:
    """Shards in fp32, gathered and computed in bf16; DDP alone computes in what is stored [LF1 fsdp2.py
    `get_mp_policy`]."""
    if values.flag("bf16") is False or values.get("dist_config") is None:
        return "fp32" if values.get("peft_config") is None else "bf16"
    return "mixed-bf16"


def _sharding(values: Watched) -> dict[str, Any]:
    inner = values.section("dist_config")
    inner.ignore("pin_memory", "dcp_path")
    values.section("init_config", Known("llamafactory-v1", "init_config"))  # which card loads what, not what is kept
    match inner.get("name"):
        case None:
            return {"shards": "nothing"}
        case "fsdp2":
            whole = inner.flag("reshard_after_forward") is not False
            offloads = {"offload-parameters": "cpu", "offload-optimizer": "cpu"} if inner.flag("offload_params") else {}
            return {"shards": "everything", "sharded-by": "fsdp2", "reshard-after-forward": whole} | offloads
        case "deepspeed":
            inner.cannot("config_file", ELSEWHERE, file="deepspeed")
        case other:
            inner.cannot("name", "{} is not modelled; fsdp2 and deepspeed are", str(other)[:40], option="shards")
    return {}


def _adapters(values: Watched) -> dict[str, Any]:
    """PEFT makes LoRA's weights fp32, and so they compute where nobody gathers them in bf16 [LF1 peft.py]."""
    inner = values.section("peft_config")
    kind = inner.get("name")
    if kind is None:
        if values.section("quant_config").get("name") is not None:
            values.cannot("quant_config", "needs peft_config: packed weights do not learn", option="peft")
        return {}
    if kind != "lora":
        inner.cannot("name", "{} is not modelled; lora is", str(kind)[:40], option="peft")
        return {}
    inner.ignore("lora_alpha", "use_rslora")
    targets = listed(inner.get("target_modules", "all"))
    found = without_none({
        "peft": "dora" if inner.flag("use_dora") else "lora", "lora-rank": inner.count("r") or RANK,
        "lora-targets": ALL if targets == ["all"] else ",".join(targets),
        "adapter-dtype": "fp32" if values.get("dist_config") is None else "bf16",
        "lora-dropout": inner.number("lora_dropout", 0.05), "modules-to-save": modules_of(inner.get("modules_to_save")),
    })
    return found | _stored(values.section("quant_config"))


def _stored(inner: Watched) -> dict[str, Any]:
    """[LF1 quantization.py]."""
    if inner.get("name") is None:
        return {}
    inner.only("name", "bnb", "auto")
    inner.only("quantization_type", "nf4")
    inner.get("compute_dtype")
    bits = inner.one_of("quantization_bit", {"4": 4, "8": 8}, option="base-weights") or (
        4 if inner.get("name") == "bnb" else None)
    if bits == 8:
        return {"base-weights": "int8"}
    return {} if bits is None else {
        "base-weights": "nf4" if inner.flag("double_quantization") is False else "nf4-dq"}


def _kernels(values: Watched) -> dict[str, Any]:
    """"auto" has none for cards of NVIDIA; Liger's come with its cross entropy, as the loop needs logits [LF1
    kernels/interface.py, liger_kernel_ops.py `require_logits`]."""
    inner = values.section("kernel_config")
    names = [name.strip() for name in str(inner.get("name") or "auto").split(",")]
    if strange := [name for name in names if name not in ("auto", "liger_kernel")]:
        inner.cannot("name", "{} is not modelled; auto and liger_kernel are", strange[0][:40])
        inner.ignore("*")
    return {"loss": "fused", "engine-option": ("liger=rope+rms_norm+swiglu",)} if "liger_kernel" in names else {}


def _optimizer(values: Watched) -> dict[str, Any]:
    """torch.optim.AdamW, or Muon with AdamW for what is no hidden matrix [LF1 optimizers/optimizer.py]."""
    inner = values.section("optim_config")
    for name in inner:
        if name != "name":
            inner.get(name)
    match inner.get("name"):
        case None:
            return {"optimizer": "adamw", "optimizer-kernel": "foreach"}
        case "muon":
            return {"optimizer": "muon"}
        case other:
            inner.cannot("name", "{} is not modelled; muon is", str(other)[:40], option="optimizer")
            return {}
