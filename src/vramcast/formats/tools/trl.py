"""TRL's arguments: its YAML files, those of the alignment-handbook, and what its scripts and its command line take.

[TRL] huggingface/trl 1.9.0 trl/trainer/{base,sft,dpo,kto,reward,rloo,grpo,model}_config.py, trl/trainer/utils.py
`get_peft_config`, `get_quantization_config`, trl/scripts/*.py,
trl/experimental/{orpo,cpo,prm}/*_config.py; fields of releases since 0.9.6 compared
[handbook] huggingface/alignment-handbook src/alignment/{configs,model_utils}.py, scripts/*.py

What TRL's arguments say of an engine that generates on the trainer's cards (`use_vllm`, `vllm_mode: colocate`).

[TRL] huggingface/trl 1.9.0 trl/trainer/{grpo,rloo}_config.py, trl/generation/vllm_generation.py; until 0.29 the mode
is "server" where nobody says it (#5255)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import read_entry
from vramcast.domain.version import LAST, read_version
from vramcast.errors import Note
from vramcast.formats.reading import (
    Config,
    Reading,
    Unread,
    engine_options,
    lengths_of,
    modules_of,
    together,
    without_none,
)
from vramcast.formats.table import Row, read_options
from vramcast.formats.tools.transformers import ARGUMENTS, arguments_of, liger_of, recompute_of
from vramcast.formats.watched import Known, Watched

ROWS: Final = (
    Row("samples", "num_generations"),
    Row("memory_fraction", "vllm_gpu_memory_utilization", 0.3),
    Row("rollout_tp", "vllm_tensor_parallel_size"),
    Row("context", "vllm_max_model_length"),
    Row("sleep", "vllm_enable_sleep_mode", False),
    Row("epochs", "num_iterations"),
    Row("steps_per_generation", "steps_per_generation"),
    Row("generation_batch_size", "generation_batch_size"),
)

MODES: Final = {"server": False, "colocate": True}
"""`vllm_mode` -> whether the engine is on the trainer's cards."""


def is_colocated(values: Watched, release: str = "") -> bool:
    """Whether an engine generates on the trainer's cards.

    Args:
        release: the last one that has every name of these arguments; "": the newest does
    """
    colocated = values.one_of("vllm_mode", MODES)
    return values.flag("use_vllm") is True and (not release if colocated is None else colocated)


def rollout_of(values: Watched, release: str) -> dict[str, Any]:
    """The options of `vramcast rl` beside those of the trainer; none where no engine is on its cards."""
    if not is_colocated(values, release):
        return {}
    said = read_options(ROWS, values)
    values.only("vllm_model_impl", "vllm")
    entry = values.known.entry("num_generations") if values.known is not None else None
    return {"rollout": "vllm", **({} if entry is None else {"samples": entry.default}), **said}


class Method(NamedTuple):
    """What one of TRL's trainers does."""

    section: str  # of the snapshot: the names that its configuration adds
    objective: str | None  # None: not modelled
    length: int = 1024  # `max_length` where nobody says it
    completion: int = 0  # `max_completion_length` where nobody says it; 0: it generates nothing
    over: str = ""  # the method whose names its configuration has, too
    stored: bool = False  # the script loads weights as the checkpoint has them, whatever `dtype` says


METHODS: Final[dict[str, Method]] = {
    "sft": Method("SFTConfig", "sft"), "dpo": Method("DPOConfig", "dpo"), "reward": Method("RewardConfig", "reward"),
    "grpo": Method("GRPOConfig", "grpo", 512, 256), "kto": Method("KTOConfig", "kto"),
    "rloo": Method("RLOOConfig", "rloo", 512, 256),
    "orpo": Method("ORPOConfig", "dpo", stored=True), "cpo": Method("CPOConfig", "dpo", stored=True),
    "prm": Method("PRMConfig", "tagging", stored=True),
    "gkd": Method("GKDConfig", "gkd", over="sft"),
}

OTHERS: Final = ("bco", "xpo", "nash", "ppo", "gold", "online_dpo", "tpo")
"""Trainers of TRL that are named and not read."""

CALLED: Final = {"reward_modeling": "reward", "gspo": "grpo", "mpo": "dpo", "nash_md": "nash",
                 "dpo_online": "online_dpo"}
"""Name of a script -> its trainer, where it is another."""

NAMED: Final = re.compile(rf"(?i)(?<![a-z])({'|'.join((*METHODS, *OTHERS))})(?![a-z])[ _-]?(?:trainer|config)?")
HEADED: Final = re.compile(rf"(?im)^\s*#.*?\b({'|'.join((*METHODS, *OTHERS))})[ _-]?trainer")
"""Comments of the alignment-handbook: "# DPOTrainer arguments"."""

DECISIVE: Final = {
    "dpo": ("rpo_alpha", "f_divergence_type", "reference_free", "discopop_tau", "ld_alpha", "use_weighting",
            "loss_weights"),
    "kto": ("desirable_weight", "undesirable_weight"),
    "gkd": ("teacher_model_name_or_path", "lmbda", "seq_kd"),
    "reward": ("center_rewards_coefficient",),
    "sft": ("packing", "dataset_text_field", "max_seq_length", "completion_only_loss", "assistant_only_loss",
            "packing_strategy", "eval_packing", "dataset_kwargs"),
}
"""Method -> names that its configuration alone has."""

GENERATES: Final = ("num_generations", "max_completion_length", "reward_funcs")
"""Names of GRPO and of RLOO."""

UNTIL: Final[tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("0.18", ("sft",), ("use_liger", "dataset_batch_size", "num_of_sequences", "chars_per_token")),
    ("0.18", ("grpo",), ("vllm_device", "vllm_dtype", "vllm_max_model_len")),
    ("0.19", ("sft",), ("max_seq_length",)),
    ("0.24", ("kto",), ("max_prompt_length",)),
    ("0.28", ("dpo", "grpo"), ("max_prompt_length", "use_liger_loss", "wandb_log_unique_prompts")),
    ("0.28", ("dpo",), (
        "rpo_alpha", "reference_free", "force_use_ref_model", "generate_during_eval", "label_pad_token_id",
        "padding_value", "max_completion_length", "ref_model_init_kwargs", "use_logits_to_keep",
        "base_model_attribute_name")),
    ("0.28", tuple(METHODS), ("torch_dtype", "gradient_checkpointing_use_reentrant")),
)
"""Last release of TRL -> methods, and names that no later one has."""

PLAIN: Final = (0, 18, LAST)
"""Up to that release nothing is autocast unasked."""
FORMER: Final = (0, 28, LAST)
"""Up to that release packed weights are stored as the type they stand for, and FSDP is the first unasked."""
COLOCATES_SINCE: Final = (0, 30)
"""Before, an engine is a server unasked [TRL #5255]."""

KERNELS: Final[dict[str, str | None]] = {
    "sdpa": None, "eager": "eager", "flash_attention_2": "flash", "flash_attention_3": "flash",
    "kernels-community/flash-attn": "flash", "kernels-community/flash-attn2": "flash",
    "kernels-community/flash-attn3": "flash", "kernels-community/vllm-flash-attn3": "flash",
}
"""`attn_implementation` -> kernel; None: as PyTorch chooses."""

DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": "bf16"}

PAIRWISE: Final = (
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_pair",
    "aot_unpaired", "apo_zero", "apo_down", "discopop",
)
"""`loss_type` of DPO: all of the same four sums of log-probabilities [TRL dpo_trainer.py]."""

ALONE: Final[dict[str, Any]] = {"engine-option": ("precompute_ref_log_probs=true", "log_probs=rows+nll")}
"""ORPO and CPO as DPO's program: no reference, a cross entropy of the chosen answers instead [TRL
experimental/{orpo,cpo}/*_trainer.py `concatenated_forward`]."""

COLOCATED: Final = {
    True: "puts an engine on the same cards; vramcast rl answers for that",
    False: "puts a server on the same cards, which is not modelled; vllm_mode: server is",
}
"""Whether `vramcast rl` reads a file -> what is said of an engine beside its trainer."""

ALL: Final = "all-linear"

LOADED: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def known(*methods: str) -> Known:
    """The names that a script of a method takes; of several: that one of them does."""
    below = (METHODS[method].over for method in methods if METHODS[method].over)
    first, *others = (Known("trl", METHODS[method].section) for method in (*methods, *below))
    return first._replace(more=(*others, Known("trl", "ModelConfig"), Known("trl", "ScriptArguments"), ARGUMENTS))


def read(config: Config) -> Reading:
    """A YAML file of TRL or of the alignment-handbook."""
    table = config.table or {}
    method, why = method_of(table, config)
    notes = [Note("{}: taken for the arguments of TRL's trainer for {}", why, method)] if method and why else []
    if not method:
        return _without_method(table, config)
    found = read_arguments(table, method, config.name)
    return found._replace(notes=(*notes, *found.notes))


def _without_method(table: Mapping[str, Any], config: Config) -> Reading:
    """What a file says for whichever trainer; which one it is a command says."""
    found = read_arguments(table, "sft", config.name, known("sft", "dpo", "kto", "reward"))
    options = {name: value for name, value in found.options.items() if name not in ("objective", "loss")}
    why = "does not say whose arguments it holds; give the command that reads it, or --objective sft, dpo ..."
    return found._replace(options=options, unread=(Unread("the file", why, "objective"), *found.unread))


def method_of(table: Mapping[str, Any], config: Config) -> tuple[str, str]:
    """The trainer whose arguments a file holds, and what else than a name in it tells that; "": nothing does."""
    for method, names in DECISIVE.items():
        if any(name in table for name in names):
            return method, ""
    if any(name in table for name in GENERATES):
        return "rloo" if "rloo" in config.name.lower() else "grpo", ""
    if (headed := HEADED.search(config.text)) is not None:
        return headed[1].lower(), Note("a comment names {}", headed[1])
    stem, folder = PurePosixPath(config.name).stem, PurePosixPath(config.folder).name  # recipes/MODEL/dpo/config.yaml
    for what, text in (
        (Note("the file is called {}", config.name[:60]), stem), (Note("it lies in {}/", folder[:60]), folder),
    ):
        if named := NAMED.search(text.replace("_", " ").replace("-", " ")):
            return named[1].lower(), what
    return "", ""


def read_arguments(
    table: Mapping[str, Any], method: str, file: str, names: Known | None = None, pinned: str = ""
) -> Reading:
    """The arguments of one trainer and of the script around it.

    Args:
        names: that may stand there, where they are not the trainer's alone
        pinned: release of TRL that the file installs
    """
    if method not in METHODS:
        why = Note("{} is not modelled; {} are", method.upper(), ", ".join(_modelled()))
        return Reading("trl", {"engine": "huggingface"}, unread=(Unread("the trainer", why, "objective"),))
    row, values = METHODS[method], Watched(table, names or known(method))
    options: dict[str, Any] = {"engine": "huggingface"}
    unread: list[Unread] = []
    if row.objective is None:
        why = Note("{} is not modelled; {} are", method.upper(), ", ".join(_modelled()))
        unread.append(Unread("the trainer", why, "objective"))
    else:
        options["objective"] = row.objective
    if model := values.text("model_name_or_path"):
        options["model"] = model
    told = None if pinned else release_of(values, method)
    last = told[0] if told else pinned
    notes: list[str] = [Note("{} is of TRL up to {}: its defaults", told[1], last)] if told else []
    notes += [Note("TRL {}, which the file installs: its defaults", pinned)] if pinned else []
    trained: dict[str, Any] = {"engine-option": (f"trl={last}",)} if last else {}
    version = read_version(last) or (LAST,)
    former = version <= FORMER
    adapters = _adapters(values, newest=not former or "bnb_4bit_quant_storage" in values)
    options = together(
        options, trained, _precision(values, bool(adapters), row, usual=version > PLAIN), adapters,
        _kernels(values, method), _recompute(values), _lengths(values, row, notes),
    )
    if method == "gkd":
        options = together(options, _distilled(values, options))
    last = last if version < COLOCATES_SINCE else ""
    rollout = rollout_of(values, last) if row.completion else {}
    _of_method(values, method, last, options)
    read = arguments_of(values, file, fsdp=1 if former else 2)
    options = together(options, read.options)
    return Reading("trl", options, {}, read.batch, (*unread, *values.unread(), *read.unread), (*notes, *read.notes),
                   rollout=rollout)


def _modelled() -> list[str]:
    return [name for name, row in METHODS.items() if row.objective]


def release_of(values: Watched, method: str) -> tuple[str, str] | None:
    """The last release that has every name of a file, and the name that tells; None: the newest does."""
    for release, methods, names in UNTIL:
        for name in names:
            if method in methods and name in values:
                return release, name
    return None


def _kept(values: Watched) -> str | None:
    """The type in which a checkpoint has its weights, of a model that is known here."""
    name = MODELS.aliases.get(str(values.get("model_name_or_path")).lower())
    return DTYPES.get(str(read_entry(name).config.get("torch_dtype"))) if name is not None else None


def _stored(values: Watched) -> str:
    """The same, where nothing else can say it."""
    found = _kept(values)
    if found is None:
        values.cannot("dtype", "is that of the checkpoint, which is not known here; give --precision",
                      option="precision")
    return found or "fp32"


def _precision(values: Watched, adapters: bool, row: Method, *, usual: bool) -> dict[str, Any]:
    """What autocast runs over are weights of `dtype`, float32 where nobody says
    [TRL base_config.py `__post_init__`, model_config.py].

    Args:
        usual: whether it is on unasked
    """
    said = "dtype" if "dtype" in values else "torch_dtype"
    weights = values.one_of(said, DTYPES, option="precision") or (_stored(values) if row.stored else "fp32")
    if values.get(said) == "auto":
        weights = _kept(values) or DTYPES["auto"]
    half, tf32 = values.flag("fp16"), values.flag("tf32")
    bf16 = values.flag("bf16")
    if bf16 is None and usual:
        bf16 = not half
    computed = "bf16" if bf16 else "fp16" if half else ""
    if adapters:
        packed: dict[str, Any] = {"engine-option": (f"dtype={LOADED[weights]}",)}
        return {"precision": f"amp-{computed}"} | packed if computed else {"precision": weights}
    if not computed:
        return {"precision": "tf32" if weights == "fp32" and tf32 else weights}
    if weights == "fp32":
        return {"precision": f"amp-{computed}"}
    if weights != computed:
        values.cannot(said, "weights in {} beside {} are not modelled", LOADED[weights], computed, option="precision")
    return {"precision": weights, "engine-option": ("autocast=true",)}


def _adapters(values: Watched, *, newest: bool) -> dict[str, Any]:
    """LoRA and what its frozen weights are stored in [TRL trainer/utils.py]."""
    if not values.flag("use_peft"):
        for name in values:
            if name.startswith(("lora_", "bnb_4bit_")) or name in ("use_dora", "use_rslora", "use_bnb_nested_quant"):
                values.get(name)
        for name in ("load_in_4bit", "load_in_8bit"):
            if values.flag(name):
                why = "trains packed weights, which TRL does beside adapters only: --use_peft, or --peft lora"
                values.cannot(name, why, option="peft")
        return {}
    found: dict[str, Any] = {"peft": "dora" if values.flag("use_dora") else "lora"}
    found |= without_none({
        "lora-rank": values.count("lora_r") or 16, "lora-dropout": values.number("lora_dropout", 0.05),
        "lora-targets": modules_of(values.get("lora_target_modules")),
        "modules-to-save": modules_of(values.get("lora_modules_to_save")),
    })
    values.ignore("lora_alpha", "use_rslora", "lora_task_type")
    values.must_be_empty("lora_target_parameters")
    if values.flag("load_in_4bit"):
        values.one_of("bnb_4bit_quant_type", {"nf4": True, "fp4": True})  # as many bits and scales
        values.only("bnb_4bit_quant_storage", "uint8", "bfloat16", "float16", "float32")
        # [bnb] where nobody says it; former releases said the type of the weights
        if newest and values.get("bnb_4bit_quant_storage", "uint8") == "uint8":
            found["engine-option"] = ("quant_storage=uint8",)
        found["base-weights"] = "nf4-dq" if values.flag("use_bnb_nested_quant") else "nf4"
    elif values.flag("load_in_8bit"):
        found["base-weights"] = "int8"
    return found


def _kernels(values: Watched, method: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (kernel := values.one_of("attn_implementation", KERNELS, option="attention")) is not None:
        found["attention"] = kernel
    if method == "sft":
        if values.flag("use_liger"):  # of old releases
            return together(found, liger_of(Watched({"use_liger_kernel": True})))
        return together(found, liger_of(values))
    for name in ("use_liger_kernel", "use_liger_loss"):
        values.must_be_off(name, Note("Liger's loss of {} is not modelled", method.upper()))
    return found


def _recompute(values: Watched) -> dict[str, Any]:
    """Layers run again where the trainer of the release does so unasked: the engine knows."""
    found = together(recompute_of(values), engine_options(
        reentrant=values.flag("gradient_checkpointing_use_reentrant")))
    if values.flag("activation_offloading"):
        found["offload-activations"] = True
    return found


def _lengths(values: Watched, row: Method, notes: list[str]) -> dict[str, Any]:
    """Positions of a sample, and of what is generated."""
    if row.completion:
        prompt, completion = values.count("max_prompt_length"), values.count("max_completion_length")
        if not prompt:
            notes.append(Note("max_prompt_length is not given: prompts of {} positions are assumed", row.length))
        lengths = {"seq-len": prompt or row.length}
        return lengths | {"completion-len": completion or row.completion} if row.objective else lengths
    name = next((name for name in ("max_seq_length", "max_length") if dict.__contains__(values, name)), "")
    if name and dict.get(values, name) is None:
        values.cannot(name, "is null, so samples are as long as they come; give --seq-len", option="seq-len")
        return {}
    values.ignore("max_prompt_length", "max_completion_length")  # of the same length
    said = values.count(name) if name else None
    if said is None:
        notes.append(Note("max_length is not given: {}, as TRL has it", row.length))
    varying = lengths_of(packed=values.flag("packing")) if row.objective == "sft" else {}
    return {"seq-len": said or row.length} | varying


def _distilled(values: Watched, options: Mapping[str, Any]) -> dict[str, Any]:
    """GKD's teacher, and what the student writes itself within `max_length` [TRL gkd_trainer.py `__init__`,
    `training_step`; examples/scripts/gkd.py loads the teacher by the student's `dtype`]."""
    found: dict[str, Any] = {}
    teacher = values.text("teacher_model_name_or_path")
    if teacher is None:
        values.cannot("teacher_model_name_or_path", "is not given; give --teacher", option="teacher")
    else:
        found["teacher"] = teacher
    values.must_be_unset("teacher_model_init_kwargs")
    if "base-weights" in options:
        values.cannot("load_in_4bit" if "load_in_4bit" in values else "load_in_8bit",
                      "packs the teacher, too, which is not modelled", option="base-weights")
    for name in ("packing", "padding_free"):
        values.must_be_off(name, "beside GKD's own collator is not modelled")
    pairs = [f"beta={beta:g}"] if (beta := values.number("beta")) is not None else []
    wide = str(options.get("precision", "")).startswith("amp-") and not any(
        one.startswith("dtype=") and one != "dtype=float32" for one in options.get("engine-option", ()))
    pairs += ["teacher_dtype=float32"] if wide else []
    answers, own, length = values.count("max_new_tokens") or 128, values.number("lmbda", 0.5), options.get("seq-len")
    seq_kd = values.flag("seq_kd")
    if (own or seq_kd) and isinstance(length, int):
        if length > answers:
            found |= {"seq-len": length - answers, "completion-len": answers}
        else:  # prompts of what the collator keeps, up to max_length, and all that is written behind them
            values.cannot("max_new_tokens", "leaves no prompt within max_length; give the prompt's length as --seq-len "
                          "and --completion-len", option="completion-len")
    return found | ({"engine-option": tuple(pairs)} if pairs else {})


def generation_of(values: Watched, release: str = "", *, answered: bool = False) -> dict[str, Any]:
    """Micro-batches whose completions are made at once [TRL grpo_config.py `__post_init__`]; none beside a server.

    Args:
        release: of TRL, as `is_colocated` takes it
        answered: `vramcast rl` reads the same file
    """
    if values.flag("use_vllm"):
        if is_colocated(values, release):
            values.cannot("use_vllm", COLOCATED[answered], option="rollout")
        values.ignore("steps_per_generation", "generation_batch_size")  # samples wait as tokens
        return {"engine-option": ("steps_per_generation=0",)}
    said = ((name, values.count(name)) for name in ("steps_per_generation", "generation_batch_size"))
    return {"engine-option": found} if (found := tuple(f"{name}={count}" for name, count in said if count)) else {}


def _of_method(values: Watched, method: str, release: str, options: dict[str, Any]) -> None:
    """What one trainer alone has."""
    loss = values.get("loss_type")
    listed = loss if isinstance(loss, list) else [] if loss is None else str(loss).split()
    if method == "sft" and loss is not None:
        if loss == "nll" and "loss" not in options:
            options["loss"] = "eager"
        values.only("loss_type", "nll", "chunked_nll")
    if method == "dpo":
        if any(one not in PAIRWISE for one in listed):
            values.cannot("loss_type", "one of {} is not modelled", ", ".join(map(str, listed))[:60])
        values.must_be_unset("rpo_alpha")
    if method == "kto":
        values.only("loss_type", "kto", "apo_zero_unpaired")  # the latter asks about no other prompts, which is less
    if method in ("orpo", "cpo"):
        values.only("loss_type", "sigmoid", "hinge", "ipo", "simpo")
        if values.number("cpo_alpha") == 0:
            values.cannot("cpo_alpha", "0 leaves out the cross entropy of the chosen answers, which is not modelled")
        options.update(together(options, ALONE))
    if METHODS[method].stored and "base-weights" in options:
        values.cannot("load_in_4bit" if "load_in_4bit" in values else "load_in_8bit", "beside {} is not modelled",
                      method.upper(), option="base-weights")
    if method == "prm" and "recompute" not in options:
        options["recompute"] = "full"  # `gradient_checkpointing` [TRL base_config.py]
    if method in ("dpo", "kto") and values.flag("precompute_ref_log_probs"):
        options.update(together(options, {"engine-option": ("precompute_ref_log_probs=true",)}))
    if METHODS[method].completion:
        options.update(together(options, engine_options(beta=values.number("beta")),
                                generation_of(values, release, answered=True)))
