"""What every GPU engine loads on a rank: weights, tables, adapter slots, drafts."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.domain.model import Model, MoE
from vramcast.domain.program import Program, Tensor
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.adapters import adapter_slots
from vramcast.engines.serving.corrected import corrected
from vramcast.engines.serving.drafts import draft_weights
from vramcast.engines.serving.packing import MARLIN, Packing
from vramcast.engines.serving.stages import Stage
from vramcast.engines.serving.tables import beside_weights
from vramcast.engines.serving.weights import Formats, formats_of, loaded, weight_tensors
from vramcast.parallel.layout import Layout
from vramcast.units import ceil_div

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an activation."""


def dtype_of(model: Model, dtype: str | None) -> str:
    """What activations are computed in: fp32 checkpoints are served in 16 bits unless told otherwise."""
    return dtype or ("fp16" if model.dtype == "fp16" else "bf16")


def layout_of(job: ServeJob, *, vocab_divisor: int) -> Layout:
    """Degrees of parallelism: experts are whole on their ranks, or divided like everything else."""
    plan = job.plan
    return Layout(
        tp=plan.tp,
        ep=plan.tp * plan.dp if plan.expert_parallel else 1,
        etp=1 if plan.expert_parallel else plan.tp,
        vocab_divisor=vocab_divisor,
    )


def load_program(
    job: ServeJob, stage: Stage, layout: Layout, formats: Formats, *, rotary_width: int | None = None,
    packing: Packing = MARLIN,
) -> Program:
    """Everything that is there before the cache is sized, as large as the job's calibration says.

    Args:
        job: the question
        stage: layers of the rank
        layout: degrees of parallelism
        formats: how weights are stored
        rotary_width: bytes of an element of rotary tables; None: as activations
        packing: how mxfp4 experts are laid out
    """
    stored = job.weights if job.plan.weights is None else None
    weights = weight_tensors(job.model, layout=layout, formats=formats, stage=stage, stored=stored)
    program = (
        *loaded(weights),
        *loaded(_tables(job, stage, layout, rotary_width, packing if formats.quantised == "mxfp4" else None)),
        *loaded(adapter_slots(job, stage)),
        *loaded(draft_weights(job, stage, layout)),
    )
    return corrected(job, program)


def _tables(
    job: ServeJob, stage: Stage, layout: Layout, rotary_width: int | None, packing: Packing | None
) -> Iterator[tuple[Tensor, int]]:
    channels = [run.layer.channel for run in stage.runs(job.model)]
    experts = max((channel.num_experts for channel in channels if isinstance(channel, MoE)), default=0)
    return beside_weights(
        job.model, stage, tp=layout.tp, experts_divided=layout.etp, local_experts=ceil_div(experts, layout.ep),
        packing=packing, width=WIDTHS[dtype_of(job.model, job.plan.dtype)], rotary_width=rotary_width,
    )


def job_formats(job: ServeJob) -> Formats:
    """How the job's weights are stored."""
    return formats_of(job.model, weights=job.plan.weights, dtype=job.plan.dtype)


def kv_dtype_of(job: ServeJob) -> str:
    """FP8 weights do not imply an FP8 cache: "auto" is the dtype of activations."""
    return job.plan.kv_dtype if job.plan.kv_dtype != "auto" else dtype_of(job.model, job.plan.dtype)
