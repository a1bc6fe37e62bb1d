"""Adapters of axolotl's YAML, and how the weights under them lie.

[ax] axolotl-ai-cloud/axolotl 0.18.0 src/axolotl: loaders/adapter.py, loaders/model.py `_set_quantization_config`,
`_configure_embedding_dtypes`, utils/schemas/peft.py, utils/schemas/config.py `check_auto_enable_lora_kernels`

How axolotl's YAML splits the work: DeepSpeed's file, FSDP's table, and model parallelism.

[ax] axolotl-ai-cloud/axolotl 0.18.0 deepspeed_configs/*.json, src/axolotl/utils/trainer.py `setup_fsdp_envs`,
`setup_parallelism_envs`, src/axolotl/utils/schemas/validation.py `check_fsdp_version_in_fsdp_config`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from vramcast.catalogue.formats import presets
from vramcast.families.module_names import LINEAR_NAMES
from vramcast.formats.reading import ELSEWHERE, Config, listed, modules_of, shown, together, without_none
from vramcast.formats.tools import deepspeed
from vramcast.formats.tools.accelerate import fsdp_options
from vramcast.formats.tools.llamafactory import QUANTISED, STORED
from vramcast.formats.watched import Known, Watched

DEGREES: Final = {"tensor_parallel_size": "tp", "context_parallel_size": "cp", "expert_parallel_size": "ep"}

STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")

DEEPSPEED: Final = presets("axolotl", "deepspeed")
"""`zero_optimization` of the files that come with axolotl."""


def read_degrees(values: Watched) -> dict[str, Any]:
    """Model parallelism, and copies of shards."""
    found: dict[str, Any] = {}
    for name, option in DEGREES.items():
        size = values.count(name)
        if size is not None and size > 1:
            found[option] = size
    older = values.count("sequence_parallel_degree")
    if older and older > 1:
        found["cp"] = older
    if "cp" in found:
        found["cp-kind"] = "ring"  # ring-flash-attn [ax monkeypatch/ring_attn]
    values.ignore("ring_attn_func", "heads_k_stride")
    copies, shards = values.count("dp_replicate_size"), values.count("dp_shard_size")
    if copies and copies > 1 and shards:
        found["shard-group"] = shards
    return found


FSDP2: Final = 2


def read_sharding(values: Watched, file: str) -> dict[str, Any]:
    """DeepSpeed's file, a table of FSDP, or neither."""
    given = values.get("deepspeed")
    if given is not None:
        return _zero(values, given, file)
    table = values.get("fsdp_config")
    words = values.get("fsdp")
    if not table and not words:
        values.get("fsdp_version")
        return {}
    if table is not None and not isinstance(table, Mapping):
        values.refuse("fsdp_config", "a table")
        return {}
    plain = {str(name).removeprefix("fsdp_"): value for name, value in (table or {}).items()}
    version = int(values.count("fsdp_version") or plain.get("version") or 1)
    plain.pop("version", None)
    inner = Watched(plain, Known("axolotl", "fsdp_config", (Known("accelerate", "fsdp_config"),)))
    values.inner["fsdp_config"] = inner
    listed = [str(word) for word in words] if isinstance(words, list) else str(words or "").split()
    wraps = "TRANSFORMER_BASED_WRAP" if "auto_wrap" in listed else "NO_WRAP"
    named = next((word.upper() for word in listed if word.upper() in STRATEGIES), None)
    # [ax loaders/model.py `_build_model`]: rank 0 loads into main memory, the others nothing
    on_host = version == FSDP2 and inner.flag("cpu_ram_efficient_loading") and values.flag("load_in_4bit")
    found = fsdp_options(inner, version=version, wrap=wraps, prefix="", strategy=named, offload="offload" in listed)
    return together(found, {"engine-option": ("loads_on_host=true",)} if on_host else {})


def _zero(values: Watched, given: Any, file: str) -> dict[str, Any]:
    """A table, or one of axolotl's own files by its name."""
    name = PurePosixPath(str(given)).name if isinstance(given, str) else ""
    if isinstance(given, Mapping):
        table = dict(given)
    elif name in DEEPSPEED:
        table = deepspeed.filled(DEEPSPEED[name])
    else:
        values.cannot("deepspeed", ELSEWHERE, file="deepspeed")
        return {"sharded-by": "deepspeed"}
    found = deepspeed.read(Config(file, "", table))
    for one in found.unread:
        if one.option not in ("micro-batch", "precision", "grad-accum"):
            values.refused[f"deepspeed.{one.name}"] = one._replace(name=f"deepspeed.{one.name}")
    inside = {key: value for key, value in found.options.items() if key not in ("engine", "precision")}
    return together(inside, {"sharded-by": "deepspeed", "engine-option": ("auto=false",)})


LORA_KERNELS: Final = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")

UNDROPPED: Final = "experts_without_dropout"

OF_ADAPTERS: Final = (
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear", "lora_target_parameters",
    "lora_modules_to_save", "lora_fan_in_fan_out", "lora_model_dir", "lora_on_cpu", "bnb_config_kwargs", *LORA_KERNELS,
    "lora_embedding_kernel", "peft_use_rslora", "peft_use_dora",
)
"""Names that say nothing without an adapter."""


ROUNDED: Final = {
    (None, "int4"): "int4", ("int8", "int4"): "int8-int4", ("mxfp4", "mxfp4"): "mxfp4", (None, "mxfp4"): "mxfp4",
}
"""`qat.activation_dtype` and `qat.weight_dtype` -> which layers round what [ax utils/quantization.py
`_make_qat_config`]; with int8 weights axolotl stops."""

GROUP: Final = 32
"""`qat.group_size` where nobody says it [ax utils/schemas/quantization.py]."""


def read_rounding(values: Watched) -> dict[str, Any]:
    """Training that is aware of a later quantisation; of NVFP4 torchao 0.17, which axolotl installs, rounds both sides
    or none, and axolotl asks for weights alone [torchao qat/fake_quantize_config.py `_infer_fake_quantize_configs`]."""
    if not values.get("qat"):
        return {}
    inner = values.section("qat", Known("axolotl", "qat"))
    inner.ignore("fake_quant_after_n_steps")  # the steps after it
    inner.must_be_off("quantize_embedding")
    kinds, group = (inner.text("activation_dtype"), inner.text("weight_dtype") or "int8"), inner.count("group_size")
    if "nvfp4" in kinds:
        inner.cannot("weight_dtype", "nvfp4 stops in torchao 0.17, which has no quantisation-aware training for "
                     "NVFP4 weights alone, and axolotl asks for no other; int8 activations with int4 weights, or "
                     "mxfp4, run")
    elif kinds not in ROUNDED:
        inner.cannot("weight_dtype", "weights of {} with activations of {} are not modelled", shown(kinds[1]),
                     shown(kinds[0]))
    else:
        return {"engine-option": (f"qat={ROUNDED[kinds]}", f"qat_group={group or GROUP}")}
    return {}


def kernel_notes(values: Watched, options: Mapping[str, Any]) -> list[str]:
    """LoRA's products in fused kernels, which axolotl has on where it can [ax `check_auto_enable_lora_kernels`]."""
    said = [values.flag(name) for name in (*LORA_KERNELS, "lora_embedding_kernel")]
    if "peft" not in options or (options["objective"] not in ("sft", "pretrain") and not any(said)):
        return []
    off = values.flag("trust_remote_code") or options.get("base-weights") == "int8" or options.get(
        "sharded-by") == "fsdp1"
    if not any(said) and (off or False in said):
        return []
    return ["axolotl's kernels of LoRA are counted as PEFT's own code, which keeps more; that is an upper bound"]


def read_adapters(values: Watched) -> dict[str, Any]:
    """LoRA over what the checkpoint has, or over a base that is packed while it loads [ax loaders/adapter.py]."""
    kind = values.get("adapter")
    if kind is None:
        values.ignore(*OF_ADAPTERS)
        return {}
    if kind not in ("lora", "qlora"):
        values.cannot("adapter", "{} is not modelled; lora and qlora are", shown(kind), option="peft")
        return {}
    found: dict[str, Any] = {"peft": "dora" if values.flag("peft_use_dora") else "lora"}
    if values.flag("peft_autocast_adapter_dtype") is False:
        found["adapter-dtype"] = "bf16"
    elif values.get("rl") is None and not values.flag("reward_model"):
        found["adapter-dtype"] = "fp32"  # those of TRL's trainers are as TRL makes them
    rank = values.count("lora_r")
    if rank is None:
        values.cannot("lora_r", "is not given; give --lora-rank", option="lora-rank")
    else:
        found["lora-rank"] = rank
    values.must_be_unset("lora_model_dir", "holds adapters whose own file says how large they are; give --lora-rank",
                         option="lora-rank")
    if targets := _targets(values):
        found["lora-targets"] = targets
    else:
        values.cannot("lora_target_modules", "is not given, nor is lora_target_linear; give --lora-targets",
                      option="lora-targets")
    found["lora-dropout"] = values.number("lora_dropout") or 0.0
    if found["lora-dropout"] and not values.get("lora_target_parameters"):
        # where PEFT itself stops [ax loaders/adapter.py `_patch_peft_param_wrapper_dropout`]
        found["engine-option"] = (f"{UNDROPPED}=true",)
    found |= without_none({"modules-to-save": modules_of(values.get("lora_modules_to_save"))})
    return together(found, _stored(values, kind))


def _targets(values: Watched) -> str:
    """Modules by their names, or one regular expression; every linear layer but the head beside them."""
    named = listed(values.get("lora_target_modules")) + listed(values.get("lora_target_parameters"))
    return ",".join([LINEAR_NAMES, *named] if values.flag("lora_target_linear") else named)


def _stored(values: Watched, kind: str) -> dict[str, Any]:
    """How frozen weights lie; norms and embeddings are cast back after kbit preparation [ax
    `_configure_embedding_dtypes`]."""
    four, eight = values.flag("load_in_4bit"), values.flag("load_in_8bit")
    model = str(values.get("base_model", ""))
    dtype = "float16" if values.flag("fp16") or values.flag("float16") else "bfloat16"
    loaded: dict[str, Any] = {"engine-option": (f"dtype={dtype}", "prepare_kbit=none")}
    named = QUANTISED.search(model)
    if named is not None and named[0].lower() not in ("bnb",):
        stored = STORED.get(named[0].lower())
        if stored is None:
            values.cannot("base_model", "{} weights are not modelled", named[0], option="base-weights")
            return {}
        values.flag("gptq")
        return {"base-weights": stored}
    if values.flag("llama4_linearized_experts") and re.search(r"(?i)llama-?4", model):
        loaded = {"engine-option": (*loaded["engine-option"], "linear_experts=true")}
    if values.flag("quantize_moe_experts"):
        loaded = {"engine-option": (*loaded["engine-option"], "pack_experts=true")}
    if kind == "qlora" or named is not None:
        double = values.section("bnb_config_kwargs").flag("bnb_4bit_use_double_quant")
        if kind == "qlora" and not four:
            values.cannot("load_in_4bit", "must be true for qlora, as axolotl says", option="base-weights")
        return loaded | {"base-weights": "nf4" if double is False else "nf4-dq"}
    if eight:
        return loaded | {"base-weights": "int8"}
    if four:
        values.cannot("load_in_4bit", "packs nothing for adapter: lora, axolotl says qlora for that",
                      option="base-weights")
    return {"engine-option": (f"dtype={dtype}",)}
