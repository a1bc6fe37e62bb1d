"""DeepSpeed: settings of its ZeRO, and which programs of `eager.zero` a job asks for.

[Z] deepspeed runtime/base_optimizer.py `_configure_master_weights`, runtime/precision_config.py
`bf16_master_weights_and_grads`, `bf16_optimizer_states`, since 0.18.3: masters, gradients and states in 16 bits; stage
3 then steps the partition itself
[HF] transformers integrations/deepspeed.py `HfTrainerDeepSpeedConfig`: "auto" buckets: H^2, 0.9 H^2 and 10 H elements.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.cublas import blas_workspaces
from vramcast.domain.job import ANSWERS, Job, Precision, RankProgram, Shards
from vramcast.domain.version import Version
from vramcast.engines.eager.completions import (
    distilled_loss,
    distils,
    of_answers,
    teacher_sentences,
    writes,
    written_loss,
)
from vramcast.engines.eager.preference import compares, in_one, in_variables, rated, rated_loss
from vramcast.engines.eager.question import loss_of, packing_sentences, recipe_of
from vramcast.engines.eager.releases import (
    causal_loss,
    loads_whole,
    optimizer_kernel,
    software,
    with_its_kernels,
    with_its_loss,
)
from vramcast.engines.eager.zero import Zero, answered_phases, taught_phases, zero_phases
from vramcast.engines.pytorch import one_role
from vramcast.errors import Unsupported
from vramcast.operators.linear import Numerics
from vramcast.states.optimizers import optimizer

PURE: Final = (Precision.BF16, Precision.FP16)

NARROW_MASTERS_SINCE: Final[Version] = (0, 18, 3)
"""bf16_master_weights_and_grads and bf16_optimizer_states [deepspeed runtime/precision_config.py]."""

KEPT: Final = (
    "DeepSpeed keeps 16-bit weights and an fp32 copy of what learns",
    "DeepSpeed keeps masters, gradients and optimizer states in 16 bits: bf16_master_weights_and_grads and "
    "bf16_optimizer_states",
)


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    `engine_options`: "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "sub_group_size", "stage3_max_reuse_distance" (elements; the first three also "auto"), "overlap_comm"
    (bool), "auto" (bool: the HF Trainer's sizes from the width of the model), "grad_accum_dtype" ("fp32"), "zero"
    (false: stage 0 on one GPU), "torch_autocast" (bool: over weights of 16 bits),
    "torch_adam" (bool: PyTorch's own step), "rest_learns" (bool: all that adapters do not stand beside).

    Raises: Unsupported for model parallelism and several models
    """
    if job.workload.objective in ANSWERS and not (compares(job) or writes(job) or distils(job)):
        able = "huggingface" if job.workload.objective in ("dpo", "kto") and job.engine == "deepspeed" else "pytorch"
        raise Unsupported(
            "{} is not modelled for --engine {} with ZeRO; use --engine {}", job.workload.objective, job.engine, able
        )
    causal, job = causal_loss(job), with_its_loss(job)
    autocast = bool(job.engine_options.get("torch_autocast", False))
    loss = written_loss(job) if writes(job) else rated_loss(job) or loss_of(job, autocast=autocast, causal=causal)
    loss = distilled_loss(job) if distils(job) else loss
    recipe = with_its_kernels(recipe_of(job, loss=loss, autocast=autocast), job)
    recipe = replace(recipe, returns_fp32=causal.returns_fp32 and loss is not None, outputs_fp32=in_one(job))
    if in_variables(job):
        recipe = replace(recipe, kept_logits=2 * recipe.sizes.numerics.compute)
    width = 4 if job.plan.precision in (Precision.FP32, Precision.TF32) else 2
    _check_masters(job)
    # DeepSpeed casts the whole model, adapters too, and runs it without autocast
    adapter = recipe.sizes.adapter
    sizes = replace(
        recipe.sizes, numerics=Numerics(width, width, width, width),
        adapter=None if adapter is None else replace(adapter, width=width, compute=width),
    )
    recipe = replace(recipe, sizes=sizes)
    if writes(job):
        phases, together = answered_phases(job, of_answers(recipe, job), settings(job, width))
        return (one_role(job, phases, KEPT[job.plan.precision in PURE], *packing_sentences(job), together),)
    if distils(job):
        phases = taught_phases(job, recipe, settings(job, width))
        return (one_role(job, phases, KEPT[job.plan.precision in PURE], *packing_sentences(job),
                         *teacher_sentences(job)),)
    compared = rated(job, recipe)
    phases = zero_phases(recipe, settings(job, width), compared)
    said = () if compared is None else (compared.said,)
    return (one_role(job, phases, KEPT[job.plan.precision in PURE], *packing_sentences(job), *said),)


def _check_masters(job: Job) -> None:
    """[Z]: masters in bf16 keep their states on the card, masters in fp16 need them on the host."""
    version = job.engine_version if job.engine == "deepspeed" else None
    if job.plan.precision is Precision.BF16 and version is not None and version < NARROW_MASTERS_SINCE:
        raise Unsupported("DeepSpeed keeps masters in bf16 since 0.18.3; use --precision mixed-bf16")
    if job.plan.precision is Precision.FP16 and job.plan.offload_optimizer == "none":
        raise Unsupported("DeepSpeed keeps masters in fp16 on the host only; add --offload-optimizer cpu")


FILLED_IN: Final = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
"""Sizes that the Trainer makes of the width of the model where they are "auto" [HF]."""


def settings(job: Job, width: int) -> Zero:
    """ZeRO's settings: DeepSpeed's defaults, the Trainer's "auto" sizes, then what the job names."""
    plan, options, hidden = job.plan, job.engine_options, job.model.hidden
    automatic = bool(options.get("auto", job.engine == "huggingface")) and plan.shards is Shards.EVERYTHING
    filled_in = (hidden * hidden, 9 * hidden * hidden // 10, 10 * hidden)
    defaults = filled_in if automatic else (500_000_000, 50_000_000, 100_000)
    without_zero = plan.shards is Shards.NOTHING and (job.replicas > 1 or options.get("zero") is False)
    if without_zero and (plan.offload_optimizer != "none" or plan.precision in PURE or options.get("grad_accum_dtype")):
        raise Unsupported("DeepSpeed offloads, and keeps masters or gradients of other widths, with ZeRO only")
    looped = bool(options.get("torch_adam")) and optimizer_kernel(job) != "fused"
    by_name = dict(zip(FILLED_IN, filled_in, strict=True))

    def count(name: str, default: int) -> int:
        value = options.get(name, default)
        return by_name.get(name, default) if value == "auto" else int(value)

    return Zero(
        # one rank splits nothing, whatever was asked
        shards=plan.shards if plan.shards is not Shards.NOTHING or without_zero else Shards.OPTIMIZER,
        fused=plan.optimizer in ("adam", "adamw", "onebit-adam", "zero-one-adam") and not options.get("torch_adam"),
        ranks=job.replicas,
        optimizer=optimizer(plan.optimizer),
        loads_whole=loads_whole(job),
        step_copies=optimizer(plan.optimizer).foreach_temporaries if looped else 0,
        reduce_bucket=count("reduce_bucket_size", defaults[0]),
        prefetch_bucket=count("stage3_prefetch_bucket_size", defaults[1]),
        persistence=count("stage3_param_persistence_threshold", defaults[2]),
        sub_group=count("sub_group_size", 1_000_000_000),
        reuse_distance=count("stage3_max_reuse_distance", 1_000_000_000),
        overlap=bool(options.get("overlap_comm", True)),
        grad_accum=job.workload.grad_accum,
        width=width,
        master=2 if plan.precision in PURE else 4,
        gradient_width=4 if options.get("grad_accum_dtype") == "fp32" else width,
        offload_optimizer=plan.offload_optimizer != "none",
        offload_parameters=plan.offload_parameters != "none",
        workspaces=blas_workspaces(job, torch=software(job).torch),
    )
