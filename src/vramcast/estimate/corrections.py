"""Which corrections of a calibration hold for a question, and what they changed in its answer."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.calibration import PRINTED_AS, Calibration, Plan
from vramcast.domain.program import Extent, Loop, Program, extent
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.errors import Note
from vramcast.units import format_bytes

DEGREES: Final = ("tp", "pp", "dp")

HOLDS_FOR: Final[dict[str, tuple[str, ...]]] = {"communication": DEGREES, "workspaces": ()}
"""Ledger category -> facts of the plan that must agree; every other category belongs to the model and its storage.
Buffers of communication depend on who talks to whom, a context on the card alone."""

WHOLE_PLAN: Final = ("model", "weights", *DEGREES)


def plan_facts(job: ServeJob) -> Plan:
    """The facts of a job that calibrations are compared by."""
    plan = job.plan
    return Plan(model=job.model.name, weights=plan.weights or "", tp=plan.tp, pp=plan.pp, dp=plan.dp)


def applicable(job: ServeJob) -> tuple[ServeJob, tuple[str, ...]]:
    """The job with only those corrections that hold for it, and a warning for the others."""
    calibration = job.calibration
    if calibration is None:
        return job, ()
    mismatch = calibration.mismatch(job.engine, job.cluster.gpu.name, job.version)
    if mismatch:
        return replace(job, calibration=None), (Note("calibration {} is ignored: {}", calibration.source, mismatch),)
    kept, dropped = {}, {}
    for category, correction in calibration.corrections.items():
        differing = _differing(job, calibration, category)
        if differing:
            dropped[category] = differing
        else:
            kept[category] = correction
    warnings = tuple(
        Note("calibration {}: {} was measured with {} and is ignored here", calibration.source, category, differing)
        for category, differing in dropped.items()
    )
    return replace(job, calibration=replace(calibration, corrections=kept) if kept else None), warnings


def _differing(job: ServeJob, calibration: Calibration, category: str) -> str:
    """The facts that a category needs and that differ, as the calibration has them."""
    here, there = plan_facts(job), calibration.plan
    facts = HOLDS_FOR.get(category, WHOLE_PLAN)
    return ", ".join(f"{fact}={getattr(there, fact)}" for fact in facts if getattr(here, fact) != getattr(there, fact))


def effects(job: ServeJob, deployment: Deployment, plain: Deployment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What corrections made of the predictions, on the first rank they touch, and which of them changed nothing.

    Args:
        job: with the corrections that hold for it
        deployment: the engine's answer
        plain: its answer without the calibration
    """
    if job.calibration is None:
        return (), ()
    changed, idle = [], []
    for category, correction in job.calibration.corrections.items():
        pairs = (
            (_category_bytes(rank, category), _category_bytes(before, category))
            for rank, before in zip(deployment.ranks, plain.ranks, strict=True)
        )
        now, before = next(((now, before) for now, before in pairs if now != before), (0, 0))
        if now != before:
            sizes = format_bytes(now), format_bytes(before)
            if sizes[0] != sizes[1]:
                name = PRINTED_AS.get(category, category)
                changed.append(Note(
                    "calibrated by {}: {} {} instead of {}", job.calibration.source, name, sizes[0], sizes[1]
                ))
        elif correction.measured_bytes != correction.predicted_bytes:
            idle.append(Note(
                "calibration {}: {} is not corrected for {} here", job.calibration.source, job.engine, category
            ))
    return tuple(changed), tuple(idle)


def _category_bytes(rank: ServingRank, category: str) -> int:
    """What the engine prints of a category, else the most that its tensors take together [bytes]."""
    printed = rank.startup.get(PRINTED_AS.get(category, ""))
    if printed is not None:
        return printed
    whole = Extent(0, 0)
    for nodes in rank.program.phases.values():
        whole = whole.then(extent(only_of(nodes, category)))
    return whole.peak + sum(tensor.num_bytes for tensor in rank.program.outside if tensor.category == category)


def only_of(program: Program, category: str) -> Program:
    """The part of a program that is about one category."""
    return tuple(
        replace(node, body=only_of(node.body, category)) if isinstance(node, Loop) else node
        for node in program
        if isinstance(node, Loop) or node.tensor.category == category
    )
