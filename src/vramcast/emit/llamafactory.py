"""LLaMA-Factory's YAML: model, method, data and training arguments in one file.

[LF] llamafactory hparams/*.py, names as in its snapshot; the rest are transformers' TrainingArguments
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute
from vramcast.emit import deepspeed
from vramcast.emit.files import File, Order, Part
from vramcast.emit.launch import head_of
from vramcast.emit.lines import Line, Table
from vramcast.emit.model_names import hub_id
from vramcast.emit.transformers import OPTIMIZERS
from vramcast.emit.yaml_text import yaml_text
from vramcast.errors import Unsupported
from vramcast.families.module_names import names_of, names_saved

NAME: Final = "llamafactory.yaml"

STAGES: Final = {"pretrain": "pt", "sft": "sft", "dpo": "dpo", "ppo": "ppo", "reward": "rm"}

DATASETS: Final = {"pt": "c4_demo", "sft": "alpaca_en_demo", "dpo": "dpo_en_demo", "ppo": "alpaca_en_demo",
                   "rm": "dpo_en_demo"}
"""Small data sets that come with LLaMA-Factory."""

KERNELS: Final = {AttentionKernel.FLASH: "fa2", AttentionKernel.EFFICIENT: "sdpa", AttentionKernel.CUDNN: "sdpa",
                  AttentionKernel.EAGER: "disabled"}

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
        raise Unsupported(f"LLaMA-Factory trains no {job.workload.objective}; use {', '.join(STAGES)}")
    if plan.recompute is Recompute.SELECTIVE:
        raise Unsupported("LLaMA-Factory recomputes whole layers only; use --recompute full")
    order.ask.also("option.padded", "option.auto", "option.deepspeed", "option.shifted_loss")
    own = (*_model(order), *_method(order), *_data(order))
    arguments = _arguments(order)
    head = head_of(order, f"FORCE_TORCHRUN=1 llamafactory-cli train {NAME}")
    text = yaml_text((*own, *arguments), head=head)
    parts = (Part("llamafactory", "arguments"),)
    return (File(NAME, text, parts, frozenset(order.ask.said)),)


def _model(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    lines = [
        Line("model_name_or_path", hub_id(order.job.model)),
        Line("flash_attn", KERNELS[AttentionKernel(ask("attention"))], f"attention kernel: {ask('attention')}"),
    ]
    if ask("recompute") == Recompute.NONE:
        lines.append(Line("disable_gradient_checkpointing", True, "LLaMA-Factory recomputes unless told not to"))
    else:
        lines += [Line("disable_gradient_checkpointing", False, "layers keep only their input"),
                  Line("use_reentrant_gc", bool(ask("option.reentrant", False)), "the variant that was computed")]
    if plan.loss in (Loss.FUSED, Loss.FUSED_LINEAR) and order.job.engine != "unsloth":
        if plan.loss is Loss.FUSED:
            raise Unsupported("LLaMA-Factory's Liger kernels fuse the head with its loss; use --loss fused_linear")
        ask.also("loss")
        lines.append(Line("enable_liger_kernel", True, "the loss never makes all logits"))
    elif plan.loss is Loss.EAGER:
        ask.also("loss")
    if order.job.engine == "unsloth":
        ask.also("loss")
        lines.append(Line("use_unsloth", True, "Unsloth's kernels, as computed"))
    return (*lines, *_base(order))


def _base(order: Order) -> Table:
    base = order.ask("peft.base", "full")
    if base not in BITS:
        return ()
    lines = [Line("quantization_bit", BITS[base], f"frozen weights: {base}"), Line("quantization_method", "bnb")]
    if BITS[base] == 4:
        lines += [Line("quantization_type", "nf4"),
                  Line("double_quantization", base == "nf4-dq", "whether the scales are quantised too")]
    return tuple(lines)


def _method(order: Order) -> Table:
    ask, job = order.ask, order.job
    stage = STAGES[ask("objective")]
    lines = [Line("stage", stage, f"objective: {job.workload.objective}"), Line("do_train", True)]
    method = ask("peft.method")
    if method is None:
        return (*lines, Line("finetuning_type", "full", "every weight learns"), *_pure(order))
    if method not in METHODS:
        raise Unsupported(f"LLaMA-Factory has no {method}; use lora or dora, or --format transformers")
    if ask("peft.adapter_dtype") != "fp32":
        lines.append(Line("pure_bf16", True, "adapters in 16 bits"))
    rank = ask("peft.rank")
    lines += [
        Line("finetuning_type", "lora", "only adapters learn"),
        Line("lora_rank", rank),
        Line("lora_alpha", 2 * rank, "not part of the plan"),
        Line("lora_dropout", ask("peft.dropout")),
        Line("lora_target", ",".join(_modules(order)), "the adapted matrices"),
    ]
    if method == "dora":
        lines.append(Line("use_dora", True, "direction and magnitude apart"))
    saved = names_saved(job.model, ask("peft.modules_to_save"))
    return (*lines, *([Line("additional_target", ",".join(saved), "learn whole beside adapters")] if saved else []))


def _modules(order: Order) -> tuple[str, ...]:
    named = names_of(order.job.model, order.ask("peft.targets"))
    if named.parameters:
        raise Unsupported(f"LLaMA-Factory names no stacked experts: leave {named.parameters[0]} out of --lora-targets")
    return named.modules


def _pure(order: Order) -> Table:
    if order.ask("precision") == Precision.BF16 and not deepspeed.is_used(order.job):
        return (Line("pure_bf16", True, "weights, gradients and states in bf16"),)
    return ()


def _data(order: Order) -> Table:
    stage = STAGES[order.job.workload.objective]
    lines = [
        Line("dataset", DATASETS[stage], "comes with LLaMA-Factory: name your own"),
        Line("template", "default", "the chat format of the model"),
        Line("cutoff_len", order.ask("seq_len"), "positions of a sample"),
    ]
    if stage == "ppo":
        lines += [Line("reward_model", "REWARD-MODEL", "the checkpoint that rates answers"),
                  Line("max_new_tokens", order.ask("completion_len") or 512, "tokens generated per sample")]
    return (*lines, Line("output_dir", "output"), Line("overwrite_cache", True))


def _arguments(order: Order) -> Table:
    """Names of TrainingArguments."""
    ask = order.ask
    lines = [
        Line("per_device_train_batch_size", ask("micro_batch"), "samples per forward on one GPU"),
        Line("gradient_accumulation_steps", ask("grad_accum"), "micro-batches per optimizer step"),
        Line("learning_rate", deepspeed.LEARNING_RATE, "not part of the plan: set your own"),
        Line("num_train_epochs", 1.0, "not part of the plan"),
        *_precision(order),
    ]
    name, kernel = ask("optimizer"), ask("optimizer_kernel")
    if not (deepspeed.is_used(order.job) and name in deepspeed.OPTIMIZERS):
        if name not in OPTIMIZERS or kernel == "loop" or (kernel == "fused" and name != "adamw"):
            kinds = ", ".join(OPTIMIZERS)
            raise Unsupported(f"LLaMA-Factory has no optimizer {name} with kernel {kernel}; use {kinds}")
        optim = "adamw_torch_fused" if kernel == "fused" else OPTIMIZERS[name][0]
        lines.append(Line("optim", optim, f"{name}, as planned"))
    if ask("compile"):
        lines.append(Line("torch_compile", True))
    if deepspeed.is_used(order.job):
        lines.append(Line("deepspeed", deepspeed.NAME, "ZeRO and offload stand there"))
    return tuple(lines)


def _precision(order: Order) -> list[Line]:
    precision = Precision(order.ask("precision"))
    if precision in (Precision.FP8, Precision.FP64, Precision.FP16):
        raise Unsupported(f"LLaMA-Factory trains in no {precision.value}; use amp-bf16 or bf16")
    if precision is Precision.TF32:
        return [Line("tf32", True, "fp32 products run in TF32")]
    if precision is Precision.FP32:
        return []
    half = "fp16" if precision in (Precision.AMP_FP16, Precision.MIXED_FP16) else "bf16"
    return [Line(half, True, f"precision: {precision.value}")]
