"""A measured training run beside the answer to its question, and what later questions could learn from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.doctor.compare import AGREES, HELD, ledger_bytes
from vramcast.doctor.question import SAME_CARD
from vramcast.domain.answer import Answer, RankAnswer
from vramcast.domain.calibration import ALLOCATOR, OUTSIDE, Calibration, Correction
from vramcast.domain.device import Gpu
from vramcast.domain.failure import Compared, Reconciliation, Remark
from vramcast.domain.job import Job, Phase
from vramcast.domain.observation import Highest, MeasuredRun
from vramcast.domain.program import Category, events
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import InvalidSpec
from vramcast.estimate.corrections import entry_bytes, training_facts
from vramcast.estimate.serving import answer as serving_answer
from vramcast.estimate.training import answer, rank_programs
from vramcast.units import format_bytes

SAME_MODEL: Final = 0.01
LEARNT: Final = 0.005
"""A part that differs by less teaches nothing: what is scaled by it would only fall into other blocks."""
ROUNDS: Final = 6
"""Times that a correction is applied and corrected again: scaling what is live moves the peak a little."""
REST: Final = "rest"
"""Activations, temporaries and everything else that torch allocates beside states."""
SCALED: Final = (Category.ACTIVATIONS, Category.TEMPORARIES)
STATES: Final = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER)


def compared_run(run: MeasuredRun, job: Job) -> Reconciliation:
    """The run beside the answer to its question.

    Raises: InvalidSpec where it ran on another card or another number of them
    """
    check_match(run, job.cluster.gpu, job.cluster.count)
    found = answer(job, with_changes=False)
    rank = _role(run, found)
    entries = (*_peak(run, job, rank), *_others(run, job, found, rank))
    largest, share = _worst(entries, AGREES * job.cluster.gpu.visible_bytes)
    return Reconciliation(
        log=run.name, engine=_software(run), rank=str(run.rank), compared=entries, answer=found, largest=largest,
        share=share, why=tuple(_why(run, entries, largest)), remarks=tuple(_remarks(run, found, entries)),
        calibration=_calibration(run, job, rank, entries),
    )


def check_match(run: MeasuredRun, gpu: Gpu, count: int) -> None:
    """Raise InvalidSpec for a job on other cards than the recording's."""
    size = "" if run.gpu_bytes is None else f" ({format_bytes(run.gpu_bytes)})"
    sizes = [size for size in (gpu.visible_bytes, gpu.smi_total_bytes) if size is not None]
    other_size = run.gpu_bytes is not None and all(abs(run.gpu_bytes - one) > SAME_CARD * one for one in sizes)
    if other_size or (run.gpu and not _named(run.gpu, gpu.name)):
        raise InvalidSpec(
            "{} was recorded on {}, the job asks for {} ({}); give --gpus with the card it ran on",
            run.name, (run.gpu or "a card") + size, gpu.name, format_bytes(gpu.visible_bytes)
        )
    if run.num_gpus != count and run.has_counters:
        raise InvalidSpec(
            "{} was recorded on {} GPU, the job asks for {}; give --gpus {}" if run.num_gpus == 1
            else "{} was recorded on {} GPUs, the job asks for {}; give --gpus {}",
            run.name, run.num_gpus, count, f"{run.num_gpus}x{gpu.name}"
        )


def _named(driver: str, catalogue: str) -> bool:
    """Whether a driver's name can be that of a card of the catalogue: its model number is in it.

    >>> _named("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"), _named("NVIDIA H200", "h20-96gb")
    (True, False)
    """
    words = set(re.split(r"[^a-z0-9]+", driver.lower()))
    number = next((word for word in catalogue.split("-") if any(map(str.isdigit, word))), "")
    return not number or number in words


def _software(run: MeasuredRun) -> str:
    names = [run.run.framework] if run.run and run.run.framework else []
    names += [f"{name} {run.versions[name]}" for name in ("torch", "driver") if name in run.versions]
    return ", ".join(names)


def _role(run: MeasuredRun, found: Answer) -> RankAnswer:
    """The role of the rank that was recorded: that whose weights are nearest, the fullest where they are unknown."""
    measured = run.run.weight_bytes if run.run else None
    if measured is None or len(found.ranks) == 1:
        return found.fullest
    return min(found.ranks, key=lambda rank: abs(ledger_bytes(rank, Category.WEIGHTS) - measured))


def _gradients(job: Job, rank: RankAnswer) -> int | None:
    """Gradients that live when the first step makes the optimizer's states: all of them [bytes].

    None for engines that make states before there are gradients.
    """
    program = next(one for one in rank_programs(job) if one.role == rank.role)
    if any(tensor.category == Category.OPTIMIZER for tensor, _ in events(program.phases.get(Phase.LOAD, ()))):
        return None
    total = 0
    for tensor, is_new in events(program.phases.get(Phase.FIRST_STEP, ())):
        if tensor.category == Category.OPTIMIZER:
            return total
        if tensor.category == Category.GRADIENTS:
            total += tensor.block_bytes if is_new else -tensor.block_bytes
    return None


def _peak(run: MeasuredRun, job: Job, rank: RankAnswer) -> Iterator[Compared]:
    """The peak of a steady step, part by part; parts add up to the levels behind them."""
    measured = run.phases.get("step", Highest())
    sizes = entry_bytes(rank, job)
    if measured.allocated_bytes is not None:
        yield from _allocated(run, job, rank, measured.allocated_bytes)
        yield _level("allocated", measured.allocated_bytes, rank.peak.allocated_bytes)
    if measured.reserved_bytes is not None and measured.allocated_bytes is not None:
        kept = measured.reserved_bytes - measured.allocated_bytes
        yield Compared(entry=ALLOCATOR, measured=kept, predicted=sizes.get(ALLOCATOR, 0), group="peak")
        yield _level("reserved", measured.reserved_bytes, rank.peak.reserved_bytes)
    if measured.device_bytes is not None:
        if measured.reserved_bytes is not None:
            beside = measured.device_bytes - measured.reserved_bytes
            yield Compared(entry=OUTSIDE, measured=beside, predicted=sizes[OUTSIDE], group="peak")
        yield _level("device", measured.device_bytes, rank.peak.device_bytes)


def _level(name: str, measured: int, predicted: int) -> Compared:
    return Compared(entry=f"level.{name}", measured=measured, predicted=predicted, group="peak", follows=True)


def _allocated(run: MeasuredRun, job: Job, rank: RankAnswer, allocated: int) -> Iterator[Compared]:
    """States as they were counted, and what they leave of the allocated bytes."""
    counted = _counted(run, job, rank)
    sizes = entry_bytes(rank, job)
    if sum(counted.values()) > allocated:  # gradients cannot all have been there
        counted.pop(Category.GRADIENTS, None)
    for category, num_bytes in counted.items():
        yield Compared(
            entry=category, measured=num_bytes, predicted=sizes.get(category, 0), group="peak",
            derived=category == Category.GRADIENTS,
        )
    if counted:
        predicted = rank.peak.allocated_bytes - sum(sizes.get(category, 0) for category in counted)
        yield Compared(
            entry=REST, measured=allocated - sum(counted.values()), predicted=predicted, group="peak", derived=True
        )


def _counted(run: MeasuredRun, job: Job, rank: RankAnswer) -> dict[str, int]:
    """States at the peak, by category; gradients are all counted, and are taken to be there as far as predicted."""
    if run.run is None or run.run.weight_bytes is None:
        return {}
    counted = {str(Category.WEIGHTS): run.run.weight_bytes}
    sizes, whole = entry_bytes(rank, job), _gradients(job, rank)
    if run.run.gradient_bytes is not None and whole:
        counted[Category.GRADIENTS] = round(sizes.get(Category.GRADIENTS, 0) * run.run.gradient_bytes / whole)
    if run.run.optimizer_bytes is not None:
        counted[Category.OPTIMIZER] = run.run.optimizer_bytes
    return counted


def _others(run: MeasuredRun, job: Job, found: Answer, rank: RankAnswer) -> Iterator[Compared]:
    """What is no part of the steady peak: all gradients, other phases, the time."""
    whole = _gradients(job, rank)
    if whole is not None and run.run is not None and run.run.gradient_bytes is not None:
        yield Compared(
            entry="gradients.all", measured=run.run.gradient_bytes, predicted=whole, group="other", follows=True
        )
    for phase in ("load", "first step"):
        levels, predicted = run.phases.get(phase), rank.phases.get(phase)
        if levels is not None and predicted is not None:
            for level in ("allocated", "reserved"):
                size = getattr(levels, f"{level}_bytes")
                if size is not None:
                    yield Compared(
                        entry=f"{phase}.{level}", measured=size, predicted=getattr(predicted, f"{level}_bytes"),
                        group="other", follows=True,
                    )
    if run.step_s is not None and found.time is not None:
        yield Compared(
            entry="step time", measured=run.step_s, predicted=found.time.step_s, unit="s", group="other", follows=True
        )


def _worst(entries: tuple[Compared, ...], threshold: float) -> tuple[Compared | None, float]:
    """The largest underestimate, because that is what runs out of memory; without one the largest overestimate.

    Where only the device level was measured, it is the entry.
    """
    parts = [entry for entry in entries if entry.group == "peak" and not entry.follows]
    parts = parts or [entry for entry in entries if entry.group == "peak"][-1:]
    apart = [entry for entry in parts if abs(entry.difference) > threshold]
    if not apart:
        return None, 0.0
    worst = max(apart, key=lambda entry: (entry.difference > 0, abs(entry.difference)))
    return worst, abs(worst.difference) / sum(abs(entry.difference) for entry in parts)


def _why(run: MeasuredRun, entries: tuple[Compared, ...], largest: Compared | None) -> Iterator[Remark]:
    """Likely reasons, underestimates first."""
    threshold = 0 if largest is None else AGREES * (run.gpu_bytes or 0)
    apart = [one for one in entries if one.group == "peak" and not one.follows and abs(one.difference) > threshold]
    for entry in sorted(apart, key=lambda entry: -entry.difference) if largest is not None else ():
        if entry.entry == OUTSIDE and entry.difference > HELD and not run.by_process:
            yield Remark(key="run.why.others", values={"size": format_bytes(round(entry.difference))})
            continue
        sign = "more" if entry.difference > 0 else "less"
        dtypes = "/".join(run.run.dtypes[:2]) if run.run else ""
        optimizer = run.run.optimizer if run.run else ""
        yield Remark(key=f"run.why.{entry.entry}.{sign}", values={"dtypes": dtypes, "optimizer": optimizer})


def _remarks(run: MeasuredRun, found: Answer, entries: tuple[Compared, ...]) -> Iterator[Remark]:
    if run.is_simulated:
        yield Remark(key="run.simulated")
    if not run.has_counters:
        yield Remark(key="run.device_only" if run.by_process else "run.card_only")
    elif run.run is None or run.run.weight_bytes is None:
        yield Remark(key="run.not_attached")
    if run.num_steps == 1:
        yield Remark(key="run.one_step")
    if any(entry.entry == Category.GRADIENTS for entry in entries):
        yield Remark(key="run.gradients")
    if run.num_retries:
        yield Remark(key="run.retries", values={"count": f"{run.num_retries:,}"})
    if run.has_counters and run.phases["step"].device_bytes is not None and not run.by_process:
        yield Remark(key="run.everyone")
    count = run.run.num_parameters if run.run else None
    if count is not None and run.num_gpus == 1 and abs(count - found.num_parameters) > SAME_MODEL * count:
        values = {"measured": f"{count:,}", "predicted": f"{found.num_parameters:,}"}
        yield Remark(key="run.parameters", values=values)


def _calibration(
    run: MeasuredRun, job: Job, rank: RankAnswer, entries: tuple[Compared, ...]
) -> Calibration | None:
    """What the measured parts teach; None where only levels were measured."""
    parts = {one.entry: one for one in entries if one.group == "peak" and not one.follows}
    if REST not in parts:
        return None
    whole = {one.entry: one for one in entries if one.group == "other"}
    if Category.GRADIENTS in parts and "gradients.all" in whole:
        parts[Category.GRADIENTS] = whole["gradients.all"]
    corrections = {
        key: Correction(measured_bytes=round(parts[key].measured), predicted_bytes=round(parts[key].predicted))
        for key in (*STATES, OUTSIDE) if key in parts and _teaches(key, parts[key])
    }
    version = re.match(r"\d+\.\d+", run.versions.get("torch", ""))
    numbers = tuple(map(int, version[0].split("."))) if version else (0,)
    calibration = Calibration(
        engine=job.engine, oldest=numbers, newest=numbers, gpu=job.cluster.gpu.name, plan=training_facts(job),
        corrections=corrections, log=_source(run),
    )
    return _fitted(run, job, rank, calibration)


def _teaches(key: str, entry: Compared) -> bool:
    """Whether an entry differs, and is of this job alone: a card that others use says nothing of its context."""
    if entry.measured < 0 or entry.predicted < 1 or (key == OUTSIDE and entry.difference > HELD):
        return False
    return abs(entry.difference) > LEARNT * entry.predicted


def _source(run: MeasuredRun) -> str:
    return ", ".join(part for part in (run.name, _software(run), "simulated" if run.is_simulated else "") if part)


def _fitted(run: MeasuredRun, job: Job, rank: RankAnswer, calibration: Calibration) -> Calibration:
    """With corrections of activations and temporaries, and then of the allocator, under which the answer is the run.

    What is live at the peak is scaled; the peak may move by that, and what is lost within blocks too. So it is
    applied and corrected again until allocated bytes agree, or nothing is gained any more.
    """
    sizes, measured = entry_bytes(rank, job), run.phases["step"]
    predicted = sum(sizes.get(category, 0) for category in SCALED)
    best, target = calibration, measured.allocated_bytes or 0
    if predicted and abs(target - _again(job, calibration, rank).peak.allocated_bytes) > LEARNT * target:
        size = max(1, predicted + target - rank.peak.allocated_bytes)
        misses: dict[int, tuple[int, Calibration]] = {}
        for _ in range(ROUNDS):
            tried = _with_rest(calibration, sizes, size, predicted)
            miss = target - _again(job, tried, rank).peak.allocated_bytes
            misses[abs(miss)] = (size, tried)
            if not miss or size + miss <= 0:
                break
            size += miss
        best = misses[min(misses)][1]
    again = _again(job, best, rank).peak
    kept = (measured.reserved_bytes or 0) - again.allocated_bytes
    if kept < 0:
        return best
    slack = Correction(measured_bytes=kept, predicted_bytes=max(1, again.reserved_bytes - again.allocated_bytes))
    return replace(best, corrections={**best.corrections, ALLOCATOR: slack})


def _with_rest(calibration: Calibration, sizes: dict[str, int], size: int, predicted: int) -> Calibration:
    """Activations and temporaries that take so much together, each in the proportion in which it was predicted."""
    scaled = {
        str(category): Correction(
            measured_bytes=round(sizes[category] * size / predicted), predicted_bytes=sizes[category], apportioned=True
        )
        for category in SCALED if sizes.get(category)
    }
    return replace(calibration, corrections={**calibration.corrections, **scaled})


def _again(job: Job, calibration: Calibration, rank: RankAnswer) -> RankAnswer:
    found = answer(replace(job, calibration=calibration), with_changes=False)
    return next(one for one in found.ranks if one.role == rank.role)


def compared_service(run: MeasuredRun, job: ServeJob | PipelineJob) -> Reconciliation:
    """A server as a watch saw it, at the level of the driver, beside the answer to its question.

    Raises: InvalidSpec where it ran on another card
    """
    check_match(run, job.cluster.gpu, job.cluster.count)
    found = serving_answer(job, with_changes=False)
    measured = run.phases["step"].device_bytes
    entries = () if measured is None else (_level("device", measured, found.fullest.needed_bytes),)
    largest, share = _worst(entries, AGREES * job.cluster.gpu.visible_bytes) if entries else (None, 0.0)
    return Reconciliation(
        log=run.name, engine=_software(run), rank="", compared=entries, answer=found, largest=largest, share=share,
        remarks=tuple(_remarks(run, found, entries)),
    )
