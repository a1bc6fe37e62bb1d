"""DeepSpeed's JSON. It holds no comments: the reasons go to the README of the folder.

[DS] deepspeed runtime/config.py, runtime/zero/config.py; names as in its snapshot
"""

from __future__ import annotations

import json
from typing import Any, Final

from vramcast.domain.job import Job, Shards
from vramcast.emit.files import File, Order, Part
from vramcast.emit.lines import Line, Table, plain, reasons
from vramcast.engines.deepspeed import settings as zero_settings
from vramcast.engines.eager.releases import ZERO_OPTIONS, runs_deepspeed
from vramcast.errors import Unsupported
from vramcast.question.configs import deepspeed as reader
from vramcast.question.configs.reading import written
from vramcast.question.options import ZERO

NAME: Final = "ds_config.json"

STAGES: Final = {shards: max(1, int(stage)) for stage, shards in ZERO.items()}
"""The engine computes stage 1 where the plan splits nothing: with one rank it is the same."""

OPTIMIZERS: Final = {ours: name for ours, name in written(reader.OPTIMIZERS).items() if name != "SGD"}
"""DeepSpeed's own; others come from the training script, PyTorch's too."""

LEARNING_RATE: Final = 1e-5
"""Not part of a memory plan; stands in every file so that they agree [1]."""

SIXTEEN_BITS: Final = {
    recipe: width for width, mixed in reader.WIDTHS.items() for recipe in (f"amp-{width}", mixed, width)
}

NVME: Final = "/local_nvme"


def write(order: Order) -> tuple[File, ...]:
    """The one file; none where the plan runs without DeepSpeed.

    Raises: Unsupported for what DeepSpeed's ZeRO does not have
    """
    if not runs_deepspeed(order.job):
        return ()
    table = (*_batch(order), *_precision(order), _zero(order), *_optimizer(order), *_rest(order))
    text = json.dumps(plain(table), indent=2) + "\n"
    order.ask.also("optimizer_kernel", "sharded_by")  # DeepSpeed's own fused step, whatever is asked
    notes = _notes(order)
    return (order.file(NAME, text, (Part("deepspeed", "config"),), notes, reasons=tuple(reasons(table))),)


def _batch(order: Order) -> Table:
    ask, ranks = order.ask, order.job.data_parallel
    micro, steps = ask("micro_batch"), ask("grad_accum")
    return (
        Line(reader.BATCH["global"], micro * steps * ranks, f"{micro} samples x {steps} micro-batches x {ranks} ranks"),
        Line(reader.BATCH["micro"], micro, "samples per forward on one GPU"),
        Line(reader.BATCH["accumulation"], steps, "micro-batches per optimizer step"),
    )


def _precision(order: Order) -> Table:
    precision = order.job.plan.precision
    if precision in ("fp64", "fp8"):
        raise Unsupported(f"DeepSpeed has no precision {precision}; use mixed-bf16")
    width = SIXTEEN_BITS.get(precision)
    if precision != "tf32":  # which is PyTorch's own switch
        order.ask("precision")
    if width is None:
        return ()
    why = f"{precision}: {width} weights and activations, an fp32 copy in the optimizer"
    if precision != width:
        return (Line(width, (Line("enabled", True, why),)),)
    lines = [Line("enabled", True, f"{width} weights and activations"),
             Line(f"{width}_master_weights_and_grads", True, f"{precision}: no fp32 copy")]
    if width == "bf16":
        lines.append(Line("bf16_optimizer_states", True, "moments in bf16, too"))
    return (Line(width, tuple(lines)),)


def _zero(order: Order) -> Line:
    job: Job = order.job
    ask = order.ask
    stage = STAGES[Shards(ask("shards"))]
    if job.plan.tp * job.plan.pp * job.plan.cp * job.plan.ep > 1:
        raise Unsupported("a DeepSpeed configuration splits over data-parallel ranks only; use tp=pp=cp=ep=1")
    options = {name.removeprefix("option.") for name in ask.settings if name.startswith("option.")}
    for name in options & {*ZERO_OPTIONS, "deepspeed"}:
        ask(f"option.{name}")
    zero = zero_settings(job, 2)
    lines = [
        Line("stage", stage, _stage_reason(stage, job)),
        Line("overlap_comm", zero.overlap, "gradients travel while backward runs; two buckets instead of one"),
        Line("contiguous_gradients", True, "gradients are copied into one buffer as they come"),
        Line("reduce_bucket_size", zero.reduce_bucket, "elements reduced at once: a buffer of that size"),
    ]
    if stage == 3:
        lines += _stage3(zero)
    lines += _offload(order, stage)
    return Line("zero_optimization", tuple(lines))


def _stage_reason(stage: int, job: Job) -> str:
    split = {1: "optimizer states", 2: "optimizer states and gradients", 3: "states, gradients and weights"}[stage]
    return f"{split} are split over {job.data_parallel} ranks"


def _stage3(zero: Any) -> list[Line]:
    return [
        Line("stage3_prefetch_bucket_size", zero.prefetch_bucket, "elements gathered ahead of their use"),
        Line("stage3_param_persistence_threshold", zero.persistence, "smaller weights stay whole on every GPU"),
        Line("stage3_max_live_parameters", 1_000_000_000, "elements gathered at most"),
        Line("stage3_max_reuse_distance", zero.reuse_distance, "what is used again so soon stays gathered"),
        Line("sub_group_size", zero.sub_group, "elements stepped at once"),
        Line("stage3_gather_16bit_weights_on_model_save", True, "a checkpoint that other tools can load"),
    ]


def _offload(order: Order, stage: int) -> list[Line]:
    ask, found = order.ask, []
    for name, option in reader.OFFLOADED.items():
        device = ask(option.replace("-", "_"))
        if device == "none":
            continue
        if name == "offload_param" and stage != 3:
            raise Unsupported("DeepSpeed offloads parameters with ZeRO 3 only; add --zero 3")
        if device == "nvme" and stage != 3:
            raise Unsupported("DeepSpeed offloads to disks with ZeRO 3 only; add --zero 3, or offload to cpu")
        lines = [Line("device", device, f"the plan keeps them on the {'host' if device == 'cpu' else 'local disks'}")]
        if device == "nvme":
            lines.append(Line("nvme_path", NVME, "where the local disks are mounted"))
        lines.append(Line("pin_memory", True, "copies run beside the kernels"))
        found.append(Line(name, tuple(lines)))
    return found


def _optimizer(order: Order) -> Table:
    name = order.job.plan.optimizer
    if name not in OPTIMIZERS:
        why = f"{name} is built by the training script, not by DeepSpeed"
        return (
            Line("zero_allow_untested_optimizer", True, why),
            Line("zero_force_ds_cpu_optimizer", False, why),
        )
    order.ask("optimizer")
    params: Table = (Line("lr", LEARNING_RATE, "not part of the plan: set your own, also in training_args.yaml"),)
    if name == "adam":
        params = (*params, Line("adam_w_mode", False, "without it DeepSpeed's Adam is AdamW"))
    return (Line("optimizer", (Line("type", OPTIMIZERS[name], "as planned"), Line("params", params))),)


def _rest(order: Order) -> Table:
    if order.ask.settings.get("option.grad_accum_dtype") != "fp32":
        return ()
    return (Line("data_types", (Line("grad_accum_dtype", "fp32", "gradients add up in fp32"),)),)


def _notes(order: Order) -> tuple[str, ...]:
    precision = order.job.plan.precision
    if precision not in ("amp-bf16", "amp-fp16"):
        return ()
    return (f"{NAME}: with --precision {precision} DeepSpeed keeps an fp32 copy too; so the plan was computed",)
