"""LLaMA-Factory's YAML: one file of model, method, data and TrainingArguments.

[LF] llamafactory 0.9.5 hparams/*.py, hparams/parser.py `get_train_args`, model/adapter.py, model/model_utils/*.py
"""


from __future__ import annotations

import math
import re
from typing import Any, Final

from vramcast.domain.job import Job, Loss, Peft, Precision, Recompute
from vramcast.domain.model import Head
from vramcast.engines.eager.preference import compares, in_one
from vramcast.engines.eager.releases import LIGER, liger_kernels, runs_deepspeed
from vramcast.engines.eager.trl import loads_fp32, prepared_weights, reentrant
from vramcast.errors import Note, Unsupported
from vramcast.families.module_names import names_of, names_saved
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import head_of
from vramcast.formats.lines import Line, Table, yaml_text
from vramcast.formats.reading import Config, Reading, engine_options, lengths_of, together, without_none, written
from vramcast.formats.table import Refusal, refuse
from vramcast.formats.tools import deepspeed
from vramcast.formats.tools.transformers import (
    ARGUMENTS,
    FUSED_HEAD,
    LOW_RANK,
    OPTIMIZERS,
    arguments_of,
    kernel_of,
    optim_of,
    precision_of,
    refuse_chunks,
)
from vramcast.formats.watched import Known, Watched
from vramcast.states.optimizers import optimizer

FACTORY: Final = Known("llamafactory", "arguments", (ARGUMENTS,))

STAGES: Final = {"pt": "pretrain", "sft": "sft", "dpo": "dpo", "kto": "kto", "rm": "reward"}
"""`stage` -> what is optimised. PPO has a loop of its own."""

OWN_TRAINERS: Final = {"dpo": ("log_probs=whole",), "kto": ("log_probs=whole",), "reward": ("value_head=true",)}
"""Objective -> what its trainer does that TRL's does not: preferences take the log-softmax of all logits, rewards have
TRL's value head beside the language head, whose logits are computed too [LF train/{dpo,kto,rm}/trainer.py,
model/loader.py `add_valuehead`]."""

CUTOFF: Final = 2048
"""cutoff_len where nobody says it [LF hparams/data_args.py]."""

RANK: Final = 8
"""lora_rank where nobody says it [LF hparams/finetuning_args.py]."""

OF_RANK: Final = {"lora": ("lora_rank", RANK), "oft": ("oft_block_size", 32)}
"""`finetuning_type` -> the name that says how large its adapters are, and what it is where nobody says it."""

PIXELS: Final = 768 * 768
"""Of the largest image that is not made smaller, `image_max_pixels` [LF hparams/model_args.py]."""

PREFERENCES: Final = {"sigmoid": False, "hinge": False, "ipo": False, "orpo": True, "simpo": True}
"""`pref_loss` -> whether no reference is asked. Beside the log-probabilities, which all make alike, every one of them
and the shares of a supervised and of a classifier's loss are of a number a sample [LF train/dpo/trainer.py
`compute_preference_loss`, `get_batch_loss_metrics`, hparams/finetuning_args.py `use_ref_model`]."""

LIKE_EAGER: Final = ("use_dft_loss", "use_eaft_loss")
"""Losses weighed token by token: they write logits and their log-softmax in fp32 as Transformers' own does, and EAFT's
copy of the logits is gone before backward writes as much [LF train/trainer_utils.py `_dft_cross_entropy`,
`_eaft_cross_entropy`]."""

KERNELS: Final = {"auto": None, "sdpa": None, "fa2": "flash", "fa3": "flash", "disabled": "eager"}
"""`flash_attn` -> kernel; None: as Transformers chooses [LF model_utils/attention.py]."""

FROZEN: Final = {"freeze_vision_tower": ("towers", True), "freeze_multi_modal_projector": ("projectors", True),
                 "freeze_language_model": ("language_model", False)}
"""Switch -> the part that does not learn, and whether it is on unasked. Whatever the template: the network decides [LF
hparams/finetuning_args.py, model_utils/visual.py `COMPOSITE_MODELS`]."""

ALL: Final = "all-linear"

QUANTISED: Final = re.compile(
    r"(?i)(?<![a-z])(?:gptq|awq|aqlm|hqq|eetq|exl2|gguf|fp8|int8|int4|bnb|mxfp4|nvfp4|w4a16|w8a8)(?![a-z])"
)
"""What names of checkpoints say of how their weights are stored."""

PACKED: Final = re.compile(r"(?i)(?<!unsloth)-bnb-4bit/?$")
"""Copies whose linear layers bitsandbytes packed: `bnb_4bit_quant_type` nf4 with `bnb_4bit_use_double_quant`."""

STORED: Final = {"gptq": "gptq-int4", "awq": "awq-int4"}


def read_factory(config: Config) -> Reading:
    """The arguments of `llamafactory-cli train`."""
    values = Watched(config.table or {}, FACTORY)
    options: dict[str, Any] = {"engine": "huggingface"} | _precision(values)
    if not values.flag("do_train"):
        if values.flag("do_eval") or values.flag("do_predict"):
            values.cannot("do_train", "is not true, so LLaMA-Factory trains nothing")
        values.assumed.append("do_train is not given, without which LLaMA-Factory trains nothing")
    objective = values.one_of("stage", STAGES, option="objective")
    options |= {"objective": objective or "sft"}
    if model := values.text("model_name_or_path"):
        options["model"] = model
    options["seq-len"] = values.count("cutoff_len") or CUTOFF
    packs = any([values.flag("packing"), values.flag("neat_packing")])  # both are looked at
    if options["objective"] == "sft" or values.flag("packing") is False:  # a pretraining packs unasked [LF parser.py]
        options |= lengths_of(packed=packs)
    if (kernel := values.one_of("flash_attn", KERNELS, option="attention")) is not None:
        options["attention"] = kernel
    notes: list[str] = []
    if "cutoff_len" not in values:
        notes.append(Note("cutoff_len is not given: {}, as LLaMA-Factory has it", CUTOFF))
    kernels = _kernels(values, options["objective"])
    options = together(options, _recompute(values), kernels, _low_rank(values), _adapters(values))
    if options["engine"] == "unsloth":  # which prepares packed bases itself
        pairs = options.get("engine-option", ())
        options["engine-option"] = tuple(pair for pair in pairs if not pair.startswith(("prepare_kbit=", "dtype=")))
    if options["objective"] == "sft" and not kernels and not values.flag("torch_compile"):
        options["loss"] = "eager"  # its trainer of this stage is not TRL's [LF train/sft/trainer.py]
    if options["objective"] in OWN_TRAINERS and options["engine"] == "huggingface":
        options = together(options, {"engine-option": OWN_TRAINERS[options["objective"]]})
    for name in LIKE_EAGER:
        if values.flag(name):
            notes.append(Note("{}: as much as the usual loss, whose logits are written out in fp32", name))
    if values.flag("use_v1_kernels"):
        notes.append("use_v1_kernels: kernels of NPUs, nothing on other cards")
    alone = values.one_of("pref_loss", PREFERENCES, option="objective")
    if alone and options["objective"] == "dpo":
        options = together(options, {"engine-option": ("precompute_ref_log_probs=true",)})
        notes.append(Note("pref_loss: {}: DPO's program without a reference", values["pref_loss"]))
    if values.flag("use_asft_loss"):
        options = _anchored(values, options)
    options["image-size"] = math.isqrt(values.count("image_max_pixels") or PIXELS)
    frozen = [part for name, (part, usual) in FROZEN.items()
              if (usual if (flag := values.flag(name)) is None else flag)]
    options |= {"freeze": ",".join(frozen)} if frozen else {}
    if frozen and "peft" not in options and options["engine"] == "huggingface":
        # what is loaded in 16 bits becomes fp32 where it learns [LF model/adapter.py `_setup_full_tuning`]
        options = together(options, engine_options(frozen_halves=True))
    read = arguments_of(values, config.name, fsdp=1)
    workers = values.count("ray_num_workers")
    options, unread = together(options, read.options), (*values.unread(), *read.unread)
    return Reading("llama-factory", options, {}, read.batch, unread, (*notes, *read.notes), ranks=workers)


def _anchored(values: Watched, options: dict[str, Any]) -> dict[str, Any]:
    """ASFT: the model as it was is asked for its logits [LF train/sft/trainer.py `compute_loss`]; beside adapters no
    copy of it is made, and the call of None stops [LF train/trainer_utils.py `create_ref_model`]."""
    values.get("asft_alpha")
    values.must_be_unset("ref_model", "is another network than the one that learns, which is not modelled")
    if options["objective"] != "sft":
        return options
    if options.get("peft"):
        values.cannot("use_asft_loss", "stops beside adapters: LLaMA-Factory makes no reference then")
    options = {name: value for name, value in options.items() if name != "loss"}
    return together(options, {"objective": "gkd", "teacher": "itself", "engine-option": ("log_probs=asft",)})


def _precision(values: Watched) -> dict[str, Any]:
    """What learns is fp32 under autocast, or all of it bf16 [LF adapter.py `init_adapter`]."""
    if values.flag("pure_bf16"):
        values.get("bf16")
        return {"precision": "bf16"}
    values.must_be_off("fp8", option="precision")
    found = precision_of(values)
    if found == {"precision": "fp32"} and values.get("finetuning_type", "lora") == "lora":
        return {"precision": "bf16"}  # frozen weights as the checkpoint has them, adapters in fp32, no autocast
    return found


def _recompute(values: Watched) -> dict[str, Any]:
    """Layers run again unless that is switched off, by the reentrant code [LF model_utils/checkpointing.py]."""
    values.must_be_off("use_unsloth_gc")
    values.ignore("gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_checkpointing",
                  "activation_checkpointing_kwargs")  # LLaMA-Factory switches them itself
    if values.flag("disable_gradient_checkpointing"):
        values.get("use_reentrant_gc")
        return {"recompute": "none"}
    reentrant = values.flag("use_reentrant_gc") is not False
    return {"recompute": "full"} | engine_options(reentrant=reentrant)


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
    """Adam-mini, Muon, GaLore and APOLLO as LLaMA-Factory switches them [LF train/trainer_utils.py]."""
    if values.flag("use_adam_mini"):
        return {"optimizer": "adam-mini"}
    if values.flag("use_muon"):
        return {"optimizer": "muon"}
    for name in ("galore", "apollo"):
        if values.flag(f"use_{name}"):
            rule = f"{name}-layerwise" if values.flag(f"{name}_layerwise") else name
            values.only(f"{name}_target", "all", ["all"])
            values.only(f"{name}_proj_type", "std")
            return {"optimizer": f"{rule}:{values.count(f'{name}_rank') or 16}"}
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
    if kind not in ("lora", "oft"):
        values.cannot("finetuning_type", "{} is not modelled", str(kind)[:40], option="peft")
        return {}
    found: dict[str, Any] = {"peft": "oft" if kind == "oft" else "dora" if values.flag("use_dora") else "lora"}
    found["lora-rank"] = values.count(OF_RANK[kind][0]) or OF_RANK[kind][1]
    found["lora-targets"] = _names(values.get(f"{kind}_target", "all"))
    if kind == "oft" and values.number("oft_rank"):
        values.cannot("oft_rank", "stops beside oft_block_size, which is 32 unasked [PEFT OFTConfig]")
    found["adapter-dtype"] = "bf16" if values.flag("pure_bf16") else "fp32"  # whatever TRL does: [LF model/adapter.py]
    saved = values.get("additional_target")
    return found | without_none({
        "lora-dropout": values.number("lora_dropout"), "modules-to-save": _names(saved) if saved else None,
    }) | _stored(values)


def _names(given: Any) -> str:
    """Modules by the names that transformers gives them; "all": every linear layer but the head."""
    listed = [str(name).strip() for name in (given if isinstance(given, list) else str(given).split(","))]
    return ALL if listed == ["all"] else ",".join(listed)


def _stored(values: Watched) -> dict[str, Any]:
    """The frozen weights: quantised while they load [LF model_utils/quantization.py]."""
    bits = values.one_of("quantization_bit", {"4": 4, "8": 8}, option="base-weights")
    values.only("quantization_method", "bnb", "BNB", "bitsandbytes")
    packed = PACKED.search(str(values.get("model_name_or_path", ""))) is not None  # which wins over bits
    if not packed and (named := QUANTISED.search(str(values.get("model_name_or_path", "")))) is not None:
        eight = re.search(r"(?i)int8|8-?bit", str(values.get("model_name_or_path")))
        kind = "gptq-int8" if eight and named[0].lower() == "gptq" else STORED.get(named[0].lower())
        if kind is None:
            values.cannot("model_name_or_path", "{} weights are not modelled", named[0], option="base-weights")
        return {"base-weights": kind} if kind else {}
    loaded = f"dtype={'float16' if values.flag('fp16') else 'bfloat16'}"  # whatever TRL does: [LF model/loader.py]
    if bits is None and not packed:
        return {"engine-option": (loaded,)}
    prepared = "norms" if values.flag("upcast_layernorm") else "none"
    found: dict[str, Any] = {"engine-option": (f"prepare_kbit={prepared}", loaded)}
    if packed:
        return found | {"base-weights": "nf4-dq"}
    if bits == 8:
        return found | {"base-weights": "int8"}
    values.only("quantization_type", "nf4")
    return found | {"base-weights": "nf4" if values.flag("double_quantization") is False else "nf4-dq"}


NAME: Final = "llamafactory.yaml"

STAGE_WORDS: Final = written(STAGES)

DATASETS: Final = {"pt": "c4_demo", "sft": "alpaca_en_demo", "dpo": "dpo_en_demo", "kto": "kto_en_demo",
                   "rm": "dpo_en_demo"}
"""Small data sets that come with LLaMA-Factory."""

KERNEL_WORDS: Final = written(KERNELS)
"""Those that `flash_attn` chooses between; which of PyTorch's runs it leaves to PyTorch."""

BITS: Final = {"nf4": 4, "nf4-dq": 4, "int8": 8}

METHODS: Final = ("lora", "dora")


REFUSALS: Final = (
    Refusal(lambda job: job.plan.tp * job.plan.pp * job.plan.cp * job.plan.ep > 1,
            "LLaMA-Factory splits over data-parallel ranks only; use tp=pp=cp=ep=1"),
    Refusal(lambda job: job.workload.objective not in STAGE_WORDS,
            f"LLaMA-Factory's file is written for {', '.join(STAGE_WORDS)}, not for {{workload.objective}}, which it "
            "trains otherwise or not at all"),
    Refusal(lambda job: any(stack.vision is not None for stack in job.model.stacks[:-1]),
            "LLaMA-Factory leaves the towers of {job.model.name} frozen, which is not modelled; use "
            "--format transformers"),
    Refusal(lambda job: len(job.model.stacks) > 1 or job.model.head is not Head.LM,  # it loads causal models
            "LLaMA-Factory trains decoders only, and {job.model.name} has other parts; use --format transformers"),
    Refusal(lambda job: job.plan.recompute is Recompute.SELECTIVE,
            "LLaMA-Factory recomputes whole layers only; use --recompute full"),
)


def write(order: Order) -> tuple[File, ...]:
    """The one file; `llamafactory-cli train` reads it.

    Raises: Unsupported for what LLaMA-Factory does not do
    """
    job: Job = order.job
    refuse(REFUSALS, job)
    refuse_chunks(job, "LLaMA-Factory")
    order.ask.also("option.log_probs", "option.value_head")
    if compares(job) and not in_one(job):
        raise Unsupported(
            "LLaMA-Factory's {} makes log-probabilities of all logits at once, not sample by sample as TRL's; add "
            "--engine-option log_probs=whole", job.workload.objective.upper()
        )
    own = (*_model(order), *_method(order), *_data(order))
    arguments = _arguments(order)
    head = head_of(order, f"FORCE_TORCHRUN=1 llamafactory-cli train {NAME}")
    text = yaml_text((*own, *arguments), head=head)
    return (order.file(NAME, text, (Part("llamafactory", "arguments"),), _notes(job)),)


def _notes(job: Job) -> tuple[str, ...]:
    peft = job.plan.peft
    if peft is None or peft.base not in STORED.values():
        return ()
    return (Note("{}: model_name_or_path must be a checkpoint already quantised to {}", NAME, peft.base),)


def _model(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    lines = [Line("model_name_or_path", hub_id(order.job.model))]
    if plan.attention in KERNEL_WORDS:
        ask.also("attention")
        why = f"attention kernel: {plan.attention or 'as Transformers chooses'}"
        lines.append(Line("flash_attn", KERNEL_WORDS[plan.attention], why))
    if ask("recompute") == Recompute.NONE:
        lines.append(Line("disable_gradient_checkpointing", True, "LLaMA-Factory recomputes unless told not to"))
    else:
        lines += [Line("disable_gradient_checkpointing", False, "layers keep only their input"),
                  Line("use_reentrant_gc", reentrant(order.job), "the variant that was computed")]
        ask.also("option.reentrant")
    lines += _kernel_lines(order)
    return (*lines, *_base(order))


def _kernel_lines(order: Order) -> list[Line]:
    """Whose kernels run; LLaMA-Factory switches all of Liger's on at once [LF model_utils/liger_kernel.py]."""
    plan, unsloth = order.job.plan, order.job.engine == "unsloth"
    kernels = () if unsloth else liger_kernels(order.job)
    switched = liger_of_stage(order.job.workload.objective)
    liger = bool(kernels) and set(kernels) == set(switched) and plan.loss in (
        None, Loss.FUSED_LINEAR if FUSED_HEAD in switched else Loss.EAGER)
    if not liger and (kernels or plan.loss in (Loss.FUSED, Loss.FUSED_LINEAR)) and not unsloth:
        raise Unsupported("LLaMA-Factory's Liger kernels replace norms, activations and rotary embeddings and fuse the "
                          "head with its loss, all together; add --engine-option liger=true, or use --loss eager")
    if liger or plan.loss in (None, Loss.COMPILED if plan.compile else None if unsloth else Loss.EAGER):
        order.ask.also("loss", "option.liger")
    lines = [Line("enable_liger_kernel", True, "Liger's kernels, as computed")] if liger else []
    return lines + ([Line("use_unsloth", True, "Unsloth's kernels, as computed")] if unsloth else [])


def _base(order: Order) -> Table:
    peft = order.job.plan.peft
    if peft is None or peft.base not in BITS:
        return ()
    base = order.ask("peft.base")
    lines = [Line("quantization_bit", BITS[base], f"frozen weights: {base}"), Line("quantization_method", "bnb")]
    if BITS[base] == 4:
        lines += [Line("quantization_type", "nf4"),
                  Line("double_quantization", base == "nf4-dq", "whether the scales are quantised too")]
    if order.job.engine == "unsloth":
        return tuple(lines)
    order.ask.also("option.prepare_kbit")
    match prepared_weights(order.job):
        case "all":
            raise Unsupported("LLaMA-Factory does not call prepare_model_for_kbit_training, which the plan counts; add "
                              "--engine-option prepare_kbit=none")
        case "norms":
            lines.append(Line("upcast_layernorm", True, "norms are fp32, as TRL of that release prepares them"))
    return tuple(lines)


def _method(order: Order) -> Table:
    ask, job = order.ask, order.job
    stage = STAGE_WORDS[ask("objective")]
    lines = [Line("stage", stage, f"objective: {job.workload.objective}"), Line("do_train", True)]
    peft: Peft | None = job.plan.peft
    if peft is None:
        return (*lines, Line("finetuning_type", "full", "every weight learns"), *_pure(order))
    if ask("peft.method") not in METHODS:
        raise Unsupported("LLaMA-Factory has no {}; use lora or dora, or --format transformers", peft.method)
    rank = ask("peft.rank")
    lines += [
        Line("finetuning_type", "lora", "only adapters learn"),
        *_pure(order),
        Line("lora_rank", rank),
        Line("lora_alpha", 2 * rank, "not part of the plan"),
        Line("lora_dropout", ask("peft.dropout")),
        Line("lora_target", ",".join(_modules(order)), "the adapted matrices"),
    ]
    if peft.method == "dora":
        lines.append(Line("use_dora", True, "direction and magnitude apart"))
    saved = names_saved(job.model, ask("peft.modules_to_save"))
    return (*lines, *([Line("additional_target", ",".join(saved), "learn whole beside adapters")] if saved else []))


def _modules(order: Order) -> tuple[str, ...]:
    named = names_of(order.job.model, order.ask("peft.targets"))
    if named.parameters:
        raise Unsupported("LLaMA-Factory names no stacked experts: leave {} out of --lora-targets", named.parameters[0])
    return named.modules


def _pure(order: Order) -> Table:
    """What learns is fp32 unless all of it is bf16 [LF model/adapter.py `init_adapter`]."""
    job, peft = order.job, order.job.plan.peft
    zero, pure = runs_deepspeed(job), job.plan.precision is Precision.BF16
    if peft is not None and not zero:
        order.ask.also("peft.adapter_dtype", "option.trl", "option.dtype")
        if loads_fp32(job):
            raise Unsupported("LLaMA-Factory loads frozen weights in 16 bits, not in float32; add --engine-option "
                              "dtype=bfloat16")
        if peft.adapter_dtype == "fp16" or (peft.adapter_dtype == "bf16" and not pure):
            raise Unsupported(
                "LLaMA-Factory keeps adapters in fp32 under autocast, not in {}; use --adapter-dtype fp32, or bf16 "
                "with --precision bf16", peft.adapter_dtype
            )
        pure = peft.adapter_dtype == "bf16"
    elif peft is not None:
        order.ask.also("peft.adapter_dtype")  # DeepSpeed casts them with the rest
    return (Line("pure_bf16", True, "weights, gradients and states in bf16"),) if pure and not zero else ()


def _data(order: Order) -> Table:
    stage = STAGE_WORDS[order.job.workload.objective]
    lines = [
        Line("dataset", DATASETS[stage], "comes with LLaMA-Factory: name your own"),
        Line("template", "default", "the chat format of the model"),
        Line("cutoff_len", order.ask("seq_len"), "positions of a sample"),
    ]
    if stage in ("pt", "sft"):
        packs = order.job.workload.min_seq_len is None
        order.ask.also(*(["min_seq_len"] if order.job.workload.min_seq_len == 1 else []))
        lines.append(Line("packing", packs, "samples fill the length" if packs else "one sample a row"))
    return (*lines, Line("output_dir", "output"), Line("overwrite_cache", True))


def _arguments(order: Order) -> Table:
    """Names of TrainingArguments, and LLaMA-Factory's own switches of low-rank optimizers."""
    ask = order.ask
    lines = [
        Line("per_device_train_batch_size", ask("micro_batch"), "samples per forward on one GPU"),
        Line("gradient_accumulation_steps", ask("grad_accum"), "micro-batches per optimizer step"),
        Line("learning_rate", deepspeed.LEARNING_RATE, "not part of the plan: set your own"),
        Line("num_train_epochs", 1.0, "not part of the plan"),
        *_precision_lines(order),
        *_optimizer(order),
    ]
    if ask("compile"):
        lines.append(Line("torch_compile", True))
    if runs_deepspeed(order.job):
        lines.append(Line("deepspeed", deepspeed.NAME, "ZeRO and offload stand there"))
    return tuple(lines)


def _optimizer(order: Order) -> list[Line]:
    plan = order.job.plan
    name = plan.optimizer.partition(":")[0]
    if runs_deepspeed(order.job) and name in deepspeed.OWN_OPTIMIZERS:
        return []  # the DeepSpeed file builds it
    kernel = kernel_of(order.job)
    found = optim_of(plan.optimizer, kernel)
    if found is None:
        kinds = ", ".join(OPTIMIZERS)
        if kernel:
            raise Unsupported("LLaMA-Factory has no optimizer {} with kernel {}; use {}", name, kernel, kinds)
        raise Unsupported("LLaMA-Factory has no optimizer {}; use {}", name, kinds)
    order.ask.also("optimizer", "optimizer_kernel")
    if name in LOW_RANK:
        bare, dash, _ = name.partition("-")
        return [Line(f"use_{bare}", True, f"{plan.optimizer}, as planned"),
                *([Line(f"{bare}_layerwise", True, "a weight is stepped when its gradient comes")] if dash else []),
                Line(f"{bare}_rank", optimizer(plan.optimizer).rank), Line(f"{bare}_target", "all")]
    arguments = [Line("optim_args", found[1])] if found[1] else []
    return [Line("optim", found[0], f"{plan.optimizer}, as planned"), *arguments]


def _precision_lines(order: Order) -> list[Line]:
    precision, peft = Precision(order.ask("precision")), order.job.plan.peft
    if precision in (Precision.FP8, Precision.FP64, Precision.FP16):
        raise Unsupported("LLaMA-Factory trains in no {}; use amp-bf16 or bf16", precision.value)
    if precision in (Precision.FP32, Precision.TF32):
        if peft is not None:
            raise Unsupported("LLaMA-Factory loads frozen weights as the checkpoint has them, not in fp32; use "
                              "--precision amp-bf16")
        return [Line("tf32", True, "fp32 products run in TF32")] if precision is Precision.TF32 else []
    if precision is Precision.BF16 and not runs_deepspeed(order.job):
        return []  # pure_bf16, or frozen weights without autocast
    half = "fp16" if precision in (Precision.AMP_FP16, Precision.MIXED_FP16) else "bf16"
    return [Line(half, True, f"precision: {precision.value}")]
