"""DeepSpeed ZeRO 1, 2 and 3 around eager model code."""

from __future__ import annotations

from vramcast.domain.job import Job, Loss, Precision, Shards
from vramcast.domain.rank import RankProgram
from vramcast.engines.blas import blas_workspaces
from vramcast.engines.eager.question import packing_sentences, recipe_of
from vramcast.engines.eager.zero import Zero, zero_phases
from vramcast.engines.pytorch import one_role
from vramcast.errors import Unsupported
from vramcast.operators.linear import Numerics
from vramcast.states.optimizers import optimizer


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    `engine_options`: "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "sub_group_size", "stage3_max_reuse_distance" (elements), "overlap_comm" (bool), "auto" (bool: the HF Trainer's
    sizes from the width of the model), "grad_accum_dtype" ("fp32").

    Raises: Unsupported for model parallelism and several models
    """
    if job.workload.objective in ("dpo", "ppo", "grpo"):
        raise Unsupported(
            f"{job.workload.objective} is not modelled for --engine {job.engine} with ZeRO; use --engine pytorch"
        )
    loss = None
    if job.engine_options.get("shifted_loss") and job.plan.loss in (None, Loss.EAGER):
        loss = "shifted"
    recipe = recipe_of(job, loss=loss)
    width = 4 if job.plan.precision in (Precision.FP32, Precision.TF32) else 2
    # DeepSpeed casts the whole model, adapters too, and runs it without autocast
    adapter = recipe.sizes.adapter
    sizes = recipe.sizes._replace(
        numerics=Numerics(width, width, width, width),
        adapter=None if adapter is None else adapter._replace(width=width, compute=width),
    )
    phases = zero_phases(recipe._replace(sizes=sizes), settings(job, width))
    kept = "DeepSpeed keeps 16-bit weights and an fp32 copy of what learns"
    return (one_role(job, phases, kept, *packing_sentences(job)),)


def settings(job: Job, width: int) -> Zero:
    """ZeRO's settings: DeepSpeed's defaults, the Trainer's "auto" sizes, then what the job names."""
    plan, options, hidden = job.plan, job.engine_options, job.model.hidden
    automatic = bool(options.get("auto", job.engine == "huggingface")) and plan.shards is Shards.EVERYTHING
    defaults = (500_000_000, 50_000_000, 100_000)
    if automatic:
        defaults = (hidden * hidden, 9 * hidden * hidden // 10, 10 * hidden)

    def count(name: str, default: int) -> int:
        return int(options.get(name, default))

    return Zero(
        shards=plan.shards if plan.shards is not Shards.NOTHING else Shards.OPTIMIZER,
        ranks=job.data_parallel,
        optimizer=optimizer(plan.optimizer),
        reduce_bucket=count("reduce_bucket_size", defaults[0]),
        prefetch_bucket=count("stage3_prefetch_bucket_size", defaults[1]),
        persistence=count("stage3_param_persistence_threshold", defaults[2]),
        sub_group=count("sub_group_size", 1_000_000_000),
        reuse_distance=count("stage3_max_reuse_distance", 1_000_000_000),
        overlap=bool(options.get("overlap_comm", True)),
        grad_accum=job.workload.grad_accum,
        width=width,
        gradient_width=4 if options.get("grad_accum_dtype") == "fp32" else width,
        offload_optimizer=plan.offload_optimizer != "none",
        offload_parameters=plan.offload_parameters != "none",
        workspaces=blas_workspaces(job),
    )
