"""Hugging Face Trainer: the arguments as YAML, and the script that reads them.

[HF] transformers training_args.py `TrainingArguments`, names as in its snapshot; `OptimizerNames` for the optimizers
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute, Shards
from vramcast.emit import deepspeed
from vramcast.emit.files import File, Order, Part, hub_id
from vramcast.emit.launch import ACCELERATE, RUN, TORCHRUN, head_of, run_script
from vramcast.emit.lines import Line, Table, yaml_text
from vramcast.emit.python_parts import (
    COMPUTE_DTYPES,
    WEIGHT_DTYPES,
    build_model_lines,
    constant,
    kernel_lines,
    stored_before,
)
from vramcast.engines.eager.releases import (
    LIGER,
    chunks_loss,
    liger_kernels,
    loads_fp32,
    optimizer_kernel,
    reentrant,
    runs_deepspeed,
)
from vramcast.errors import Unsupported
from vramcast.question.configs import trainers
from vramcast.question.configs.reading import written
from vramcast.question.configs.trainers import LOW_RANK, OPTIMIZERS, optim_of

NAME: Final = "training_args.yaml"
SCRIPT: Final = "train_trainer.py"

LIGER_LOSSES: Final = written(trainers.LIGER_LOSSES)

TRAINER_OBJECTIVES: Final = ("pretrain", "sft")


def write(order: Order) -> tuple[File, ...]:
    """Arguments, script and the line that starts them.

    Raises: Unsupported for what the Trainer does not do
    """
    job: Job = order.job
    if job.workload.objective not in TRAINER_OBJECTIVES:
        raise Unsupported(f"the Trainer optimises no {job.workload.objective}; --format llamafactory writes dpo")
    if job.plan.tp * job.plan.pp * job.plan.cp * job.plan.ep > 1:
        raise Unsupported("the Trainer's arguments split over data-parallel ranks only; use tp=pp=cp=ep=1")
    order.ask.also("objective")
    table = training_arguments(order)
    text = yaml_text(table, head=head_of(order))
    code, start = order.apart(), order.apart()
    script = _script(code)
    run = run_script(start, f"{SCRIPT} {NAME}", starter=ACCELERATE if _is_fsdp(job) else TORCHRUN)
    return (
        order.file(NAME, text, (Part("transformers", "TrainingArguments"),)),
        code.file(SCRIPT, script, notes=stored_before(order, SCRIPT)),
        start.file(RUN, run, executable=True),
    )


def _is_fsdp(job: Job) -> bool:
    """Whether the ranks share weights without DeepSpeed: then Accelerate's file says how."""
    return job.plan.shards is not Shards.NOTHING and job.data_parallel > 1 and not runs_deepspeed(job)


def training_arguments(order: Order) -> Table:
    """The fields of TrainingArguments that the plan decides."""
    ask = order.ask
    micro, steps, ranks = ask("micro_batch"), ask("grad_accum"), order.job.data_parallel
    lines = [
        Line("output_dir", "output"),
        Line("per_device_train_batch_size", micro, "samples per forward on one GPU"),
        Line("gradient_accumulation_steps", steps,
             f"{micro} x {steps} x {ranks} ranks = {micro * steps * ranks} samples a step"),
        Line("num_train_epochs", 1.0, "not part of the plan"),
        Line("learning_rate", deepspeed.LEARNING_RATE, "not part of the plan: set your own"),
        *precision_lines(order),
        *recompute_lines(order),
        *_optimizer(order),
        *_loss(order),
    ]
    if ask("compile"):
        lines.append(Line("torch_compile", True, "kernels of norms, activations and the loss are fused"))
    if runs_deepspeed(order.job):
        lines.append(Line("deepspeed", deepspeed.NAME, "ZeRO and offload stand there"))
    return tuple(lines)


def precision_lines(order: Order) -> list[Line]:
    """Autocast, or the dtype DeepSpeed trains in; without either the script says what weights are loaded in."""
    precision, zero = order.job.plan.precision, runs_deepspeed(order.job)
    if zero or precision not in (Precision.BF16, Precision.FP16, Precision.FP64):
        order.ask("precision")
    if precision is Precision.FP8:
        raise Unsupported("the Trainer has no fp8 of its own; use --engine megatron or torchtitan")
    width = COMPUTE_DTYPES.get(precision)
    over = order.ask.settings.get("option.autocast", False)  # together with what the script loads weights in
    if (zero or over) and precision in (Precision.BF16, Precision.FP16):
        width = WEIGHT_DTYPES[precision]
    why = (
        f"{precision.value}: "
        f"{'16-bit weights under DeepSpeed' if zero else f'autocast over {16 if over else 32}-bit weights'}"
    )
    lines = [Line({"bfloat16": "bf16", "float16": "fp16"}[width], True, why)] if width else []
    if precision is Precision.TF32:
        lines.append(Line("tf32", True, "matrix products of fp32 tensors run in TF32"))
    return lines


def recompute_lines(order: Order) -> list[Line]:
    recompute = Recompute(order.ask("recompute"))
    if recompute is Recompute.SELECTIVE:
        raise Unsupported("the Trainer recomputes whole layers only; use --recompute full")
    if recompute is Recompute.NONE:
        return [Line("gradient_checkpointing", False, "layers keep what backward needs")]
    order.ask.also("option.reentrant")
    variant = (Line("use_reentrant", reentrant(order.job), "the variant that was computed"),)
    return [
        Line("gradient_checkpointing", True, "layers keep only their input and run again in backward"),
        Line("gradient_checkpointing_kwargs", variant),
    ]


def kernel_of(job: Job) -> str | None:
    """The implementation of the step that was computed, where the Trainer has several."""
    return optimizer_kernel(job) if job.plan.optimizer == "adamw" else job.plan.optimizer_kernel


def _optimizer(order: Order) -> list[Line]:
    name, kernel = order.job.plan.optimizer, kernel_of(order.job)
    if runs_deepspeed(order.job) and name in deepspeed.OPTIMIZERS:
        return []  # the DeepSpeed file builds it
    order.ask.also("optimizer", "optimizer_kernel")
    found = optim_of(name, kernel)
    if found is None:
        if name.partition(":")[0] in OPTIMIZERS and order.job.plan.optimizer_kernel is None:
            raise Unsupported(f"files are for the newest Trainer, which has no optimizer {name} with kernel {kernel}; "
                              "add --optimizer-kernel foreach")
        if name.partition(":")[0] in OPTIMIZERS:
            raise Unsupported(f"the Trainer does not choose the kernel of {name}; leave --optimizer-kernel out")
        raise Unsupported(f"the Trainer has no optimizer {name}; use {', '.join(OPTIMIZERS)}")
    lines = [Line("optim", found[0], f"{name}, as planned")]
    if name.partition(":")[0] in LOW_RANK:
        lines.append(Line("optim_target_modules", "all-linear", "every matrix is projected"))
    return lines + ([Line("optim_args", found[1])] if found[1] else [])


def refuse_chunks(job: Job, tool: str) -> None:
    """Raise Unsupported for TRL's own loss, which other trainers do not make."""
    if chunks_loss(job):
        raise Unsupported(f"{tool} makes all logits at once, not in chunks as TRL's SFTTrainer; add --loss eager")


def _loss(order: Order) -> list[Line]:
    plan, kernels = order.job.plan, set(liger_kernels(order.job))
    refuse_chunks(order.job, "the Trainer")
    if plan.loss in (None, Loss.COMPILED if plan.compile else Loss.EAGER):
        order.ask.also("loss")
    elif plan.loss in LIGER_LOSSES:
        order.ask.also("loss")
        kernels = kernels - {*LIGER_LOSSES.values()} | {LIGER_LOSSES[plan.loss]}
    elif plan.loss is not Loss.EAGER:
        raise Unsupported(f"the Trainer has no loss {plan.loss}; use eager, fused or fused_linear, or --engine pytorch")
    if not kernels:
        return []
    order.ask.also("option.liger")
    switches = tuple(Line(name, name in kernels) for name in dict.fromkeys((*LIGER_LOSSES.values(), *LIGER)))
    return [Line("use_liger_kernel", True, "Liger's kernels, as computed"),
            Line("liger_kernel_config", switches, "the rest was computed as PyTorch's own")]


def weights_dtype(order: Order) -> str:
    """What the checkpoint is loaded in: a frozen base under autocast stays in 16 bits."""
    precision = Precision(order.ask("precision"))
    order.ask.also("option.autocast", "option.dtype")
    if loads_fp32(order.job) and not runs_deepspeed(order.job):
        return "float32"
    if runs_deepspeed(order.job) or order.job.plan.peft is not None:
        return COMPUTE_DTYPES.get(precision, WEIGHT_DTYPES[precision])
    return WEIGHT_DTYPES[precision]


def _script(order: Order) -> str:
    ask, job = order.ask, order.job
    build = build_model_lines(order, dtype=weights_dtype(order))
    constants = "\n".join((
        constant("MODEL", hub_id(order.job.model), "the checkpoint"),
        constant("SEQ_LEN", ask("seq_len"), "positions of a sample"),
    ))
    return SCRIPT_TEXT.format(
        title=f"{job.model.name} on {job.cluster.name} with Hugging Face's Trainer", constants=constants, build=build,
        kernel=kernel_lines(order), arguments=NAME,
        imports="" if ask("attention") == AttentionKernel.EAGER else
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n",
    )


SCRIPT_TEXT: Final = '''\
"""{title}.

`bash run.sh` trains on random tokens of the planned length, which shows memory and speed; set DATA to a file of
JSON lines with a "text" field to train on that.
"""

import contextlib
import os
import sys

import torch
{imports}
{constants}


{build}

def attention_kernel():
    """Where attention runs."""
{kernel}

class RandomTokens(torch.utils.data.Dataset):
    """Samples of the planned length."""

    def __init__(self, vocab, samples=4096):
        self.vocab, self.samples = vocab, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        tokens = torch.randint(self.vocab, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {{"input_ids": tokens, "labels": tokens.clone()}}


def dataset_of(model):
    """The file that DATA names, cut and padded to the planned length; random tokens without one."""
    if "DATA" not in os.environ:
        return RandomTokens(model.config.get_text_config().vocab_size)
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    def tokens(row):
        found = tokenizer(row["text"], truncation=True, max_length=SEQ_LEN, padding="max_length")
        found["labels"] = [
            token if seen else -100 for token, seen in zip(found["input_ids"], found["attention_mask"])
        ]
        return found

    rows = load_dataset("json", data_files=os.environ["DATA"], split="train")
    return rows.map(tokens, remove_columns=rows.column_names)


def main(path="{arguments}"):
    """Train with the arguments of the YAML file."""
    from transformers import HfArgumentParser, Trainer, TrainingArguments

    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(path)
    model = build_model()
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset_of(model))
    with attention_kernel():
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:2])
'''
