"""LLaMA-Factory's YAML: model, method, data and training arguments in one file.

[LF] llamafactory hparams/*.py, names as in its snapshot; the rest are transformers' TrainingArguments
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import Job, Loss, Peft, Precision, Recompute
from vramcast.domain.model import Head
from vramcast.emit import deepspeed
from vramcast.emit.files import File, Order, Part, hub_id
from vramcast.emit.launch import head_of
from vramcast.emit.lines import Line, Table, yaml_text
from vramcast.emit.transformers import kernel_of, refuse_chunks
from vramcast.engines.eager.releases import liger_kernels, loads_fp32, prepared_weights, reentrant, runs_deepspeed
from vramcast.errors import Unsupported
from vramcast.families.module_names import names_of, names_saved
from vramcast.question.configs import factory as reader
from vramcast.question.configs.reading import written
from vramcast.question.configs.trainers import FUSED_HEAD, LOW_RANK, OPTIMIZERS, optim_of
from vramcast.states.optimizers import optimizer

NAME: Final = "llamafactory.yaml"

STAGES: Final = written(reader.STAGES)

DATASETS: Final = {"pt": "c4_demo", "sft": "alpaca_en_demo", "dpo": "dpo_en_demo"}
"""Small data sets that come with LLaMA-Factory."""

KERNELS: Final = written(reader.KERNELS)
"""Those that `flash_attn` chooses between; which of PyTorch's runs it leaves to PyTorch."""

BITS: Final = {"nf4": 4, "nf4-dq": 4, "int8": 8}

METHODS: Final = ("lora", "dora")


def write(order: Order) -> tuple[File, ...]:
    """The one file; `llamafactory-cli train` reads it.

    Raises: Unsupported for what LLaMA-Factory does not do
    """
    job: Job = order.job
    plan = job.plan
    if plan.tp * plan.pp * plan.cp * plan.ep > 1:
        raise Unsupported("LLaMA-Factory splits over data-parallel ranks only; use tp=pp=cp=ep=1")
    if job.workload.objective not in STAGES:
        raise Unsupported(
            f"LLaMA-Factory's file is written for {', '.join(STAGES)}, not for {job.workload.objective}, which it "
            "trains otherwise or not at all"
        )
    if any(stack.vision is not None for stack in job.model.stacks[:-1]):
        raise Unsupported(f"LLaMA-Factory leaves the towers of {job.model.name} frozen, which is not modelled; use "
                          "--format transformers")
    if len(job.model.stacks) > 1 or job.model.head is not Head.LM:  # it loads causal models
        raise Unsupported(f"LLaMA-Factory trains decoders only, and {job.model.name} has other parts; use "
                          "--format transformers")
    if plan.recompute is Recompute.SELECTIVE:
        raise Unsupported("LLaMA-Factory recomputes whole layers only; use --recompute full")
    refuse_chunks(job, "LLaMA-Factory")
    own = (*_model(order), *_method(order), *_data(order))
    arguments = _arguments(order)
    head = head_of(order, f"FORCE_TORCHRUN=1 llamafactory-cli train {NAME}")
    text = yaml_text((*own, *arguments), head=head)
    return (order.file(NAME, text, (Part("llamafactory", "arguments"),), _notes(job)),)


def _notes(job: Job) -> tuple[str, ...]:
    peft = job.plan.peft
    if peft is None or peft.base not in reader.STORED.values():
        return ()
    return (f"{NAME}: model_name_or_path must be a checkpoint already quantised to {peft.base}",)


def _model(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    lines = [Line("model_name_or_path", hub_id(order.job.model))]
    if plan.attention in KERNELS:
        ask.also("attention")
        why = f"attention kernel: {plan.attention or 'as Transformers chooses'}"
        lines.append(Line("flash_attn", KERNELS[plan.attention], why))
    if ask("recompute") == Recompute.NONE:
        lines.append(Line("disable_gradient_checkpointing", True, "LLaMA-Factory recomputes unless told not to"))
    else:
        lines += [Line("disable_gradient_checkpointing", False, "layers keep only their input"),
                  Line("use_reentrant_gc", reentrant(order.job), "the variant that was computed")]
        ask.also("option.reentrant")
    lines += _kernels(order)
    return (*lines, *_base(order))


def _kernels(order: Order) -> list[Line]:
    """Whose kernels run; LLaMA-Factory switches all of Liger's on at once [LF model_utils/liger_kernel.py]."""
    plan, unsloth = order.job.plan, order.job.engine == "unsloth"
    kernels = () if unsloth else liger_kernels(order.job)
    switched = reader.liger_of_stage(order.job.workload.objective)
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
    stage = STAGES[ask("objective")]
    lines = [Line("stage", stage, f"objective: {job.workload.objective}"), Line("do_train", True)]
    peft: Peft | None = job.plan.peft
    if peft is None:
        return (*lines, Line("finetuning_type", "full", "every weight learns"), *_pure(order))
    if ask("peft.method") not in METHODS:
        raise Unsupported(f"LLaMA-Factory has no {peft.method}; use lora or dora, or --format transformers")
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
        raise Unsupported(f"LLaMA-Factory names no stacked experts: leave {named.parameters[0]} out of --lora-targets")
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
            raise Unsupported(f"LLaMA-Factory keeps adapters in fp32 under autocast, not in {peft.adapter_dtype}; use "
                              "--adapter-dtype fp32, or bf16 with --precision bf16")
        pure = peft.adapter_dtype == "bf16"
    elif peft is not None:
        order.ask.also("peft.adapter_dtype")  # DeepSpeed casts them with the rest
    return (Line("pure_bf16", True, "weights, gradients and states in bf16"),) if pure and not zero else ()


def _data(order: Order) -> Table:
    stage = STAGES[order.job.workload.objective]
    lines = [
        Line("dataset", DATASETS[stage], "comes with LLaMA-Factory: name your own"),
        Line("template", "default", "the chat format of the model"),
        Line("cutoff_len", order.ask("seq_len"), "positions of a sample"),
    ]
    return (*lines, Line("output_dir", "output"), Line("overwrite_cache", True))


def _arguments(order: Order) -> Table:
    """Names of TrainingArguments, and LLaMA-Factory's own switches of low-rank optimizers."""
    ask = order.ask
    lines = [
        Line("per_device_train_batch_size", ask("micro_batch"), "samples per forward on one GPU"),
        Line("gradient_accumulation_steps", ask("grad_accum"), "micro-batches per optimizer step"),
        Line("learning_rate", deepspeed.LEARNING_RATE, "not part of the plan: set your own"),
        Line("num_train_epochs", 1.0, "not part of the plan"),
        *_precision(order),
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
    if runs_deepspeed(order.job) and name in deepspeed.OPTIMIZERS:
        return []  # the DeepSpeed file builds it
    kernel = kernel_of(order.job)
    found = optim_of(plan.optimizer, kernel)
    if found is None:
        kinds = ", ".join(OPTIMIZERS)
        if kernel:
            raise Unsupported(f"LLaMA-Factory has no optimizer {name} with kernel {kernel}; use {kinds}")
        raise Unsupported(f"LLaMA-Factory has no optimizer {name}; use {kinds}")
    order.ask.also("optimizer", "optimizer_kernel")
    if name in LOW_RANK:
        return [Line(f"use_{name}", True, f"{plan.optimizer}, as planned"),
                Line(f"{name}_rank", optimizer(plan.optimizer).rank), Line(f"{name}_target", "all")]
    arguments = [Line("optim_args", found[1])] if found[1] else []
    return [Line("optim", found[0], f"{plan.optimizer}, as planned"), *arguments]


def _precision(order: Order) -> list[Line]:
    precision, peft = Precision(order.ask("precision")), order.job.plan.peft
    if precision in (Precision.FP8, Precision.FP64, Precision.FP16):
        raise Unsupported(f"LLaMA-Factory trains in no {precision.value}; use amp-bf16 or bf16")
    if precision in (Precision.FP32, Precision.TF32):
        if peft is not None:
            raise Unsupported("LLaMA-Factory loads frozen weights as the checkpoint has them, not in fp32; use "
                              "--precision amp-bf16")
        return [Line("tf32", True, "fp32 products run in TF32")] if precision is Precision.TF32 else []
    if precision is Precision.BF16 and not runs_deepspeed(order.job):
        return []  # pure_bf16, or frozen weights without autocast
    half = "fp16" if precision in (Precision.AMP_FP16, Precision.MIXED_FP16) else "bf16"
    return [Line(half, True, f"precision: {precision.value}")]
