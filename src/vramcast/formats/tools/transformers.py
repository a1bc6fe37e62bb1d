"""The arguments of Transformers' Trainer, alone or inside LLaMA-Factory's.

[HF] transformers training_args.py   [LF] llamafactory hparams, model/adapter.py, model/model_utils
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute, Shards
from vramcast.engines.eager.releases import LIGER, liger_kernels, optimizer_kernel, runs_deepspeed
from vramcast.engines.eager.trl import chunks_loss, loads_fp32, reentrant
from vramcast.errors import Note, Unsupported
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import ACCELERATE, RUN, TORCHRUN, head_of, run_script
from vramcast.formats.lines import Line, Table, yaml_text
from vramcast.formats.python_parts import (
    COMPUTE_DTYPES,
    WEIGHT_DTYPES,
    build_model_lines,
    constant,
    kernel_lines,
    stored_before,
)
from vramcast.formats.reading import ELSEWHERE, Config, Reading, Unread, together, under_the_trainer, written
from vramcast.formats.tools import deepspeed
from vramcast.formats.tools.accelerate import check_units, fsdp_of_trainer
from vramcast.formats.watched import Known, Watched
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
    "galore_adamw_layerwise": (Optim("galore-layerwise"),), "apollo_adamw_layerwise": (Optim("apollo-layerwise"),),
    "apollo_adamw": (Optim("apollo"),), "lomo": (Optim("lomo"),), "adalomo": (Optim("adalomo"),),
    "schedule_free_adamw": (Optim("schedulefree-adamw"),), "schedule_free_sgd": (Optim("schedulefree-sgd"),),
}
"""`optim` -> our optimizers, by `optim_args` where several share it [HF `OptimizerNames`]."""

OPTIMIZERS: Final = tuple(dict.fromkeys(one.optimizer for meanings in OPTIMS.values() for one in meanings))
"""Those that the Trainer has."""

LOW_RANK: Final = dict.fromkeys(("galore", "apollo", "galore-layerwise", "apollo-layerwise"), 128)
"""Optimizers that project the matrices of named modules -> rank where `optim_args` says none [HF
trainer_optimizer.py]."""

TRAINERS_BATCH: Final = 8
"""per_device_train_batch_size and its kin of evaluation where nobody says them [HF]."""

LENGTHS: Final = ("max_length", "max_seq_length", "model_max_length")


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


def optim_options(name: str) -> dict[str, Any] | None:
    """The options that a value of `optim` stands for; None where the Trainer has none such.

    >>> optim_options("adamw_torch_fused"), optim_options("paged_adamw_8bit"), optim_options("adamw")
    ({'optimizer': 'adamw', 'optimizer-kernel': 'fused'}, {'optimizer': 'paged-adamw-8bit'}, None)
    """
    if name not in OPTIMS or name in OPTIMIZERS:
        return None
    one = OPTIMS[name][0]
    rank = f":{LOW_RANK[one.optimizer]}" if one.optimizer in LOW_RANK else ""
    return {"optimizer": one.optimizer + rank} | ({"optimizer-kernel": one.kernel} if one.kernel else {})


def read(config: Config) -> Reading:
    """Arguments of the Trainer, with those that LLaMA-Factory adds."""
    if is_factory(config.table or {}):
        from vramcast.formats.tools.llamafactory import read_factory

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


def arguments_of(values: Watched, file: str, *, fsdp: int = 2) -> Reading:
    """What TrainingArguments say whoever uses them: optimizer, batch, compilation, sharding.

    Args:
        values: the arguments
        file: where they stand
        fsdp: the version that the Trainer takes unasked: 2 since 5.10, 1 in the releases that older tools install
    """
    options: dict[str, Any] = optimizer_of(values)
    if values.flag("torch_compile"):
        options["compile"] = True
    values.get("neftune_noise_alpha")  # noise of the embeddings is gone before a layer runs [HF trainer_utils.py]
    values.must_be_off("auto_find_batch_size", "leaves the batch to the run; give --micro-batch", option="micro-batch")
    batch, notes = _batch(values)
    options = together(options, _evaluation(values, batch["micro"]))
    splits = values.get("accelerator_config")
    if isinstance(splits, Mapping) and splits.get("split_batches"):
        values.cannot("accelerator_config", "split_batches divides the batch over the ranks; give --micro-batch",
                      option="micro-batch")
    inner, found = values.get("deepspeed"), Reading("", {})
    if isinstance(inner, str) and (known := deepspeed.of_llamafactory(inner)) is not None:
        inner, note = known
        notes = [*notes, note]
    if isinstance(inner, Mapping):
        found = deepspeed.read(Config(file, "", inner))
        unread = (one._replace(name=f"deepspeed.{one.name}") for one in found.unread)
        found = found._replace(unread=tuple(_unanswered(unread, batch)), notes=tuple(found.notes))
    elif inner is not None:
        values.cannot("deepspeed", ELSEWHERE, file="deepspeed")
    older = "fsdp_transformer_layer_cls_to_wrap" in values  # as releases before 5 name them
    check_units(values, "fsdp_transformer_layer_cls_to_wrap")
    if values.get("fsdp") or values.get("fsdp_config"):
        options = together(options, fsdp_of_trainer(values, 1 if older else fsdp))
    inside = under_the_trainer(found.options) if found.options else {}
    return found._replace(options=together(options, inside), batch=found.batch | batch, notes=(*notes, *found.notes))


def _unanswered(unread: Any, batch: Mapping[str, int]) -> list[Unread]:
    """What a DeepSpeed table inside leaves to the arguments around it, and they do not say."""
    said = {"micro-batch", "precision"} | ({"grad-accum"} if "accumulation" in batch else set())
    return [one for one in unread if one.option not in said]


def _batch(values: Watched) -> tuple[dict[str, int], list[str]]:
    micro, accumulation = values.count("per_device_train_batch_size"), values.count("gradient_accumulation_steps")
    notes: list[str] = [] if micro else [Note(
        "per_device_train_batch_size is not given: {}, as Transformers has it", TRAINERS_BATCH
    )]
    return {"micro": micro or TRAINERS_BATCH, "accumulation": accumulation or 1}, notes


def _evaluation(values: Watched, micro: int) -> dict[str, Any]:
    """More samples at once than a step has, between steps."""
    when = values.get("eval_strategy", values.get("evaluation_strategy", "no"))
    samples = values.count("per_device_eval_batch_size") or TRAINERS_BATCH
    return {"engine-option": (f"eval_batch={samples}",)} if when not in ("no", False) and samples > micro else {}


def precision_of(values: Watched) -> dict[str, Any]:
    """Autocast over fp32 weights; without it the weights' own dtype."""
    tf32 = values.flag("tf32")  # of fp32 products, of which autocast leaves few
    for name, precision in (("bf16", "amp-bf16"), ("fp16", "amp-fp16")):
        if values.flag(name):
            return {"precision": precision}
    if values.auto.keys() & {"bf16", "fp16"}:
        values.cannot("bf16", "is auto; give --precision", option="precision")
        return {}
    return {"precision": "tf32" if tf32 else "fp32"}


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


LISA: Final = ("{}: states of every layer are there once it has learned; gradients of all layers are counted, where "
               "some learn at a time: that is an upper bound")
"""Of trainers that free a few layers, others every so often [ax utils/callbacks/lisa.py, swift callbacks/lisa.py]."""

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


NAME: Final = "training_args.yaml"
SCRIPT: Final = "train_trainer.py"

LOSS_KERNELS: Final = written(LIGER_LOSSES)

TRAINER_OBJECTIVES: Final = ("pretrain", "sft")


def write(order: Order) -> tuple[File, ...]:
    """Arguments, script and the line that starts them.

    Raises: Unsupported for what the Trainer does not do
    """
    job: Job = order.job
    if job.workload.objective not in TRAINER_OBJECTIVES:
        raise Unsupported("the Trainer optimises no {}; --format llamafactory writes dpo", job.workload.objective)
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
    if runs_deepspeed(order.job) and name in deepspeed.OWN_OPTIMIZERS:
        return []  # the DeepSpeed file builds it
    order.ask.also("optimizer", "optimizer_kernel")
    found = optim_of(name, kernel)
    if found is None:
        if name.partition(":")[0] in OPTIMIZERS and order.job.plan.optimizer_kernel is None:
            raise Unsupported(
                "files are for the newest Trainer, which has no optimizer {} with kernel {}; add --optimizer-kernel "
                "foreach", name, kernel
            )
        if name.partition(":")[0] in OPTIMIZERS:
            raise Unsupported("the Trainer does not choose the kernel of {}; leave --optimizer-kernel out", name)
        raise Unsupported("the Trainer has no optimizer {}; use {}", name, ", ".join(OPTIMIZERS))
    lines = [Line("optim", found[0], f"{name}, as planned")]
    if name.partition(":")[0] in LOW_RANK:
        lines.append(Line("optim_target_modules", "all-linear", "every matrix is projected"))
    return lines + ([Line("optim_args", found[1])] if found[1] else [])


def refuse_chunks(job: Job, tool: str) -> None:
    """Raise Unsupported for TRL's own loss, which other trainers do not make."""
    if chunks_loss(job):
        raise Unsupported("{} makes all logits at once, not in chunks as TRL's SFTTrainer; add --loss eager", tool)


def _loss(order: Order) -> list[Line]:
    plan, kernels = order.job.plan, set(liger_kernels(order.job))
    refuse_chunks(order.job, "the Trainer")
    if plan.loss in (None, Loss.COMPILED if plan.compile else Loss.EAGER):
        order.ask.also("loss")
        if plan.loss is not None:  # named, so Liger's is not
            kernels -= {*LOSS_KERNELS.values()}
    elif plan.loss in LOSS_KERNELS:
        order.ask.also("loss")
        kernels = kernels - {*LOSS_KERNELS.values()} | {LOSS_KERNELS[plan.loss]}
    elif plan.loss is not Loss.EAGER:
        raise Unsupported(
            "the Trainer has no loss {}; use eager, fused or fused_linear, or --engine pytorch", plan.loss
        )
    if not kernels:
        return []
    order.ask.also("option.liger")
    switches = tuple(Line(name, name in kernels) for name in dict.fromkeys((*LOSS_KERNELS.values(), *LIGER)))
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
