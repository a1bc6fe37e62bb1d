"""xtuner's configurations in Python that MMEngine runs, and the command that starts one of them.

[xt] InternLM/xtuner at b934f462 xtuner/tools/train.py, xtuner/model/sft.py `SupervisedFinetune`,
xtuner/tools/utils.py `auto_dtype_of_deepspeed_config`, requirements/runtime.txt (transformers 4.56.0)
[mm] open-mmlab/mmengine optim/optimizer/amp_optimizer_wrapper.py `AmpOptimWrapper`: autocast and a loss scale
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.formats.python_calls import names_of
from vramcast.formats.reading import (
    ELSEWHERE,
    Config,
    Reading,
    Unread,
    arguments,
    command_of,
    lengths_of,
    modules_of,
    shown,
    table,
    together,
    without_none,
)
from vramcast.formats.watched import Known, Watched

ENGINE: Final = "huggingface@4.56"
"""Its networks are transformers', of the release that xtuner names."""

STAGES: Final = {
    "deepspeed_zero1": "optimizer", "deepspeed_zero2": "optimizer+gradients", "deepspeed_zero3": "everything",
}
"""Files that it has -> what DeepSpeed shards [xt configs/deepspeed]; with `_offload` behind, on the host."""

RUN: Final = ("strategy", "runner_type", "model_wrapper_cfg", "compile", "training_args", "load_from")
"""What changes how MMEngine's runner runs a configuration; its other names are read below or are data, hooks and
schedules [mmengine runner/runner.py `Runner.from_cfg`]."""

NO_DEEPSPEED: Final = (
    "xtuner's --deepspeed is not given, without which MMEngine runs DDP; give its JSON with another --from, or the "
    "command behind --"
)

IN_FP32: Final = (
    "weights as transformers 4.56 loads them unasked: where flash_attn is installed, which xtuner does not require, it "
    "loads bf16; --precision says so"
)


def read(config: Config) -> Reading:
    """A configuration, or the command that starts one."""
    return _command(config) if config.name.endswith(".py") is False and "xtuner train" in config.text else _file(config)


def _command(config: Config) -> Reading:
    """The file that the command names stands elsewhere; DeepSpeed's by a name of xtuner's own, too."""
    command = command_of(config, lambda words: "xtuner" in words and "train" in words)
    words = command.words
    name = words[words.index("train") + 1] if "train" in words[:-1] else ""
    values = Watched(arguments(words), Known("xtuner", "command"), command.undecided)
    stage = values.text("deepspeed") or ""
    options: dict[str, Any] = {}
    if stage.removesuffix("_offload") in STAGES:
        host = {"offload-optimizer": "cpu", "offload-parameters": "cpu"} if "zero3" in stage else {
            "offload-optimizer": "cpu"}
        options = {"engine": "deepspeed", "shards": STAGES[stage.removesuffix("_offload")],
                   **(host if stage.endswith("_offload") else {})}
    elif stage:
        values.cannot("deepspeed", ELSEWHERE, file="deepspeed")
    unread = [*command.unread, *values.unread()]
    if name:
        unread.append(Unread(name[:80], ELSEWHERE, file="xtuner"))
    return Reading("xtuner-command", options, unread=tuple(unread), notes=command.notes)


def _file(config: Config) -> Reading:
    names = names_of(config.text, config.name)
    values = Watched({name: value for name, value in names.items() if name in RUN or name in (
        "model", "optim_wrapper", "train_dataloader", "sequence_parallel_size", "framework")})
    if values.get("framework") not in (None, "mmengine"):
        values.cannot("framework", "runs transformers' Trainer, whose arguments are not read here")
    values.get("load_from")
    options: dict[str, Any] = {"engine": ENGINE, "loss": "eager", "optimizer-kernel": "foreach"}
    model = _model(values.section("model"))
    options = together(options, {"engine-option": ("converts_outputs=false",)}, model)
    places = TOWER_POSITIONS.get(options.get("vision-tower", ""), 0)
    options |= _samples(values.section("train_dataloader"), pairs=options["objective"] in PAIRED, places=places)
    if (ranks := values.count("sequence_parallel_size") or 1) > 1:
        options |= {"cp": ranks, "cp-kind": "ulysses"}  # [xt parallel/sequence/attention.py]
    optimizer, steps = _optimizer(values.section("optim_wrapper", Known("xtuner", "optim_wrapper")))
    options |= optimizer
    batch = {"accumulation": steps}
    micro = values.inner["train_dataloader"].count("batch_size")
    batch |= {"micro": micro} if micro else {}
    learned = "peft" in options
    notes = (NO_DEEPSPEED,) if learned else (NO_DEEPSPEED, IN_FP32)
    return Reading("xtuner", options, {}, batch, tuple(values.unread()), notes,
                   under_deepspeed={"precision": "amp-bf16"})


TOWER_POSITIONS: Final = {"openai/clip-vit-large-patch14-336": 576}
"""Image encoder -> positions that take the place of an image's token [xt model/utils.py
`prepare_inputs_labels_for_multimodal`; model/llava.py leaves the class token out]."""

PIXEL_GRADIENTS: Final = ("follows_inputs=true",)
"""Beside checkpoints every embedding's output needs gradients, a frozen tower's, too [xt model/llava.py `__init__`]."""


def _llava(model: Watched) -> dict[str, Any]:
    """A language model behind an image encoder and two linears, which learn; each of the others as it says.

    Encoder and linears are loaded in fp32, where nobody says a type [xt model/llava.py].
    """
    model.get("pretrained_pth"), model.get("max_position_embeddings")
    model.only("visual_select_layer", -2)
    model.only("projector_depth", 2)
    seen = model.section("visual_encoder", Known("xtuner", "visual_encoder"))
    seen.only("type", "CLIPVisionModel.from_pretrained")
    tower = seen.text("pretrained_model_name_or_path")
    if tower not in TOWER_POSITIONS:
        seen.cannot("pretrained_model_name_or_path", "{} is not modelled", shown(tower))
    frozen = [part for part, name in (("main", "freeze_llm"), ("vision", "freeze_visual_encoder")) if model.flag(name)]
    found: dict[str, Any] = {"objective": "sft", "vision-tower": tower, "recompute": "full",
                             "engine-option": ("reentrant=true", *PIXEL_GRADIENTS)}
    if model.flag("use_activation_checkpointing") is False:
        found = {**found, "recompute": "none", "engine-option": ()}
    network = model.section("llm")
    found["model"] = network.text("pretrained_model_name_or_path")
    network.only("type", *LOADERS)
    network.get("trust_remote_code"), network.get("torch_dtype")
    found |= {"attention": kernel} if (kernel := network.one_of("attn_implementation", KERNELS)) else {}
    beside: tuple[str, ...] = ("learns_beside=projector", "whole_towers=true")
    if model.get("llm_lora") is None and network.get("quantization_config") is not None and "main" in frozen:
        found |= {"peft": "modules", "base-weights": _packed(network)}
        return together(found, {"engine-option": (*beside, "prepare_kbit=none")})
    adapted = _adapters(model, network, name="llm_lora")
    if not adapted:
        model.must_be_unset("visual_encoder_lora", "beside a language model whose weights learn is not modelled")
        return found | ({"freeze": ",".join(frozen)} if frozen else {})
    if model.get("visual_encoder_lora") is not None:
        lora = model.section("visual_encoder_lora", Known("xtuner", "lora"))
        lora.must_be_unset("target_modules", "of an image encoder are not read; all of its linear layers are counted")
        lora.get("lora_dropout")
        adapted["lora-targets"] += "," + ",".join(f"vision.{word}" for word in TOWER_WORDS)
        beside += (f"tower_rank={lora.count('r') or 8}",)
    return together(found, adapted, {"engine-option": beside})


TOWER_WORDS: Final = ("attention.q", "attention.k", "attention.v", "attention.out", "mlp.up", "mlp.down")
"""Linear layers of CLIP's encoder [xt model/utils.py `find_all_linear_names`]."""


KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "SupervisedFinetune": ("sft", ()), "RewardModel": ("reward", ()), "DPO": ("dpo", ("log_probs=behind",)),
    "ORPO": ("dpo", ("log_probs=whole+nll", "precompute_ref_log_probs=true")),
}
"""Class of the model -> objective and options of the engine; ORPO asks no reference [xt model/{dpo,orpo,reward}.py]."""

PAIRED: Final = ("dpo", "reward")
"""Objectives of pairs: packed ones stand behind each other in one sample."""

OF_LOSSES: Final = ("loss_type", "beta", "label_smoothing", "reward_token_id", "penalty_type", "penalty_weight")


def _model(model: Watched) -> dict[str, Any]:
    """The network, its adapters and how its layers are run again."""
    kind = str(model.get("type"))
    if kind == "LLaVAModel":
        return _llava(model)
    if kind not in KINDS:
        model.cannot("type", "{} is not modelled; {} are", shown(kind), ", ".join((*KINDS, "LLaVAModel")))
    objective, trainer = KINDS.get(kind, ("sft", ()))
    for name in OF_LOSSES if objective != "sft" else ():
        model.get(name)
    model.must_be_unset("ref_llm", "is a reference of its own, which is not read")
    found: dict[str, Any] = {"recompute": "full", "engine-option": ("reentrant=true", *trainer), "objective": objective}
    if model.flag("use_activation_checkpointing") is False:
        found |= {"recompute": "none", "engine-option": trainer}
    if model.flag("use_varlen_attn"):
        found["attention"] = "flash"
    model.must_be_unset("tokenizer", "may add rows to the embedding")
    model.get("peft_model"), model.get("max_position_embeddings")  # where adapters begin; rotary tables
    network = model.section("llm")
    found["model"] = network.text("pretrained_model_name_or_path")
    network.only("type", *LOADERS)
    network.get("trust_remote_code"), network.get("torch_dtype")  # PEFT makes float32 of what it says [peft other.py]
    found |= {"attention": kernel} if (kernel := network.one_of("attn_implementation", KERNELS)) else {}
    return together(found, _adapters(model, network))


OF_CROSS_ATTENTION: Final = ("q_attn",)
"""A module that decoders lack, so that PEFT passes over its name [transformers models/gpt_bigcode/
modeling_gpt_bigcode.py `GPTBigCodeAttention.__init__`]."""

LOADERS: Final = tuple(f"{name}ForCausalLM.from_pretrained" for name in ("AutoModel", "Mistral"))

KERNELS: Final = {"flash_attention_2": "flash", "sdpa": None, "eager": "eager"}


def _packed(network: Watched) -> str | None:
    """What bitsandbytes makes of the weights, where it does."""
    if network.get("quantization_config") is None:
        return "int8" if network.flag("load_in_8bit") else None
    packed = network.section("quantization_config", Known("xtuner", "quantization_config"))
    base = "int8" if packed.flag("load_in_8bit") else None
    if packed.flag("load_in_4bit"):
        packed.only("bnb_4bit_quant_type", "nf4")
        base = "nf4-dq" if packed.flag("bnb_4bit_use_double_quant") else "nf4"
    return base


def _adapters(model: Watched, network: Watched, name: str = "lora") -> dict[str, Any]:
    """LoRA beside frozen weights that `prepare_model_for_kbit_training` makes float32, packed ones left out."""
    base = _packed(network)
    if model.get(name) is None:
        if base is not None:
            network.cannot("quantization_config", "packs weights that no adapter stands beside")
        if dict.get(network, "torch_dtype") not in (None, "torch.float32"):
            network.cannot("torch_dtype", "learns in 16 bits under autocast in fp16, which is modelled under DeepSpeed",
                           file="deepspeed", option="precision")
        return {}
    lora = model.section(name, Known("xtuner", "lora"))
    chosen = lora.get("target_modules")
    named = [str(one) for one in chosen if one not in OF_CROSS_ATTENTION] if isinstance(chosen, list) else []
    targets = ",".join(named) if isinstance(chosen, list) else chosen or "all-linear"
    return without_none({
        "peft": "lora", "lora-rank": lora.count("r") or 8, "lora-dropout": lora.number("lora_dropout"),
        "lora-targets": targets, "adapter-dtype": "fp32", "base-weights": base,
        "modules-to-save": modules_of(lora.get("modules_to_save")),
        "engine-option": ("prepare_kbit=peft",) if base else ("dtype=float32",),
    })


def _samples(loader: Watched, *, pairs: bool, places: int = 0) -> dict[str, Any]:
    """Positions of a sample, all of them filled where samples are packed [xt dataset/huggingface.py `process`]; those
    of a packed sample are of chosen and rejected answers in turn [xt dataset/preference_dataset.py]."""
    for name in loader:
        if name != "batch_size":
            loader.get(name)
    found = list(_data_sets(loader.get("dataset")))
    if pairs:
        both = [one["max_packed_length"] for one in found if one.get("use_varlen_attn")
                and isinstance(one.get("max_packed_length"), int)]
        if both:
            return {"seq-len": max(both) // 2}
        longest = [one["max_length"] for one in found if isinstance(one.get("max_length"), int)]
        if longest and not any(one.get("use_varlen_attn") for one in found):
            return {"seq-len": max(longest)}
        loader.cannot("dataset", "says no length of the samples", option="seq-len")
        return {}
    given = (one.get("packed_length", one.get("max_length")) for one in found)
    lengths = [length for length in given if isinstance(length, int) and length > 0]
    if not lengths:
        loader.cannot("dataset", "says no length of the samples", option="seq-len")
        return {}
    if places:  # one token of a text stands for an image
        return {"seq-len": max(lengths) + places - 1}
    packed = all(one.get("pack_to_max_length", True) is True for one in found)
    return {"seq-len": max(lengths)} | lengths_of(packed=packed)


def _data_sets(value: Any) -> Iterator[Mapping[str, Any]]:
    """A data set, or those that one joins."""
    one = table(value)
    joined = one.get("datasets", one.get("datasets_cfg"))
    if isinstance(joined, list):
        for inner in joined:
            yield from _data_sets(inner)
    elif one:
        yield one


def _optimizer(wrapper: Watched) -> tuple[dict[str, Any], int]:
    """AdamW over what learns, under autocast; and the micro-batches of a step."""
    kind = str(wrapper.get("type"))
    if kind not in ("AmpOptimWrapper", "OptimWrapper"):
        wrapper.cannot("type", "{} is not modelled", shown(kind))
    wrapper.section("optimizer", Known("xtuner", "optimizer"))
    kinds = {"float16": "amp-fp16", "bfloat16": "amp-bf16"}
    precision = wrapper.one_of("dtype", kinds, option="precision") or "amp-fp16"  # as autocast has it unasked
    steps = wrapper.count("accumulative_counts") or 1
    return {"optimizer": "adamw", "precision": precision if kind == "AmpOptimWrapper" else "fp32"}, steps
