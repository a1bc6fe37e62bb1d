"""Which corrections of a calibration hold for a question, and what they changed in its answer.

Which corrections of a measured run hold for a training question, and what they make of its answer.

A correction holds where nothing that decides the entry differs:

* states (weights, gradients, optimizer): the model, and how it is stored and split;
* activations and temporaries: all of the plan. Another length or number of samples is corrected in proportion, which is
  right as far as what was missed grows with them: it is said, and for whoever asks to judge;
* what the allocator keeps: the very same question, because it follows from every single size; it is then what was
  measured, whatever would be predicted;
* what lies beside the allocator: who talks to whom.

All of it: the same engine on the same card.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from vramcast.domain.answer import Answer, LedgerEntry, Peak, RankAnswer
from vramcast.domain.calibration import ALLOCATOR, OUTSIDE, PRINTED_AS, Calibration, Correction, corrected_by, fitted
from vramcast.domain.calibration import Plan as Measured
from vramcast.domain.job import Job, Phase, Plan, RankProgram, Workload
from vramcast.domain.program import Basis, Category, Extent, Loop, Program, Tensor, extent
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.errors import Note
from vramcast.estimate.interval import chance_within, interval, likest_runs, misses, training_traits
from vramcast.estimate.ranks import outside_tensors, slack_share
from vramcast.units import format_bytes

TRAINING_DEGREES: Final = ("tp", "pp", "dp", "cp", "ep")
LOAD: Final = ("seq_len", "min_seq_len", "micro_batch", "decoder_seq_len", "image_size", "images", "completion_len")
"""How much goes through at once."""
STATES: Final = (
    "model", *TRAINING_DEGREES, "etp", "virtual_stages", "first_stage_layers", "last_stage_layers", "shards",
    "shard_group", "precision", "peft", "offload_parameters",
)
TRAINING_HOLDS_FOR: Final[dict[str, tuple[str, ...]]] = {
    Category.WEIGHTS: STATES,
    Category.GRADIENTS: STATES,
    Category.OPTIMIZER: (*STATES, "optimizer", "offload_optimizer"),
    OUTSIDE: TRAINING_DEGREES,
}
"""Entry -> facts that must agree; of entries that are not here, all of them."""
IN_PROPORTION: Final = frozenset({Category.ACTIVATIONS, Category.TEMPORARIES})
"""Entries that are corrected for another load, too."""
SLACK: Final = "slack"
"""What is lost within blocks: between the sizes asked for and what is allocated."""
NAMES: Final = {ALLOCATOR: "reserved, not allocated", OUTSIDE: "beside torch's allocator"}


def training_facts(job: Job) -> Measured:
    """The facts of a job that calibrations are compared by."""
    plan = job.plan
    return Measured(model=job.model.name, tp=plan.tp, pp=plan.pp, dp=job.data_parallel, settings=dict(_settings(job)))


def _settings(job: Job) -> Iterator[tuple[str, str]]:
    """Everything of plan and workload that is not as usual, as text."""
    for noun, usual in ((job.plan, Plan()), (job.workload, Workload())):
        for name, value in asdict(noun).items():
            if value != getattr(usual, name) and name not in ("tp", "pp"):
                yield name, _text(value)
    if job.alloc_conf:
        yield "alloc_conf", job.alloc_conf
    if job.engine_options:
        yield "engine_options", _text(job.engine_options)


def _text(value: Any) -> str:
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def holding(job: Job) -> Calibration | None:
    """The job's calibration with those corrections that hold for it; None where none does."""
    calibration = job.calibration
    if calibration is None or calibration.mismatch(job.engine, job.cluster.gpu.name):
        return None
    here = training_facts(job)
    kept = {key: one for key, one in calibration.corrections.items() if not _differing_run(here, calibration.plan, key)}
    return replace(calibration, corrections=kept) if kept else None


def _differing_run(here: Measured, there: Measured, key: str) -> str:
    """The facts that an entry needs and that differ, as they were measured."""
    ours, theirs = _all_facts(here), _all_facts(there)
    facts = TRAINING_HOLDS_FOR.get(key) or tuple(
        name for name in dict.fromkeys((*theirs, *ours)) if not (key in IN_PROPORTION and name in LOAD)
    )
    return ", ".join(f"{name}={theirs.get(name, 'default')}" for name in facts if ours.get(name) != theirs.get(name))


def _all_facts(plan: Measured) -> dict[str, str]:
    return {"model": plan.model, "tp": str(plan.tp), "pp": str(plan.pp), "dp": str(plan.dp), **plan.settings}


def corrected_rank(calibration: Calibration, program: RankProgram) -> RankProgram:
    """What the ranks of a role do, with tensors as large as they were measured."""
    shared: dict[Any, Any] = {}
    phases = {phase: corrected_by(calibration, nodes, shared) for phase, nodes in program.phases.items()}
    correction = calibration.corrections.get(OUTSIDE)
    outside = program.outside
    if correction is not None:
        outside = tuple(fitted(tensor, correction, calibration.source) for tensor in outside)
    return msgspec.structs.replace(program, phases=phases, outside=outside)


def beside(job: Job) -> tuple[Tensor, ...]:
    """Entries between reserved and device memory, as they were measured where that holds."""
    tensors, held = outside_tensors(job), holding(job)
    correction = None if held is None else held.corrections.get(OUTSIDE)
    if held is None or correction is None:
        return tensors
    return tuple(fitted(tensor, correction, held.source) for tensor in tensors)


def with_slack(rank: RankAnswer, calibration: Calibration, job: Job) -> RankAnswer:
    """The answer with what the allocator keeps as it was measured in a steady step.

    Phases before it end at what it reserves at most: nothing but an empty card gives cached memory back.
    """
    correction = calibration.corrections.get(ALLOCATOR)
    if correction is None:
        return rank
    steady = rank.peak
    outside_bytes = steady.device_bytes - steady.reserved_bytes
    reserved = steady.allocated_bytes + correction.measured_bytes
    phases = {
        name: _levels(peak, reserved if peak == steady and name == Phase.STEP else min(peak.reserved_bytes, reserved))
        for name, peak in rank.phases.items()
    }
    ledger = tuple(
        _kept(entry, correction, calibration.source) if entry.path == "allocator/reserved but not allocated" else entry
        for entry in rank.ledger
    )
    like = training_traits(job, slack_share(steady))  # one run says nothing of the next one's chance
    device = reserved + outside_bytes
    room = job.cluster.gpu.visible_bytes - max(peak.device_bytes for peak in phases.values()) + device
    return replace(
        rank, peak=phases[Phase.STEP], phases=phases, interval_bytes=interval(like, device),
        chance_to_fit=chance_within(like, device, room), likest=likest_runs(like), misses=misses(like),
        ledger=tuple(sorted(ledger, key=lambda entry: -entry.num_bytes)),
    )


def _levels(peak: Peak, reserved_bytes: int) -> Peak:
    """The same with that much reserved, never less than is allocated."""
    reserved = max(peak.allocated_bytes, reserved_bytes)
    return replace(peak, reserved_bytes=reserved, device_bytes=peak.device_bytes - peak.reserved_bytes + reserved)


def _kept(entry: LedgerEntry, correction: Correction, source: str) -> LedgerEntry:
    return replace(
        entry, num_bytes=correction.measured_bytes, basis=Basis.FITTED,
        formula=Note("as measured, instead of {}", entry.formula), source=Note("calibrated by {}", source),
    )


def explained(found: Answer, job: Job, plain: Answer) -> Answer:
    """The answer saying what a calibration changed in it, and what of it does not hold here.

    Args:
        found: the answer with the calibration
        job: with the calibration
        plain: the answer without it
    """
    calibration = job.calibration
    assert calibration is not None
    held = holding(job)
    changed = () if held is None else tuple(_changes(found, plain, held, job))
    return replace(
        found, assumptions=(*changed, *found.assumptions), warnings=(*found.warnings, *_ignored(job, calibration))
    )


def _changes(found: Answer, plain: Answer, held: Calibration, job: Job) -> Iterator[str]:
    now, before = entry_bytes(found.fullest, job), entry_bytes(plain.fullest, job)
    for key in held.corrections:
        sizes = format_bytes(now.get(key, 0)), format_bytes(before.get(key, 0))
        if sizes[0] != sizes[1]:
            yield Note("calibrated by {}: {} {} instead of {}", held.source, NAMES.get(key, key), sizes[0], sizes[1])
    there = _all_facts(held.plan)
    other = [name for name in LOAD if there.get(name) != _all_facts(training_facts(job)).get(name)]
    if other and IN_PROPORTION & set(held.corrections):
        measured = ", ".join(f"{name}={there.get(name, 'default')}" for name in other)
        yield Note("calibrated by {}: activations in proportion to a run with {}", held.source, measured)


def _ignored(job: Job, calibration: Calibration) -> Iterator[str]:
    mismatch = calibration.mismatch(job.engine, job.cluster.gpu.name)
    if mismatch:
        yield Note("calibration {} is ignored: {}", calibration.source, mismatch)
        return
    here = training_facts(job)
    for key in calibration.corrections:
        differing = _differing_run(here, calibration.plan, key)
        if differing:
            name = NAMES.get(key, key)
            yield Note(
                "calibration {}: {} was measured with {} and is ignored here", calibration.source, name, differing
            )


def entry_bytes(rank: RankAnswer, job: Job) -> dict[str, int]:
    """A rank's ledger summed up by what corrections are of: categories, ALLOCATOR, OUTSIDE [bytes]."""
    outside = {tensor.path for tensor in outside_tensors(job)}
    found = {OUTSIDE: rank.peak.device_bytes - rank.peak.reserved_bytes}
    for entry in rank.ledger:
        if entry.path in outside:
            continue
        key = SLACK if entry.path == "allocator/slack of large blocks" else entry.category
        found[key] = found.get(key, 0) + entry.num_bytes
    return found


DEGREES: Final = ("tp", "pp", "dp")

HOLDS_FOR: Final[dict[str, tuple[str, ...]]] = {"communication": DEGREES, "workspaces": ()}
"""Ledger category -> facts of the plan that must agree; every other category belongs to the model and its storage.
Buffers of communication depend on who talks to whom, a context on the card alone."""

WHOLE_PLAN: Final = ("model", "weights", *DEGREES)


def plan_facts(job: ServeJob) -> Measured:
    """The facts of a job that calibrations are compared by."""
    plan = job.plan
    return Measured(model=job.model.name, weights=plan.weights or "", tp=plan.tp, pp=plan.pp, dp=plan.dp)


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
