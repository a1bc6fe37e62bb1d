"""From the tape of a run to its answer: peaks of its steps, the ledger, where it runs out of memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.allocator import Settings
from vramcast.allocator.failure import size_text
from vramcast.catalogue.contexts import context_bytes
from vramcast.domain.answer import LedgerEntry, Peak, RankAnswer
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES, Gpu
from vramcast.domain.program import Basis, Category
from vramcast.domain.snapshot import Frame, Snapshot
from vramcast.domain.traced import CoursePoint, TraceAnswer, Traced, TraceFailure, UnknownOperator
from vramcast.errors import UnknownName
from vramcast.estimate.outside import communicator_bytes
from vramcast.recordings.stacks import python_frames, shown
from vramcast.tracing.categories import categorise
from vramcast.tracing.ledger import Live, Places, entries, holdings
from vramcast.tracing.played import Failure, Highest, Played, bare, highest, live_after, play, recording
from vramcast.tracing.tape import Phase, Tape
from vramcast.units import MIB

VERSION: Final = (2, 13)
"""Of the torch whose message is printed where memory runs out."""
POINTS: Final = 144
"""Of the course of a run: twice the columns of its picture."""
MOST_FRAMES: Final = 12
"""Of the stack of a failure."""


class Run(NamedTuple):
    """What a run left behind, on its fullest device."""

    tape: Tape
    stacks: tuple[tuple[Frame, ...], ...]
    unseen: Mapping[str, tuple[int, int]]  # operator -> calls, bytes of its outputs
    gpu: Gpu | None  # None: the host
    capacity_bytes: int  # what a process can use
    alloc_conf: str = ""
    device: int = 0
    communicators: int = 0  # process groups that communicated


class About(NamedTuple):
    """What is said of a run beside what it did."""

    name: str  # of the recording
    question: dict[str, Any]
    num_parameters: int
    ranks: int = 1  # that use the same
    outside: tuple[LedgerEntry, ...] = ()  # of the process beside the context: NCCL ...
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    stopped: str = ""


class Steps(NamedTuple):
    """Where the steps of a run lie: positions among its events."""

    setup: int  # events before the first forward of a module; 0 where none runs
    ends: tuple[int, ...]  # of every step


def traced(run: Run, about: About) -> Traced:
    """The answer and the recording behind it."""
    settings = Settings.parse(run.alloc_conf)
    outside = (*_context(run.gpu), *_communicators(run), *about.outside)
    room = run.capacity_bytes - sum(entry.num_bytes for entry in outside)
    free = play(run.tape, settings=settings) if run.gpu else _on_host(run.tape)
    has_room = highest(free).reserved_bytes <= room
    bounded = free if has_room or not run.gpu else play(run.tape, settings=settings, capacity_bytes=max(0, room))
    failure = bounded.failure
    played = bounded if failure is None else free
    fits = failure is None and (has_room or run.gpu is not None)
    labels = categorise(run.tape)
    rank, live = _rank(run, played, labels, outside, about)
    rank = replace(rank, gives_back_cache=fits and not has_room)
    known = run.unseen
    answer = TraceAnswer(
        question=about.question, fits=fits, capacity_bytes=run.capacity_bytes, ranks=(rank,),
        num_parameters=about.num_parameters, assumptions=about.assumptions, warnings=about.warnings,
        steps=len(run.tape.step_ends()), events=len(run.tape.events), holdings=holdings(live),
        unknown_operators=_unknown(known, live), stopped=about.stopped,
        failure=None if failure is None else _failure(run, failure, outside),
        interval_basis=_interval_basis(run.gpu), course=tuple(_course(played)),
    )
    return Traced(answer=answer, snapshot=_recording(run, about, labels, settings, room))


def steps_of(tape: Tape) -> Steps:
    """The steps of a run; where none was marked, all of it is one."""
    ends = tape.step_ends()
    if not ends:
        return Steps(0, (len(tape.events),))
    ran = any(block.origin.phase is Phase.FORWARD and block.born < ends[0] for block in tape.blocks)
    setup = next((block.born for block in tape.blocks if block.origin.phase is not Phase.SETUP), 0) if ran else 0
    return Steps(setup, ends)


def _rank(
    run: Run, played: Played, labels: list[Category], outside: tuple[LedgerEntry, ...], about: About
) -> tuple[RankAnswer, list[Live]]:
    beside = sum(entry.num_bytes for entry in outside)
    steps = steps_of(run.tape)
    first_end, last_end = steps.ends[0], steps.ends[-1]
    begin = steps.ends[-2] if len(steps.ends) > 1 else steps.setup
    at_peak = highest(played, begin, last_end)
    moments = {"load": highest(played, 0, steps.setup)} if steps.setup else {}
    if len(steps.ends) > 1:
        moments["first step"] = highest(played, steps.setup, first_end)
    moments["step"] = at_peak
    after = highest(played, last_end + 1) if last_end < len(run.tape.events) else at_peak
    if after.allocated_bytes > at_peak.allocated_bytes:
        moments["after"] = after
    places = Places(run.stacks)
    rounds = run.gpu is not None
    live = [Live(block, labels[block.index], places, rounds=rounds) for block in live_after(run.tape, at_peak.event)]
    peak = _peak(at_peak, beside)
    low, high = _interval(run.gpu, peak)
    rank = RankAnswer(
        role="all", count=about.ranks, peak=peak, interval_bytes=(low, high),
        phases={name: _peak(moment, beside) for name, moment in moments.items()},
        ledger=entries(live, peak, outside),
    )
    return rank, live


def _on_host(tape: Tape) -> Played:
    """The tape in main memory, whose allocator neither rounds nor keeps."""
    allocated = array("Q")
    live = 0
    for event in tape.events:
        size = tape.blocks[abs(event) - 1].num_bytes
        live += size if event > 0 else -size
        allocated.append(live)
    return Played(allocated, allocated, None)


def _course(played: Played) -> Iterator[CoursePoint]:
    count = len(played.allocated)
    edges = sorted({count * place // POINTS for place in range(POINTS + 1)})
    for low, high in pairwise(edges):
        yield CoursePoint(max(played.allocated[low:high]), max(played.reserved[low:high]))


def _peak(moment: Highest, beside: int) -> Peak:
    reserved = moment.reserved_bytes
    return Peak(allocated_bytes=moment.allocated_bytes, reserved_bytes=reserved, device_bytes=reserved + beside)


def _communicators(run: Run) -> tuple[LedgerEntry, ...]:
    """NCCL's own buffers, which do not come from the allocator."""
    if run.gpu is None or not run.communicators:
        return ()
    each = communicator_bytes(run.gpu)
    return (LedgerEntry(
        path=f"{Category.COMMUNICATION}/process/NCCL communicators", num_bytes=run.communicators * each,
        basis=Basis.ASSUMED, formula=f"{run.communicators} communicators x {each // MIB} MiB",
        source="catalogue/contexts.csv, NCCL rows",
    ),)


def _context(gpu: Gpu | None) -> tuple[LedgerEntry, ...]:
    """What a process takes of a card before it allocates anything."""
    if gpu is None:
        return ()
    return (LedgerEntry(
        path=f"{Category.WORKSPACES}/process/CUDA context and library images",
        num_bytes=gpu.context_bytes or FALLBACK_CONTEXT_BYTES,
        basis=Basis.MEASURED if gpu.context_bytes else Basis.ASSUMED,
        formula=f"one {gpu.arch} process", source="catalogue/contexts.csv",
    ),)


def _interval(gpu: Gpu | None, peak: Peak) -> tuple[int, int]:
    """Device bytes with the smallest and the largest context that was seen on cards of this generation."""
    if gpu is None or not gpu.context_bytes:
        return peak.device_bytes, peak.device_bytes
    try:
        seen = context_bytes(gpu.arch, gpu.compute_capability)
    except UnknownName:
        return peak.device_bytes, peak.device_bytes
    typical = gpu.context_bytes
    return peak.device_bytes - typical + seen.low, peak.device_bytes - typical + seen.high


def _interval_basis(gpu: Gpu | None) -> str:
    if gpu is None or not gpu.context_bytes:
        return ""
    return f"smallest and largest CUDA context seen on {gpu.arch}"


def _unknown(unseen: Mapping[str, tuple[int, int]], live: list[Live]) -> tuple[UnknownOperator, ...]:
    held: dict[str, int] = {}
    for one in live:
        held[one.operator] = held.get(one.operator, 0) + one.num_bytes
    found = [
        UnknownOperator(name=name, calls=calls, num_bytes=size, peak_bytes=held.get(name, 0))
        for name, (calls, size) in unseen.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.peak_bytes, -one.num_bytes, one.name)))


def _failure(run: Run, failure: Failure, outside: tuple[LedgerEntry, ...]) -> TraceFailure:
    block, error = failure.block, failure.error
    beside = sum(entry.num_bytes for entry in outside)
    figures = error.figures
    error.figures = replace(figures, total=run.capacity_bytes)
    used = f"Including non-PyTorch memory, this process has {size_text(figures.reserved + beside)} memory in use. "
    origin = block.origin
    stack = run.stacks[origin.forward_stack]
    return TraceFailure(
        num_bytes=figures.tried, step=sum(end <= block.born for end in run.tape.step_ends()),
        phase=origin.phase.value, operator=block.operator, module=origin.module,
        line=Places(run.stacks)[origin.forward_stack],
        message=error.torch_message(VERSION, processes=used, device=run.device),
        stack=tuple(shown(frame) for frame in python_frames(map(bare, stack)) if _is_file(frame))[:MOST_FRAMES],
    )


def _recording(run: Run, about: About, labels: list[Category], settings: Settings, room: int) -> Snapshot:
    stacks = tuple(tuple(map(bare, stack)) for stack in run.stacks)
    return recording(
        run.tape, stacks=stacks, labels=[str(label) for label in labels], name=about.name, settings=settings,
        capacity_bytes=max(0, room) if run.gpu else None, alloc_conf=run.alloc_conf,
    )


def _is_file(frame: Frame) -> bool:
    """Not of the interpreter, which runs scripts."""
    return not frame.filename.startswith("<")
