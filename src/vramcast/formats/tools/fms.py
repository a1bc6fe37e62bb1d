"""fms-hf-tuning's sft_trainer and fsdp_qlora's train.py: scripts around the same loop.

[fms] foundation-model-stack/fms-hf-tuning tuning/config/configs.py, tuning/config/peft_config.py,
tuning/config/acceleration_configs/*.py
[fsdp_qlora] AnswerDotAI/fsdp_qlora train.py `main`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.reading import Reading, lengths_of, modules_of, together, without_none
from vramcast.formats.tools.transformers import ARGUMENTS, arguments_of, precision_of, recompute_of
from vramcast.formats.watched import Known, Watched

TUNING: Final = Known("fms", "arguments", (ARGUMENTS,))
QLORA: Final = Known("fsdp-qlora", "arguments")

CONTEXT: Final = 4096
"""max_seq_length where nobody says it [fms `DEFAULT_CONTEXT_LENGTH`]."""

RANK: Final = 8
"""r of PEFT's LoraConfig where nobody says it."""

FAST: Final = ("loss", "rms_norm", "rope")
"""What the words of --fast_kernels switch, one by one; a loss may be named [fms `FastKernelsConfig`]."""

LOSSES: Final = {True: "fused", "fused_ce_liger": "fused_linear"}

PACKED: Final = {
    "nf4": {"base-weights": "nf4-dq"}, "fp4": {"base-weights": "nf4-dq"},  # as many bits and scales
}
"""`--bnb_qlora` -> how weights are stored: the plugin quantises their scales, too
[fms-acceleration plugins/accelerated-peft framework_plugin_bnb.py]."""


def read_tuning(given: Mapping[str, Any], program: str, file: str) -> Reading:
    """The arguments of `python -m tuning.sft_trainer`."""
    values = Watched(given, TUNING)
    notes: list[str] = []
    size = values.count("max_seq_length") or values.count("max_seq_len")
    if size is None:
        notes.append(Note("max_seq_length is not given: {}, as fms-hf-tuning has it", CONTEXT))
    options: dict[str, Any] = {"engine": "huggingface", "seq-len": size or CONTEXT}
    options |= lengths_of(packed=values.flag("packing"))
    if model := values.text("model_name_or_path"):
        options["model"] = model
    if values.flag("use_flash_attn") is not False:
        options["attention"] = "flash"
    adapters = _adapters(values)
    options = together(options, _precision(values, bool(adapters)), adapters, recompute_of(values),
                       _fused(values, notes), _experts(values, adapters))
    if values.get("optim") is None:
        options |= {"optimizer": "adamw", "optimizer-kernel": "foreach"}
    read = arguments_of(values, file, fsdp=1)
    return Reading("fms-hf-tuning", together(options, read.options), {}, read.batch,
                   (*values.unread(), *read.unread), (*notes, *read.notes))


def _precision(values: Watched, adapters: bool) -> dict[str, Any]:
    """Autocast over weights of `torch_dtype`, bfloat16 where nobody says [fms `ModelArguments`]."""
    width = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    weights = values.one_of("torch_dtype", width, option="precision") or "bf16"
    found = precision_of(values)
    if found.get("precision") in ("fp32", "tf32") or (adapters and found):
        return found if adapters and found["precision"].startswith("amp-") else {"precision": weights}
    if found and weights != "fp32":
        return {"precision": weights, "engine-option": ("autocast=true",)}
    return found


def _adapters(values: Watched) -> dict[str, Any]:
    method = values.get("peft_method")
    if method is None or method == "none":
        values.ignore("r", "lora_alpha", "lora_dropout", "target_modules")
        return {}
    if method != "lora":
        values.cannot("peft_method", "{} is not modelled; lora is", str(method)[:40], option="peft")
        return {}
    values.ignore("lora_alpha")
    return without_none({
        "peft": "lora", "lora-rank": values.count("r") or RANK, "lora-dropout": values.number("lora_dropout", 0.05),
        "lora-targets": modules_of(values.get("target_modules"))}) | _stored(values)


def _stored(values: Watched) -> dict[str, Any]:
    """`--bnb_qlora nf4 false`, `--auto_gptq triton_v2`: fields of a dataclass as words."""
    if (packed := values.get("bnb_qlora")) is not None:
        kind, *rest = packed if isinstance(packed, list) else [packed]
        if kind not in PACKED:
            values.refuse("bnb_qlora", "one of {}", ", ".join(PACKED), option="base-weights")
            return {}
        if rest[:1] == [True]:  # PEFT prepares the network
            return dict(PACKED[kind])
        return {**PACKED[kind], "engine-option": ("prepare_kbit=none",)}
    kernel = values.get("auto_gptq")
    if kernel is None:
        return {}
    first = kernel[0] if isinstance(kernel, list) else kernel
    if first != "triton_v2":
        values.refuse("auto_gptq", "triton_v2", option="base-weights")
    return {"base-weights": "gptq-int4", "engine-option": ("prepare_kbit=none", "gptq_kernel=tritonv2")}


def _fused(values: Watched, notes: list[str]) -> dict[str, Any]:
    """Kernels of fms-acceleration: the loss is modelled, norms and rotary embeddings as Liger's."""
    found: dict[str, Any] = {}
    if (lora := values.get("fused_lora")) is not None:
        notes.append("fused_lora: products of adapters are computed as PEFT's own, not fused")
        if isinstance(lora, list) and lora[:1] == ["auto_gptq"]:
            found["adapter-dtype"] = "fp16"
    kernels = values.get("fast_kernels")
    if kernels is None:
        return found
    listed = kernels if isinstance(kernels, list) else [kernels]
    on = dict(zip(FAST, listed, strict=False))
    loss = on.pop("loss", False)
    if not isinstance(loss, (bool, str)) or loss not in (*LOSSES, False):
        values.refuse("fast_kernels", "true, false or fused_ce_liger for the loss", option="loss")
        return found
    found |= {"loss": LOSSES[loss]} if loss in LOSSES else {}
    names = [name for name in ("rope", "rms_norm") if on.get(name) is True]
    return found | ({"engine-option": (f"liger={'+'.join(names)}",)} if names else {})


def _experts(values: Watched, adapters: Mapping[str, Any]) -> dict[str, Any]:
    """`--fast_moe 4`: ScatterMoE, whose experts so many ranks divide outside of FSDP; true leaves them to FSDP
    [fms d3c30a03 acceleration_configs/fast_moe.py `FastMoe.__post_init__`]."""
    given = values.get("fast_moe")
    if given is None:
        return {}
    if adapters:
        values.cannot("fast_moe", "beside adapters is not modelled", option="peft")
        return {}
    if isinstance(given, bool):
        return {"engine-option": (f"experts={'scattermoe' if given else 'fms'}",)}
    if not isinstance(given, int) or given < 1:
        values.refuse("fast_moe", "a number of ranks, true or false", option="ep")
        return {}
    return {"engine-option": ("experts=fms",), "ep": given}


TRAIN_TYPES: Final = {"full": None, "lora": "full", "qlora": "nf4", "custom_lora": "full", "custom_qlora": "nf4"}
STRATEGIES: Final = {"full_shard": "everything", "shard_grad_op": "everything", "ddp": "nothing"}
PRECISIONS: Final = {"fp32": "fp32", "bf16": "bf16", "bf16_autocast": "amp-bf16", "fp16_autocast": "amp-fp16",
                     "bf16_buffers_autocast": "amp-bf16"}
OF_LAYERS: Final = "attention.q,attention.k,attention.v,attention.out,mlp.gate,mlp.up,mlp.down"


def read_fsdp_qlora(given: Mapping[str, Any], program: str, file: str) -> Reading:
    """The arguments of fsdp_qlora's train.py: FSDP1 by hand, a bf16 loop without the Trainer."""
    values = Watched(given, QLORA)
    base = values.one_of("train_type", TRAIN_TYPES, option="peft")
    options: dict[str, Any] = {"engine": "pytorch", "seq-len": values.count("context_length") or 512}
    options["model"] = values.text("model_name") or "meta-llama/Llama-2-7b-hf"
    options["precision"] = values.one_of("precision", PRECISIONS, option="precision") or "bf16"
    options |= {"recompute": "none" if values.flag("use_gradient_checkpointing") is False else "full",
                "optimizer": values.one_of("optimizer", {"adamw": "adamw", "adam": "adamw"}, option="optimizer")
                or "adamw", "optimizer-kernel": "foreach", "attention": "flash"}
    strategy = values.one_of("sharding_strategy", STRATEGIES, option="shards") or "everything"
    options["shards"] = strategy
    if base is not None:
        options |= {"peft": "lora", "lora-rank": values.count("lora_rank") or 64, "adapter-dtype": "bf16",
                    "lora-dropout": values.number("lora_dropout", 0.1)}
        if values.get("lora_target_modules", "all") == "all":
            options["lora-targets"] = OF_LAYERS
        if base != "full":
            options["base-weights"] = base
    if values.flag("use_cpu_offload") is not False:
        options |= {"offload-parameters": "cpu", "offload-optimizer": "cpu"}
    if values.flag("use_activation_cpu_offload"):
        options["offload-activations"] = True
    reentrant = bool(values.flag("reentrant_checkpointing"))
    options["engine-option"] = ("shifted_loss=true", f"reentrant={str(reentrant).lower()}")
    batch = {"micro": values.count("batch_size") or 1, "accumulation": values.count("gradient_accumulation_steps") or 1}
    return Reading("fsdp_qlora", options, {}, batch, tuple(values.unread()),
                   ranks=values.count("world_size") if values.get("world_size") != -1 else None)
