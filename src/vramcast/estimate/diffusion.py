"""One question about training a diffusion pipeline answered: programs -> peaks, ledger, verdict, changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from vramcast import estimate
from vramcast.domain.answer import Answer, Change, RankAnswer
from vramcast.domain.job import Phase, Recompute
from vramcast.domain.pipeline import DiffusionJob
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.verdict import Fit
from vramcast.domain.version import named, newer
from vramcast.engines.diffusers import elements_of
from vramcast.engines.diffusion import ranks
from vramcast.engines.training import DIFFUSION
from vramcast.errors import InvalidSpec, Note, Unsupported, joined
from vramcast.estimate.changes import best_first
from vramcast.estimate.cost import asked_of, with_cost
from vramcast.estimate.interval import Traits
from vramcast.estimate.ranks import around_process, communicator_bytes, rank_answer
from vramcast.units import MIB

if TYPE_CHECKING:
    from vramcast.domain.snapshot import Snapshot

EIGHT_BIT: Final = {"adamw": "adamw-8bit", "adam": "adam-8bit"}


def answer(job: DiffusionJob, *, with_changes: bool = True) -> Answer:
    """Memory of one training plan of a pipeline; its time is not modelled.

    Raises: InvalidSpec, Unsupported or UnknownName with one sentence when the question cannot be answered.
    """
    program, *_ = ranks(job)
    found, visible = _rank(job), job.cluster.gpu.visible_bytes
    fits = found.needed_bytes <= visible
    plain = Answer(
        question=question(job), fits=fits, capacity_bytes=visible, ranks=(found,),
        num_parameters=elements_of(job.pipeline.denoisers[0].network),  # of what is trained
        assumptions=tuple(dict.fromkeys((*job.pipeline.notes, *job.assumed, *program.assumptions, NO_TIME))),
        warnings=program.warnings,
        ignored=newer(job.engine, job.engine_version or (), DIFFUSION[job.engine].newest),
        changes=() if fits or not with_changes else _changes(job, found),
    )
    return with_cost(plain, job.cluster)


NO_TIME: Final = "the time of a step of diffusion training is not modelled"


def recorded(job: DiffusionJob) -> Snapshot:
    """The run, event by event, as a memory snapshot of it would hold it."""
    program, *_ = ranks(job)
    card_bytes = job.cluster.gpu.visible_bytes
    return estimate.recorded.record(
        program.phases, name=f"{job.pipeline.name}, {program.role}", alloc_conf=job.alloc_conf,
        capacity_bytes=max(0, card_bytes - sum(one.num_bytes for one in around_process(job.cluster.gpu))),
        card_bytes=card_bytes,
    )


def _rank(job: DiffusionJob) -> RankAnswer:
    program, *before = ranks(job)
    gpu, count = job.cluster.gpu, job.cluster.count
    outside = around_process(gpu)
    if count > 1:
        outside = (*outside, Tensor(
            name="NCCL communicators", num_bytes=communicator_bytes(gpu), category=Category.COMMUNICATION,
            owner="process", basis=Basis.ASSUMED, formula=Note(
                "1 communicator x {} MiB", communicator_bytes(gpu) // MIB
            ),
            source="catalogue/contexts.csv, NCCL rows",
        ))
    peft = job.plan.peft
    traits = Traits(
        engine=job.engine, kin="eager", adapters="" if peft is None else "adapters",
        packed="packed" if peft is not None and peft.base != "full" else "",
        ranks="several" if count > 1 else "one", recompute=job.plan.recompute.value,
        optimizer=job.plan.optimizer, arch=gpu.arch, gpu=gpu.name,
    )
    found, *others = (rank_answer(
        one, outside=outside, capacity_bytes=gpu.visible_bytes, traits=traits, alloc_conf=job.alloc_conf,
        exact_bytes=gpu.held_bytes,
    ) for one in (program, *before))
    load = [found.phases[Phase.LOAD], *(other.peak for other in others)]  # the cache is emptied before the first step
    highest = max(load, key=lambda peak: peak.device_bytes)
    return replace(found, phases={**found.phases, Phase.LOAD.value: highest})


def _changes(job: DiffusionJob, before: RankAnswer) -> tuple[Change, ...]:
    """What lowers the peak, each alone; where none of them is sure to be enough, what is together stands first."""
    alone = tuple(_change(job, (step,), *less) for step in CHANGES if (less := _with(job, before, (step,))) is not None)
    if any(change.verdict is Fit.FITS for change in alone):
        return alone
    capacity, steps, least = job.cluster.gpu.visible_bytes, list[Step](), (job, before)
    for step in CHANGES:
        if least[1].high_bytes > capacity and (less := _with(job, least[1], (*steps, step))) is not None:
            steps, least = [*steps, step], less
    enough = max(capacity, least[1].high_bytes)  # the last step was needed; those before it perhaps not
    for step in steps[:-1]:
        fewer = [other for other in steps if other is not step]
        if (less := _with(job, before, fewer)) is not None and less[1].high_bytes <= enough:
            steps, least = fewer, less
    if len(steps) < 2 or least[1].needed_bytes > capacity:
        return best_first(alone)
    return best_first((_change(job, steps, *least), *alone))


def _with(job: DiffusionJob, before: RankAnswer, steps: Iterable[Step]) -> tuple[DiffusionJob, RankAnswer] | None:
    """The job with changes and what that needs; None where one does not apply, or it needs as much."""
    for _, change, _ in steps:
        changed = change(job)
        if changed is None:
            return None
        job = changed
    try:
        found = _rank(job)
    except (InvalidSpec, Unsupported):
        return None
    return (job, found) if found.needed_bytes < before.needed_bytes else None


def _change(job: DiffusionJob, steps: Iterable[Step], changed: DiffusionJob, found: RankAnswer) -> Change:
    capacity = job.cluster.gpu.visible_bytes
    return Change(
        change=" ".join(option.format(job=changed) for option, *_ in steps), device_bytes=found.needed_bytes,
        fits=found.needed_bytes <= capacity, cost=joined("; ", [cost for *_, cost in steps if cost]),
        high_bytes=found.high_bytes, capacity_bytes=capacity,
    )


def _recomputed(job: DiffusionJob) -> DiffusionJob | None:
    done = job.plan.recompute is not Recompute.NONE
    return None if done else replace(job, plan=replace(job.plan, recompute=Recompute.FULL))


def _eight_bit(job: DiffusionJob) -> DiffusionJob | None:
    rule = EIGHT_BIT.get(job.plan.optimizer)
    return (rule and replace(job, plan=replace(job.plan, optimizer=rule))) or None


def _one_sample(job: DiffusionJob) -> DiffusionJob | None:
    return replace(job, workload=replace(job.workload, micro_batch=1)) if job.workload.micro_batch > 1 else None


def _cached(job: DiffusionJob) -> DiffusionJob | None:
    setting = job.setting
    if setting.vae != "on" or setting.text_learns or setting.trains != "denoiser":
        return None
    return replace(job, setting=replace(setting, vae="cached", text="cached"))


def _packed(job: DiffusionJob) -> DiffusionJob | None:
    peft = job.plan.peft
    if peft is None or peft.base != "full" or job.engine != "diffusers":
        return None
    return replace(job, plan=replace(job.plan, peft=replace(peft, base="nf4")))


Step = tuple[str, Callable[[DiffusionJob], DiffusionJob | None], str]

CHANGES: Final[tuple[Step, ...]] = (
    ("--recompute full", _recomputed, "a forward more in every step"),
    ("--optimizer {job.plan.optimizer}", _eight_bit, ""),
    ("--micro-batch 1", _one_sample, ""),
    ("--engine-option vae=cached --engine-option text=cached", _cached, "no augmentation of images and captions"),
    ("--base-weights nf4", _packed, ""),
)
"""What to say, how the job changes, and what that costs."""


def question(job: DiffusionJob) -> dict[str, Any]:
    """The job as plain data; the pipeline and the card by name."""
    plain = asked_of(job.pipeline.name, job.cluster, named(job.engine, job.engine_version))
    for name in ("workload", "plan", "setting"):
        plain[name] = getattr(job, name).as_plain()
    plain["workload"].pop("seq_len", None)
    if job.alloc_conf:
        plain["alloc_conf"] = job.alloc_conf
    return plain
