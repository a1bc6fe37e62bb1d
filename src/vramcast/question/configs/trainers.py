"""The arguments of Transformers' Trainer, alone or inside LLaMA-Factory's.

[HF] transformers training_args.py   [LF] llamafactory hparams, model/adapter.py, model/model_utils
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramcast.engines.eager.releases import LIGER
from vramcast.question.configs.accelerate import fsdp_options
from vramcast.question.configs.deepspeed import read as read_deepspeed
from vramcast.question.configs.deepspeed import under_the_trainer
from vramcast.question.configs.reading import ELSEWHERE, Config, Reading, Unread, together
from vramcast.question.configs.watched import Known, Watched
from vramcast.states.optimizers import optimizer

ARGUMENTS: Final = Known("transformers", "TrainingArguments")


class Optim(NamedTuple):
    """What a value of `optim` stands for."""

    optimizer: str
    kernel: str | None = None  # implementation, where PyTorch has several
    arguments: str = ""  # `optim_args` that make it this one
    former: bool = False  # newer releases do not have it


OPTIMS: Final[dict[str, tuple[Optim, ...]]] = {
    "adamw_torch": (Optim("adamw", "foreach"),), "adamw_torch_fused": (Optim("adamw", "fused"),),
    "adamw_hf": (Optim("adamw", "loop", former=True),),
    "sgd": (Optim("sgd"), Optim("sgd-momentum", arguments="momentum=0.9")),
    "adafactor": (Optim("adafactor"),), "adagrad": (Optim("adagrad"),), "rmsprop": (Optim("rmsprop"),),
    "adamw_bnb_8bit": (Optim("adamw-8bit"),), "adamw_8bit": (Optim("adamw-8bit"),),
    "paged_adamw_8bit": (Optim("paged-adamw-8bit"),), "paged_adamw_32bit": (Optim("paged-adamw"),),
    "paged_adamw": (Optim("paged-adamw"),), "adamw_torch_4bit": (Optim("adamw-4bit"),),
    "lion_32bit": (Optim("lion"),), "lion_8bit": (Optim("lion-8bit"),), "paged_lion_32bit": (Optim("paged-lion"),),
    "paged_lion_8bit": (Optim("paged-lion-8bit"),), "galore_adamw": (Optim("galore"),),
    "apollo_adamw": (Optim("apollo"),), "lomo": (Optim("lomo"),), "adalomo": (Optim("adalomo"),),
    "schedule_free_adamw": (Optim("schedulefree-adamw"),), "schedule_free_sgd": (Optim("schedulefree-sgd"),),
}
"""`optim` -> our optimizers, by `optim_args` where several share it [HF `OptimizerNames`]."""

OPTIMIZERS: Final = tuple(dict.fromkeys(one.optimizer for meanings in OPTIMS.values() for one in meanings))
"""Those that the Trainer has."""

LOW_RANK: Final = {"galore": 128, "apollo": 128}
"""Optimizers that project the matrices of named modules -> rank where `optim_args` says none [HF
trainer_optimizer.py]."""

TRAINERS_BATCH: Final = 8
"""per_device_train_batch_size and its kin of evaluation where nobody says them [HF]."""

LENGTHS: Final = ("max_length", "max_seq_length", "model_max_length")

USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "torch_compile_backend": ("inductor",), "torch_compile_mode": ("default",), "neftune_noise_alpha": (0, 0.0),
    "optim_target_modules": ("all-linear",), "include_num_input_tokens_seen": ("no", "all", "non_padding", True, False),
}
"""Names that change nothing with these values, and are not modelled with others."""


def optim_of(name: str, kernel: str | None) -> tuple[str, str] | None:
    """`optim` and `optim_args` of an optimizer and the implementation of its step; None: the Trainer has none such.

    >>> optim_of("adamw", None), optim_of("adamw", "fused"), optim_of("galore:64", None), optim_of("sgd", "fused")
    (('adamw_torch', ''), ('adamw_torch_fused', ''), ('galore_adamw', 'rank=64'), None)
    """
    bare = name.partition(":")[0]
    for optim, meanings in OPTIMS.items():
        for one in meanings:
            if one.optimizer == bare and kernel in (None, one.kernel) and not one.former:
                return optim, f"rank={optimizer(name).rank}" if bare in LOW_RANK else one.arguments
    return None


def is_trainer(config: Config) -> bool:
    """Whether a table holds the Trainer's arguments."""
    names = ("per_device_train_batch_size", "gradient_checkpointing", "finetuning_type", "num_train_epochs")
    return config.table is not None and any(name in config.table for name in names)


def read_trainer(config: Config) -> Reading:
    """Arguments of the Trainer, with those that LLaMA-Factory adds."""
    if is_factory(config.table or {}):
        from vramcast.question.configs.factory import read_factory

        return read_factory(config)
    values = Watched(config.table or {}, ARGUMENTS)
    precision = precision_of(values)
    weak = precision if precision == {"precision": "fp32"} else {}
    options = together({"engine": "huggingface"}, recompute_of(values), liger_of(values), {} if weak else precision)
    if model := values.text("model_name_or_path"):
        options["model"] = model
    lengths = [size for name in LENGTHS if (size := values.count(name)) is not None]
    options |= {"seq-len": lengths[-1]} if lengths else {}
    read = arguments_of(values, config.name)
    auto = {} if lengths else {"seq-len": "says no length of the samples"}
    whole = "full training is assumed where no --peft is given: TrainingArguments say nothing of adapters"
    notes = (*read.notes, whole)
    unread = (*values.unread(), *read.unread)
    return Reading("transformers", together(options, read.options), weak, read.batch, unread, notes, auto)


def is_factory(table: Mapping[str, Any]) -> bool:
    """Whether arguments are LLaMA-Factory's."""
    return any(name in table for name in ("finetuning_type", "cutoff_len", "stage", "template"))


def arguments_of(values: Watched, file: str) -> Reading:
    """What TrainingArguments say whoever uses them: optimizer, batch, compilation, sharding."""
    options: dict[str, Any] = optimizer_of(values)
    if values.flag("torch_compile"):
        options["compile"] = True
    for name, usual in USUAL.items():
        values.only(name, *usual)
    if values.flag("auto_find_batch_size"):
        values.cannot("auto_find_batch_size", "leaves the batch to the run; give --micro-batch", option="micro-batch")
    batch, notes = _batch(values)
    _evaluation(values, batch["micro"])
    splits = values.get("accelerator_config")
    if isinstance(splits, Mapping) and splits.get("split_batches"):
        values.cannot("accelerator_config", "split_batches divides the batch over the ranks; give --micro-batch",
                      option="micro-batch")
    inner, found = values.get("deepspeed"), Reading("", {})
    if isinstance(inner, Mapping):
        found = read_deepspeed(Config(file, "", inner))
        unread = (one._replace(name=f"deepspeed.{one.name}") for one in found.unread)
        found = found._replace(unread=tuple(_unanswered(unread, batch)), notes=tuple(found.notes))
    elif inner is not None:
        values.cannot("deepspeed", ELSEWHERE, file="deepspeed")
    if values.get("fsdp") or values.get("fsdp_config"):
        options |= _fsdp(values)
    inside = under_the_trainer(found.options) if found.options else {}
    return found._replace(options=together(options, inside), batch=found.batch | batch, notes=(*notes, *found.notes))


def _unanswered(unread: Any, batch: Mapping[str, int]) -> list[Unread]:
    """What a DeepSpeed table inside leaves to the arguments around it, and they do not say."""
    said = {"micro-batch", "precision"} | ({"grad-accum"} if "accumulation" in batch else set())
    return [one for one in unread if one.option not in said]


def _batch(values: Watched) -> tuple[dict[str, int], list[str]]:
    micro, accumulation = values.count("per_device_train_batch_size"), values.count("gradient_accumulation_steps")
    notes = [] if micro else [f"per_device_train_batch_size is not given: {TRAINERS_BATCH}, as Transformers has it"]
    return {"micro": micro or TRAINERS_BATCH, "accumulation": accumulation or 1}, notes


def _evaluation(values: Watched, micro: int) -> None:
    """More samples at once than a step has, between steps."""
    when = values.get("eval_strategy", values.get("evaluation_strategy", "no"))
    samples = values.count("per_device_eval_batch_size") or TRAINERS_BATCH
    if when not in ("no", False) and samples > micro:
        values.cannot(
            "per_device_eval_batch_size",
            f"evaluation of {samples} samples at once, where a step has {micro}, is not modelled",
        )


def precision_of(values: Watched) -> dict[str, Any]:
    """Autocast over fp32 weights; without it the weights' own dtype."""
    for name, precision in (("bf16", "amp-bf16"), ("fp16", "amp-fp16")):
        if values.flag(name):
            return {"precision": precision}
    if values.auto.keys() & {"bf16", "fp16"}:
        values.cannot("bf16", "is auto; give --precision", option="precision")
        return {}
    return {"precision": "tf32" if values.flag("tf32") else "fp32"}


def recompute_of(values: Watched) -> dict[str, Any]:
    """Recomputation of whole layers, and by which code."""
    on = [values.flag(name) for name in ("gradient_checkpointing", "activation_checkpointing")]
    details: dict[str, Any] = {}
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        section = values.section(name)
        if (reentrant := section.flag("use_reentrant")) is not None:
            details = {"engine-option": (f"reentrant={str(reentrant).lower()}",)}
    if any(on):
        return {"recompute": "full"} | details
    return {"recompute": "none"} if False in on else {}


FUSED_HEAD: Final = "fused_linear_cross_entropy"

LIGER_LOSSES: Final = {"cross_entropy": "fused", FUSED_HEAD: "fused_linear"}
"""Liger's kernel of the loss -> ours."""

ALSO_CALLED: Final = {"swiglu": "geglu"}
"""Liger's kernel of gated activations by its name in families whose gate is GELU."""


def liger_of(values: Watched) -> dict[str, Any]:
    """Which of Liger's kernels run: all that are on by default, but for those switched off [Liger-Kernel
    transformers/monkey_patch.py]."""
    chosen = values.section("liger_kernel_config") if "liger_kernel_config" in values else Watched({})
    switches = {name: chosen.flag(name) for name in ("cross_entropy", "layer_norm", *LIGER, *ALSO_CALLED.values())}
    if not values.flag("use_liger_kernel"):
        return {}
    on = [name for name in LIGER if False not in (switches[name], switches.get(ALSO_CALLED.get(name, "")))]
    if switches["cross_entropy"]:  # instead of the head's
        on = [name for name in on if name != FUSED_HEAD]
    if on == [FUSED_HEAD]:
        return {"loss": LIGER_LOSSES[FUSED_HEAD]}
    said = "true" if len(on) == len(LIGER) else "+".join(on)
    found: dict[str, Any] = {"engine-option": (f"liger={said}",)} if on else {}
    return found | ({"loss": LIGER_LOSSES["cross_entropy"]} if switches["cross_entropy"] else {})


def optimizer_of(values: Watched) -> dict[str, Any]:
    """The optimizer that `optim` and its arguments name."""
    known: tuple[Optim, ...] | None = values.one_of("optim", OPTIMS, option="optimizer")
    arguments = values.text("optim_args") or ""
    if known is None:
        return {}
    name, _, rank = arguments.partition("rank=")
    if known[0].optimizer in LOW_RANK and not name and (rank.isdecimal() or not arguments):
        return {"optimizer": f"{known[0].optimizer}:{rank or LOW_RANK[known[0].optimizer]}"}
    found = next((one for one in known if one.arguments == arguments.replace(" ", "")), None)
    if found is None:
        values.cannot("optim_args", option="optimizer")
        return {}
    return {"optimizer": found.optimizer} | ({"optimizer-kernel": found.kernel} if found.kernel else {})


def _fsdp(values: Watched) -> dict[str, Any]:
    """The words of `fsdp` and the table beside it [HF training_args.py `_process_fsdp_args`]."""
    words = values.get("fsdp", "")
    listed = words if isinstance(words, list) else str("full_shard" if words is True else words).split()
    inner = values.section("fsdp_config", Known("accelerate", "fsdp_config")) if isinstance(
        values.get("fsdp_config", {}), Mapping) else None
    if inner is None:
        values.cannot("fsdp_config", ELSEWHERE, file="accelerate")
        return {}
    named = {str(word).lower() for word in listed}
    strategies = [word for word in named if word in ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                                                      "hybrid_shard_zero2")]
    if strange := named - {*strategies, "offload", "auto_wrap", "true"}:
        values.cannot("fsdp", f"{sorted(strange)[0][:40]!r} is not one of full_shard, shard_grad_op, no_shard, "
                      "hybrid_shard, offload, auto_wrap", option="shards")
        return {}
    sized = any(inner.number(name) for name in ("min_num_params", "fsdp_min_num_params"))
    layers = "SIZE_BASED_WRAP" if sized else "TRANSFORMER_BASED_WRAP"
    return fsdp_options(inner, strategy=strategies[0].upper() if strategies else None, offload="offload" in named,
                        wrap=layers if named & {"auto_wrap", "true"} else "NO_WRAP", prefix="")
