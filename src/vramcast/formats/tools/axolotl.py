"""axolotl's YAML: one file of model, adapters, data, Trainer and sharding.

[ax] axolotl-ai-cloud/axolotl 0.18.0 src/axolotl: utils/schemas/*.py, utils/config/__init__.py `normalize_config`,
`resolve_dtype`, loaders/model.py `ModelLoader`, loaders/adapter.py, core/builders/base.py, integrations/*/args.py,
pyproject.toml, deepspeed_configs/*.json
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.reading import Config, Reading, Unread, lengths_of, shown, together
from vramcast.formats.tools.axolotl_adapters import (
    LORA_KERNELS,
    UNDROPPED,
    kernel_notes,
    read_adapters,
    read_degrees,
    read_rounding,
    read_sharding,
)
from vramcast.formats.tools.transformers import LISA, OPTIMS, Optim, optimizer_of
from vramcast.formats.tools.trl import ALONE, generation_of
from vramcast.formats.watched import Known, Watched

AXOLOTL: Final = Known("axolotl", "config")

RELEASE: Final = "0.18.0"
ENGINE: Final = "huggingface@5.14"
BESIDE: Final = ("accelerate=1.13", "trl=1.8")
"""What that release installs [ax pyproject.toml]."""

SEQUENCE: Final = 512
"""sequence_len where nobody says it [ax schemas/config.py]."""

OBJECTIVES: Final = {"dpo": "dpo", "ipo": "dpo", "orpo": "dpo", "kto": "kto", "grpo": "grpo", "gdpo": "grpo"}
"""`rl` -> what is optimised; IPO is another loss of the same logits, ORPO is TRL's [ax core/trainers/{dpo,trl}]."""

LEGACY: Final = {
    "xformers_attention": "xformers", "sage_attention": "sage", "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager",
}
"""Switch of older files -> `attn_implementation`, the first that is on wins [ax schemas/enums.py]."""

KERNELS: Final = {
    "flash_attention_2": "flash", "flash_attention_3": "flash", "flex_attention": "flash", "xformers": "efficient",
    "sdpa": None, "eager": "eager",
}
"""`attn_implementation` -> kernel; None: as PyTorch chooses. Flex keeps what flash does: output and log-sum-exp."""

HUB_FLASH: Final = ("kernels-community/flash-attn2", "kernels-community/flash-attn3",
                    "kernels-community/vllm-flash-attn3")

OWN_OPTIMS: Final[dict[str, tuple[Optim, ...]]] = {
    "muon": (Optim("muon"),), "came_pytorch": (Optim("came"),), "ao_adamw_4bit": (Optim("adamw-4bit"),),
    "adamw_torch_8bit": (Optim("adamw-8bit-torchao"),), "ao_adamw_8bit": (Optim("adamw-8bit-torchao"),),
    "ao_adamw_fp8": (Optim("adamw-8bit-torchao"),),
}
"""`optimizer` beside the Trainer's own [ax core/builders/base.py `_configure_custom_optimizer`]."""

LIGER: Final = {
    "liger_rope": "rope", "liger_rms_norm": "rms_norm", "liger_glu_activation": "swiglu", "liger_swiglu": "swiglu",
    "liger_fused_linear_cross_entropy": "fused_linear_cross_entropy",
}
"""Switch of the plugin -> Liger's kernel [ax integrations/liger/args.py]."""

PLUGINS: Final = {
    "axolotl.integrations.liger.LigerPlugin": "liger",
    "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin": "cut_cross_entropy",
    "axolotl.integrations.swanlab.SwanLabPlugin": "", "axolotl.integrations.lm_eval.LMEvalPlugin": "",
    "axolotl.integrations.kernels.KernelsPlugin": "kernels",
    "axolotl.integrations.diffusion.DiffusionPlugin": "diffusion",
    "axolotl.integrations.expert_parallel.ExpertParallelPlugin": "expert_parallel",
}
"""Plugins that only print, and those whose switches are read apart."""

UPPER_BOUNDS: Final = {
    "tiled_mlp": "the MLP is counted whole; in tiles of 32,768 tokens, made again in backward, it keeps less: that is "
                 "an upper bound",
    "relora": "a step takes what LoRA's does; one matrix after the other is merged between steps",
    "use_eaft": "as much as the usual loss, whose logits are written out in fp32",
    "fused_attn_kernel": "norms, rotary embeddings and adapters of queries, keys and values are counted as "
                         "transformers' and PEFT's own code, which keeps more; that is an upper bound",
    "flash_attn_fuse_mlp": "gate and up are counted as transformers' own code, which keeps more than xformers' "
                           "SwiGLU does; that is an upper bound",
}
"""Switches whose code keeps no more than what is counted for it -> what is said [ax monkeypatch/loss/eaft.py,
tiled_mlp/*.py, kernels/*attn*.py, monkeypatch/{llama_attn_hijack_flash,relora}.py]. EAFT looks at the 20 largest logits
of each token."""

NARROW: Final = ("leaves embeddings, head and norms in fp32 beside layers in bf16, which is modelled under autocast "
                 "alone")

REMOVED: Final = ("max_packed_sequence_len", "flash_attn_rms_norm")
"""Names of older files at which this release stops [ax utils/schemas/deprecated.py]."""

BESIDE_TOWERS: Final = (frozenset({"model.language_model", "lm_head"}),
                        frozenset({"model.language_model", "lm_head", "embed_tokens"}))
"""`unfrozen_parameters` of all that is neither tower nor projector, of networks that have them: beginnings of names, in
which a dot is a dot [ax utils/freeze.py `LayerNamePattern`]."""

STALE: Final = ("unfrozen_parameters: names with block_sparse_moe match nothing in transformers 5, which calls it mlp: "
                "embedding and head learn alone")

ENDS: Final = frozenset({"model.embed_tokens.weight", "lm_head.weight"})
"""`unfrozen_parameters` of embedding and head."""

RENAMED: Final = ".block_sparse_moe."
"""In names of Mixtral's experts until transformers 5, which calls them `mlp` [HF models/mixtral/modeling_mixtral.py,
conversion_mapping.py]."""

LANGUAGE: Final = "language_model"
"""In names of modules: not of a tower."""

TOWERS: Final = Unread("processor_type", "makes images or sounds of sizes that the samples decide; give --image-size",
                       option="image-size", of_towers=True, of_sizes=False)


def read(config: Config) -> Reading:
    """What `axolotl train` does."""
    values = Watched(config.table or {}, AXOLOTL)
    notes: list[str] = [
        Note("axolotl {} is assumed, which installs transformers 5.14, accelerate 1.13 and TRL 1.8", RELEASE)
    ]
    _switched_off(values)
    options: dict[str, Any] = {"engine-option": BESIDE} | _task(values)
    if model := values.text("base_model"):
        options["model"] = model
    options["seq-len"] = values.count("sequence_len") or SEQUENCE
    whole = values.flag("sample_packing") or values.flag("pad_to_sequence_len")
    if options.get("objective") == "sft":
        options |= lengths_of(packed=whole)
    notes += [] if "sequence_len" in values else [Note("sequence_len is not given: {}, as axolotl has it", SEQUENCE)]
    plugins = _plugins(values)
    sharded, batch = read_sharding(values, config.name), _batch(values)
    whole = values.get("adapter") is None and "sharded-by" not in sharded
    options = together(
        options, _attention(values), read_adapters(values), _precision(values, whole, "cut_cross_entropy" in plugins),
        _recompute(values), _losses(values, plugins), _optimizer(values), sharded, read_degrees(values),
        read_rounding(values),
    )
    options["engine"] = ENGINE
    options.setdefault("loss", "eager")  # its trainer is not TRL's [ax core/trainers/base.py]
    if options.get("compile") and options["loss"] == "eager":
        del options["loss"]
    _network(values, options)
    options = together(options, _unfrozen(values), _float8(values, options))
    if "diffusion" in plugins:
        options = _diffused(values, options)
        notes.append("diffusion: as many logits as if every position were masked: that is an upper bound")
    notes += kernel_notes(values, options)
    notes += [Note("{}: {}", name, why) for name, why in UPPER_BOUNDS.items() if values.flag(name)]
    if "peft" not in options and values.count("lisa_n_layers"):
        values.ignore("lisa_step_interval", "lisa_layers_attribute")
        notes.append(Note(LISA, "lisa_n_layers"))
    towers = _towers(values, options)
    unread = (*values.unread(), *towers)
    return Reading("axolotl", options, {}, batch, unread, tuple(notes), parts={UNDROPPED: "experts"},
                   **_by_card(values, options))


def _switched_off(values: Watched) -> None:
    """Switches that are off, and empty tables, say nothing, but for those that axolotl has on where nobody says."""
    for name, value in values.items():
        entry = AXOLOTL.entry(name)
        off = value is False and entry is not None and entry.kind in ("bool", "any") and entry.default is not True
        if (off and name not in (*LORA_KERNELS, "bf16", "tf32")) or value in ({}, [], ""):
            values.get(name)


REWARDS: Final = {"reward_model": ("reward", 1), "process_reward_model": ("tagging", 2)}
"""Switch -> what is optimised, by how many labels: a score of a sample, or whether each step of it is right
[ax core/builders/causal.py `HFCausalTrainerBuilder._get_trainer_cls`]."""


def _task(values: Watched) -> dict[str, Any]:
    """What is optimised; of a data set in a stream every token."""
    for name, (objective, labels) in REWARDS.items():
        if values.flag(name):
            values.only("num_labels", labels)
            values.get("model_type")
            return {"objective": objective}
    if values.get("rl") is not None:
        objective = values.one_of("rl", OBJECTIVES, lower=True, option="objective") or "dpo"
        return {"objective": objective} | (_generation(values) if objective == "grpo" else _preferences(values))
    values.get("rl")
    streams = values.get("pretraining_dataset") is not None
    return {"objective": "pretrain" if streams else "sft"}


def _preferences(values: Watched) -> dict[str, Any]:
    """Liger's own loss, and a reference that is asked ahead, are of DPO alone."""
    values.only("dpo_use_liger_kernel", False)
    values.only("dpo_padding_free", False)
    values.must_be_off("precompute_ref_log_probs")
    return ALONE if str(values.get("rl")).lower() == "orpo" else {}


def _generation(values: Watched) -> dict[str, Any]:
    """Prompts of `sequence_len`, and what TRL makes of each; vLLM on cards of its own, unless it shares them."""
    inner = values.section("trl", Known("axolotl", "trl"))
    if inner.flag("use_vllm") and inner.get("vllm_mode") != "server":  # as TRL has it where nobody says it
        inner.cannot("use_vllm", "puts a server on the same cards, which is not modelled; vllm_mode: server is")
    inner.must_be_off("use_liger_loss")
    values.section("vllm", Known("axolotl", "vllm"))
    values.inner["vllm"].ignore("*")
    found: dict[str, Any] = {"completion-len": inner.count("max_completion_length") or 256}
    beta = inner.number("beta")
    if beta is None:
        beta = values.number("rl_beta")
    found |= {} if beta is None else {"engine-option": (f"beta={beta:g}",)}
    served = {"engine-option": ("steps_per_generation=0",)} if inner.flag("use_vllm") else generation_of(inner)
    return together(found, served)


def _batch(values: Watched) -> dict[str, int]:
    """Two of micro_batch_size, gradient_accumulation_steps and batch_size of one card [ax `normalize_config`]."""
    micro, steps = values.count("micro_batch_size"), values.count("gradient_accumulation_steps")
    of_card = values.count("batch_size")
    if of_card is not None and micro and steps is None:
        steps = max(1, of_card // micro)
    elif of_card is not None and steps and micro is None:
        micro = max(1, of_card // steps)
    values.must_be_off("auto_find_batch_size", "leaves the batch to the run; give --micro-batch", option="micro-batch")
    evaluated = values.count("eval_batch_size")
    if evaluated and evaluated > (micro or 1) and values.get("val_set_size"):
        values.cannot("eval_batch_size", "evaluation of {} samples at once, where a step has {}, is not modelled",
                      evaluated, micro or 1)
    longer = values.count("eval_sequence_len")
    if longer and longer > (values.count("sequence_len") or SEQUENCE):
        values.cannot("eval_sequence_len", "evaluation of longer samples than a step has is not modelled")
    return {"micro": micro or 1, "accumulation": steps or 1}


def _precision(values: Watched, whole: bool, cuts: bool) -> dict[str, Any]:
    """Weights in 16 bits under autocast, which `full`, `float16` and 8-bit bases leave out; without any width fp32 [ax
    `resolve_dtype`, core/builders/base.py `_configure_precision_settings`].

    Args:
        whole: every weight learns, and no rank shares them
        cuts: cut cross entropy, which narrows embeddings, too
    """
    wide, half = values.get("bf16", "auto"), values.flag("fp16")
    narrow, alone = values.flag("float16"), wide == "full" and not values.flag("bfloat16")
    values.get("tf32")
    values.get("float32")
    values.flag("bfloat16")
    if wide in (True, "true", "full") or values.flag("bfloat16") or (wide == "auto" and not half):
        if whole:
            if _kernel_name(values) in (None, "sdpa", "eager") and not cuts:
                if alone:
                    values.cannot("bf16", NARROW, option="precision")
                return {"precision": "bf16", "engine-option": ("autocast=true", "fp32_modules=true")}
            return {"precision": "bf16"} | ({} if alone else {"engine-option": ("autocast=true",)})
        return {"precision": "bf16" if alone else "amp-bf16"}
    if wide not in ("auto", False, "false"):
        values.refuse("bf16", "true, false, auto or full", option="precision")
    if half and whole:
        values.cannot("fp16", "over weights of 16 bits stops at the scaler of gradients; use bf16", option="precision")
    if half or narrow or values.flag("load_in_8bit"):
        return {"precision": "amp-fp16" if half else "fp16"}
    return {"precision": "tf32" if values.get("tf32") in (True, "auto", "true") else "fp32"}


def _diffused(values: Watched, options: dict[str, Any]) -> dict[str, Any]:
    """A loss of masked positions alone, under a mask of all pairs [ax integrations/diffusion/trainer.py]."""
    values.section("diffusion").ignore("*")  # how much is masked, and samples between steps
    if options.keys() & {"sharded-by", "compile"} or options.get("loss") != "eager" or options["objective"] not in (
            "sft", "pretrain"):
        values.cannot("diffusion", "is modelled without sharding, compilation and fused losses")
    if _kernel_name(values) not in (None, "sdpa"):
        values.cannot("attn_implementation", "reads no mask of pairs of positions; sdpa does", option="attention")
    options = {name: value for name, value in options.items() if name != "attention"}
    return together(options, {"engine-option": ("masked_diffusion=true", "padded=true")})


def _float8(values: Watched, options: Mapping[str, Any]) -> dict[str, Any]:
    """torchao's linear layers under Accelerate's bf16; without torch_compile axolotl only warns [ax
    monkeypatch/trainer_accelerator_args.py, utils/schemas/validation.py `check_fp8_config`]."""
    gathers = values.flag("fp8_enable_fsdp_float8_all_gather")
    if not values.flag("fp8"):
        return {}
    if not (gathers and options.get("compile") and options.get("sharded-by") == "fsdp2"):
        values.cannot("fp8", "is modelled under FSDP2 with fp8_enable_fsdp_float8_all_gather and torch_compile",
                      option="precision")
    return {"engine-option": ("float8_all_gather=true",)}


def _by_card(values: Watched, options: Mapping[str, Any]) -> dict[str, Any]:
    """`bf16: auto` is fp16 on cards before Ampere."""
    if values.get("bf16", "auto") != "auto" or options.get("precision") not in ("bf16", "amp-bf16"):
        return {}
    return {"without_bf16": {"precision": "amp-fp16" if "peft" in options else None}}


def _recompute(values: Watched) -> dict[str, Any]:
    """Whole layers. Without kwargs checkpoints are reentrant, but for preferences, frozen parts, activations
    on the host and Gemma 4 [ax utils/config/__init__.py `normalize_config`]; where some are, not unless it is said.

    Activations that wait on the host take the place of recomputation where adapters learn
    [ax loaders/model.py `_apply_activation_checkpointing`].
    """
    given, inner = values.get("gradient_checkpointing"), values.section("gradient_checkpointing_kwargs")
    unasked = not any(values.get(name) is not None for name in ("gradient_checkpointing_kwargs", "rl",
                                                                "unfrozen_parameters"))
    gemma4 = re.search(r"(?i)gemma-?4", str(values.get("base_model"))) is not None
    offload = values.get("activation_offloading") or (given in ("offload", "offload_disk") and given)
    said = inner.flag("use_reentrant")
    reentrant = unasked and not gemma4 and not offload if said is None else said
    values.must_be_off("layer_offloading")
    values.get("selective_checkpointing")
    values.must_be_empty("selective_checkpointing", option="recompute")
    if given not in (None, True, False, "true", "false", "offload", "offload_disk", "unsloth"):
        values.refuse("gradient_checkpointing", "true, false, offload or offload_disk", option="recompute")
    if given in ("offload_disk",) or offload == "disk":
        values.cannot("gradient_checkpointing" if given == "offload_disk" else "activation_offloading",
                      "writes activations to a disk, which is not modelled")
    if given in (None, False, "false"):
        return {"recompute": "none"}
    full = {"recompute": "full", "engine-option": (f"reentrant={str(reentrant).lower()}",)}
    if not offload:
        return full
    if values.get("adapter") is not None and offload != "hidden_states":
        return {"recompute": "none", "offload-activations": True}
    return full | {"offload-activations": True}


def _kernel_name(values: Watched) -> str | None:
    legacy = next((LEGACY[name] for name in LEGACY if values.flag(name)), None)
    return values.text("attn_implementation") or legacy


def _attention(values: Watched) -> dict[str, Any]:
    """The kernel; packed samples run without a mask where PyTorch's own would need one [ax `sdpa_varlen`]."""
    given = _kernel_name(values)
    if given is None:
        return {}
    if given in HUB_FLASH:
        return {"attention": "flash"}
    if given not in KERNELS:
        values.cannot("attn_implementation", "{} is not one of {}", shown(given), ", ".join(KERNELS),
                      option="attention")
        return {}
    packed = values.flag("sample_packing") and values.flag("sdpa_varlen") is not False
    if given == "sdpa" and packed:
        return {"attention": "flash"}
    if values.flag("gemma4_hybrid_attn_impl"):
        return {}  # flash where heads are narrow enough, PyTorch's elsewhere: both keep the same
    kernel = KERNELS[given]
    return {"attention": kernel} if kernel else {}


def _plugins(values: Watched) -> frozenset[str]:
    """What plugins switch on."""
    found: set[str] = set()
    for name in values.get("plugins") or ():
        plain = str(name)
        if plain not in PLUGINS:
            values.cannot("plugins", "{} may change memory or time and is not modelled", plain.rpartition(".")[2][:60])
            continue
        found.add(PLUGINS[plain])
    if values.flag("cut_cross_entropy") is False:
        found.discard("cut_cross_entropy")
    return frozenset(found)


def _losses(values: Watched, plugins: frozenset[str]) -> dict[str, Any]:
    """Whose kernels run beside PyTorch's."""
    found: dict[str, Any] = {}
    on = [kernel for name, kernel in LIGER.items() if values.flag(name) and "liger" in plugins]
    for name in ("liger_layer_norm", "liger_rms_norm_gated", "liger_use_token_scaling"):
        values.flag(name)
    fuses = values.flag("liger_cross_entropy") and "liger" in plugins
    if "cut_cross_entropy" in plugins:
        found |= {"loss": "fused_linear", "engine-option": ("cut_cross_entropy=true",)}
    elif values.flag("chunked_cross_entropy"):
        values.get("chunked_cross_entropy_num_chunks")
        values.cannot("chunked_cross_entropy", option="loss")
    elif LIGER["liger_fused_linear_cross_entropy"] in on:
        found["loss"] = "fused_linear"
    elif fuses:
        found["loss"] = "fused"
    kernels = [name for name in on if name != LIGER["liger_fused_linear_cross_entropy"]]
    if kernels:
        found = together(found, {"engine-option": (f"liger={'+'.join(kernels)}",)})
    if values.get("torch_compile") in (True, "auto", "true"):
        values.only("torch_compile_backend", "inductor")
        values.only("torch_compile_mode", "default")
        found["compile"] = True
    else:
        values.ignore("torch_compile_backend", "torch_compile_mode", "torch_compile_options")
    return found


def _optimizer(values: Watched) -> dict[str, Any]:
    """The Trainer's optimizers by the same names, and axolotl's own."""
    name, given = values.get("optimizer", "adamw_torch_fused"), values.get("optim_args")
    if name in OWN_OPTIMS:
        return {"optimizer": OWN_OPTIMS[name][0].optimizer}
    if name not in OPTIMS:
        values.cannot("optimizer", "{} is not modelled", shown(name), option="optimizer")
        return {}
    text = ",".join(f"{key}={value}" for key, value in given.items()) if isinstance(given, Mapping) else given
    inner = Watched({"optim": name} | ({"optim_args": text} if text else {}))
    found = optimizer_of(inner)
    for one in inner.unread():
        values.cannot({"optim": "optimizer"}.get(one.name, one.name), one.why, option=one.option)
    values.only("optim_target_modules", "all_linear", "all-linear")
    return found


def _towers(values: Watched, options: dict[str, Any]) -> tuple[Unread, ...]:
    """Images, where there is a processor that makes some.

    Those of a frozen tower take positions of the sequence, and it keeps nothing of them for backward.
    """
    if values.text("processor_type") is None:
        options["images"] = 0
        return ()
    if (size := values.count("image_size")) is not None:
        options["image-size"] = size
        return ()
    return () if LANGUAGE in str(options.get("lora-targets", "")) else (TOWERS,)


def _unfrozen(values: Watched) -> dict[str, Any]:
    """What alone learns, where that is a network without its tower and projector; others of its parts are not modelled.

    Axolotl asks the names after it has added adapters, which put `base_model.model.` before them
    [ax train.py `setup_model_and_tokenizer`, utils/freeze.py `freeze_layers_except`].
    """
    for name in REMOVED:
        values.must_be_empty(name, "axolotl {} stops at it", RELEASE)
    given = values.get("unfrozen_parameters")
    patterns = [str(one) for one in (given if isinstance(given, list) else [given])] if given else []
    if not patterns:
        return {}
    mixtral = "mixtral" in str(values.get("base_model", "")).lower()
    stale = [one for one in patterns if mixtral and RENAMED in one]
    if values.get("adapter") is not None:
        values.cannot("unfrozen_parameters", "is compared beside an adapter with names that begin with "
                      "base_model.model, so it decides whether the adapter learns; leave it out")
    elif frozenset(one.removeprefix("^").removesuffix(".*") for one in patterns) in BESIDE_TOWERS:
        return {"freeze": "vision,projector"}
    elif {one.strip("^$") for one in patterns if one not in stale} == ENDS:
        if stale:
            values.assumed.append(STALE)
        return {"freeze": "layers"}
    else:
        values.cannot("unfrozen_parameters")
    return {}


def _experts(values: Watched, options: dict[str, Any]) -> None:
    """Whose products of experts run: transformers 5's in one grouped product, or ScatterMoE's, which read bf16 or what
    bitsandbytes packed; of other checkpoints nothing tells how experts are stored [ax integrations/kernels/args.py]."""
    backend = values.get("expert_backend") or ("scattermoe" if values.flag("use_scattermoe") else None)
    if backend != "scattermoe":
        values.only("experts_implementation", "grouped_mm")
    elif options.get("peft") is None or "pack_experts=true" in options.get("engine-option", ()):
        values.flag("use_kernels")
        values.only("moe_bnb_fast", True)
        values.only("experts_implementation", "scattermoe")
        options.update(together(options, {"engine-option": ("experts=scattermoe",)}))
    else:
        values.cannot("use_scattermoe", "beside adapters over a checkpoint whose experts may be packed by somebody "
                      "else is not modelled; qlora with quantize_moe_experts is")


def _network(values: Watched, options: dict[str, Any]) -> None:
    """What is changed of the network."""
    changed = values.section("model_config")
    if not set(changed) - {"output_router_logits", "rope_scaling", "rope_theta"}:  # a loss beside, of a few numbers
        changed.ignore("*")
    _experts(values, options)
    if values.section("model_quantization_config_kwargs").flag("dequantize"):
        values.only("model_quantization_config", "Mxfp4Config")
    if values.flag("freeze_mm_modules") and LANGUAGE not in str(options.get("lora-targets", "")):
        values.cannot("freeze_mm_modules")
