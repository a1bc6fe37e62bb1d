"""From the tape of a run to its answer: peaks of its steps, who held them, where it runs out of memory.

What every block was for: weights, gradients and optimizer states are told by who holds them; the rest by when they came
and went. The ledger is by category; the same blocks by module, line and operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.allocator import Settings, round_size
from vramcast.allocator.failure import size_text
from vramcast.domain.answer import LedgerEntry, Peak, RankAnswer
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES, Gpu
from vramcast.domain.program import Basis, Category
from vramcast.domain.snapshot import Frame, Snapshot
from vramcast.domain.trace_job import (
    CoursePoint,
    Holding,
    Holdings,
    TraceAnswer,
    Traced,
    TracedTime,
    TraceFailure,
    UnknownOperator,
)
from vramcast.errors import Note
from vramcast.estimate.interval import HIGH_SHARE, chance_within, interval, likest_runs, misses, traced_traits
from vramcast.estimate.ranks import communicator_bytes
from vramcast.recordings.stacks import is_python, is_users, python_frames, shown
from vramcast.timing.roofline import UNREAD, step_of
from vramcast.timing.training.parts import bound_of
from vramcast.tracing.tape import (
    Block,
    Failure,
    Highest,
    Phase,
    Played,
    Tape,
    bare,
    highest,
    live_after,
    play,
    recording,
)
from vramcast.units import MIB

INPUTS_FROM: Final = frozenset({"aten.randn", "aten.rand", "aten.randint"})
"""Operators that make data on the device where no module asks for them."""


def categorise(tape: Tape) -> list[Category]:
    ended = _phases_at_end(tape)
    return [_category(block, ended[block.index]) for block in tape.blocks]


def _phases_at_end(tape: Tape) -> list[Phase | None]:
    """The phase in which each block was freed: that of the last allocation before. None: alive at the end."""
    phases: list[Phase | None] = [None] * len(tape.blocks)
    now = Phase.SETUP
    for event in tape.events:
        if event > 0:
            now = tape.blocks[event - 1].origin.phase
        else:
            phases[-event - 1] = now
    return phases


def _category(block: Block, ended: Phase | None) -> Category:
    if block.category is not None:
        return block.category
    origin = block.origin
    if origin.phase is Phase.OPTIMIZER:
        return Category.TEMPORARIES
    if origin.phase is Phase.BACKWARD:
        is_recomputed = bool(origin.module) and origin.stack == origin.forward_stack
        return Category.ACTIVATIONS if is_recomputed else Category.TEMPORARIES
    if not origin.module and block.operator in INPUTS_FROM:
        return Category.INPUTS
    if origin.phase is Phase.FORWARD and ended is Phase.FORWARD:
        return Category.TEMPORARIES
    return Category.ACTIVATIONS


NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a module's name that only counts."""
TORCH: Final = re.compile(r"(^|/)torch/|^<")
NAMED: Final = frozenset({Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER})
"""Categories whose blocks are called after parameters."""


def line_at(stacks: tuple[tuple[Frame, ...], ...]) -> Callable[[int], str]:
    """Index of a stack -> the line that tells most: the user's own, else the innermost that is not torch's."""
    return cache(lambda stack: line_of(stacks[stack] if 0 <= stack < len(stacks) else ()))


def line_of(stack: Iterable[Frame]) -> str:
    """"train.py:50 step" of a stack, innermost frame first; "" of one without frames of Python."""
    frames = [frame for frame in stack if is_python(frame)]
    for is_telling in (is_users, lambda frame: TORCH.search(frame.filename) is None):
        found = next((frame for frame in frames if is_telling(frame)), None)
        if found is not None:
            return shown(found)
    return shown(frames[0]) if frames else ""


class Live:
    """A block alive at the peak, in the words of the ledger."""

    __slots__ = ("category", "leaf", "line", "module", "num_bytes", "operator")

    def __init__(self, block: Block, category: Category, line: Callable[[int], str]) -> None:
        origin = block.origin
        self.category = category
        self.num_bytes = round_size(block.num_bytes)
        self.operator = _packet(block.operator)
        self.line = line(origin.forward_stack)
        self.module, self.leaf = origin.module, self.operator.removeprefix("aten.")
        if category is Category.OPTIMIZER and block.name:
            parameter, _, self.leaf = block.name.rpartition(".")
            self.module = parameter.rpartition(".")[0]
        elif category in NAMED and block.name:
            self.module, _, self.leaf = block.name.rpartition(".")
        elif block.name:
            self.leaf = block.name


def _packet(operator: str) -> str:
    """"aten.mm" of "aten.mm.default"."""
    parts = operator.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else operator


def entries(live: Iterable[Live], peak: Peak, outside: tuple[LedgerEntry, ...]) -> tuple[LedgerEntry, ...]:
    """The ledger at the peak, largest first, of what lives then and what is outside the allocator.

    Modules that differ in numbers alone are one entry: "layers.*.mlp" x 32.
    """
    groups: dict[tuple[Category, str, str], dict[str, list[int]]] = {}
    for one in live:
        group = groups.setdefault((one.category, NUMBER.sub("*", one.module), one.leaf), {})
        group.setdefault(one.module, []).append(one.num_bytes)
    found = [_entry(category, pattern, leaf, modules) for (category, pattern, leaf), modules in groups.items()]
    blocks = sum(entry.num_bytes for entry in found)
    found += [*outside, *_between(blocks, peak)]
    return tuple(sorted(found, key=lambda entry: (-entry.num_bytes, entry.path)))


def _entry(category: Category, pattern: str, leaf: str, modules: dict[str, list[int]]) -> LedgerEntry:
    module = next(iter(modules)) if len(modules) == 1 else pattern
    sizes = [size for each in modules.values() for size in each]
    return LedgerEntry(
        path="/".join(part for part in (category, module, leaf) if part), num_bytes=sum(sizes), count=len(sizes),
        basis=Basis.TRACED,
    )


def _between(blocks: int, peak: Peak) -> list[LedgerEntry]:
    """What the allocator adds: the rest of blocks too small to be split off, and cached memory."""
    parts = {
        "slack/rest of blocks": peak.allocated_bytes - blocks,
        "allocator/cached": peak.reserved_bytes - peak.allocated_bytes,
    }
    return [LedgerEntry(path=path, num_bytes=size, basis=Basis.TRACED) for path, size in parts.items() if size]


def holdings(live: Iterable[Live]) -> Holdings:
    """The same blocks by module, by line and by operator."""
    blocks = list(live)
    return Holdings(
        by_module=_held(blocks, lambda one: one.module), by_line=_held(blocks, lambda one: one.line),
        by_operator=_held(blocks, lambda one: one.operator),
    )


def _held(blocks: Iterable[Live], key: Callable[[Live], str]) -> tuple[Holding, ...]:
    sums: dict[str, list[int]] = {}
    for one in blocks:
        total = sums.setdefault(key(one), [0, 0])
        total[0] += one.num_bytes
        total[1] += 1
    found = (Holding(name=name, num_bytes=size, count=count) for name, (size, count) in sums.items())
    return tuple(sorted(found, key=lambda one: (-one.num_bytes, one.name)))


NOISE_S: Final = 1e-9  # below that a part of a step is a rounding
VERSION: Final = (2, 13)
"""Of the torch whose message is printed where memory runs out."""
POINTS: Final = 144  # of the course of a run: twice the columns of its picture
MOST_FRAMES: Final = 12  # of the stack of a failure


class Run(NamedTuple):
    """What a run left behind, on its fullest device."""

    tape: Tape
    stacks: tuple[tuple[Frame, ...], ...]
    unseen: Mapping[str, tuple[int, int]]  # operator -> calls, bytes of its outputs
    gpu: Gpu
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
    samples: int | None = None  # of a step, on all ranks; None: nobody said


class Steps(NamedTuple):
    """Where the steps of a run lie: positions among its events."""

    setup: int  # events before the first forward of a module; 0 where none runs
    ends: tuple[int, ...]  # of every step


def traced(run: Run, about: About) -> Traced:
    """The answer and the recording behind it."""
    settings = Settings.parse(run.alloc_conf)
    outside = _outside(run, about)
    needs = needs_of(run, about)
    fits, failure, played, room = needs.failure is None, needs.failure, needs.played, needs.room
    labels = categorise(run.tape)
    rank, live = _with_ledger(run, needs, labels, outside)
    known = run.unseen
    answer = TraceAnswer(
        question=about.question, fits=fits, capacity_bytes=run.capacity_bytes, ranks=(rank,),
        num_parameters=about.num_parameters, assumptions=about.assumptions, warnings=about.warnings,
        steps=len(run.tape.step_ends()), events=len(run.tape.events), holdings=holdings(live),
        unknown_operators=_unknown(known, live), stopped=about.stopped,
        failure=None if failure is None else _failure(run, failure, outside),
        course=tuple(_course(played)), traced_time=_time(run, about),
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


class Needs(NamedTuple):
    """What a run needs of its card."""

    rank: RankAnswer  # without a ledger and an interval
    at_peak: Highest
    played: Played
    failure: Failure | None
    room: int  # for the allocator [bytes]


def needs_of(run: Run, about: About) -> Needs:
    """Whether a run fits, and its peaks; who holds them is not looked at."""
    settings = Settings.parse(run.alloc_conf)
    beside = sum(entry.num_bytes for entry in _outside(run, about))
    room = run.capacity_bytes - beside
    free = play(run.tape, settings=settings)
    has_room = highest(free).reserved_bytes <= room
    bounded = free if has_room else play(run.tape, settings=settings, capacity_bytes=max(0, room))
    failure = bounded.failure
    played = bounded if failure is None else free
    rank, at_peak = _rank(run, played, beside, about)
    return Needs(replace(rank, gives_back_cache=failure is None and not has_room), at_peak, played, failure, room)


def _outside(run: Run, about: About) -> tuple[LedgerEntry, ...]:
    return (*_context(run.gpu), *_communicators(run), *about.outside)


def _rank(run: Run, played: Played, beside: int, about: About) -> tuple[RankAnswer, Highest]:
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
    peak = _peak(at_peak, beside)
    rank = RankAnswer(
        role="all", count=about.ranks, peak=peak, interval_bytes=(peak.device_bytes, peak.device_bytes),
        phases={name: _peak(moment, beside) for name, moment in moments.items()}, ledger=(),
    )
    return rank, at_peak


def _with_ledger(
    run: Run, needs: Needs, labels: list[Category], outside: tuple[LedgerEntry, ...]
) -> tuple[RankAnswer, list[Live]]:
    line = line_at(run.stacks)
    live = [Live(block, labels[block.index], line) for block in live_after(run.tape, needs.at_peak.event)]
    return replace(with_interval(run, needs), ledger=entries(live, needs.rank.peak, outside)), live


HOST: Final = "what the host does between operators beyond starting them (data loading, logging, Python) is not in it"
HOST_BOUND: Final = "steps that wait for their host were measured at up to about three times the estimate"
"""`python -m truth.traced_times`: the smallest whole fine-tunings."""
COMMUNICATION: Final = "communication between ranks is not in it"
UNREAD_KERNELS: Final = "kernels of which nobody has read what they compute are in it by what they move: {} of them"


def _time(run: Run, about: About) -> TracedTime | None:
    """The last step on the card."""
    operations = run.tape.last_step()
    found = step_of(operations, run.gpu)
    if found is None:
        return None
    step_s, samples, unread = found.step_s, about.samples, sum(one.kind == UNREAD for one in operations)
    return TracedTime(
        step_s=step_s, flops=found.model_flops, mfu=found.model_flops / step_s / found.peak,
        bound=bound_of(found.seconds),
        seconds={cause: spent for cause, spent in found.seconds.items() if spent > NOISE_S},
        modules=dict(sorted(found.modules.items(), key=lambda one: -one[1])),
        samples_per_s=None if samples is None else samples / step_s, sources=found.sources,
        left_out=(
            HOST, HOST_BOUND, *((COMMUNICATION,) if run.communicators else ()),
            *((Note(UNREAD_KERNELS, f"{unread:,}"),) if unread else ()),
        ),
    )


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
    if not run.communicators:
        return ()
    each = communicator_bytes(run.gpu)
    return (LedgerEntry(
        path=f"{Category.COMMUNICATION}/process/NCCL communicators", num_bytes=run.communicators * each,
        basis=Basis.ASSUMED, formula=Note("{} communicators x {} MiB", run.communicators, each // MIB),
        source="catalogue/contexts.csv, NCCL rows",
    ),)


def _context(gpu: Gpu) -> tuple[LedgerEntry, ...]:
    """What a process takes of a card before it allocates anything."""
    return (LedgerEntry(
        path=f"{Category.WORKSPACES}/process/CUDA context and library images",
        num_bytes=gpu.context_bytes or FALLBACK_CONTEXT_BYTES,
        basis=Basis.MEASURED if gpu.context_bytes else Basis.ASSUMED,
        formula=Note("one {} process", gpu.arch), source="catalogue/contexts.csv",
    ),)


def with_interval(run: Run, needs: Needs) -> RankAnswer:
    """The rank with its interval and chance to fit, by how far measured trainings lay from their traces; as it is where
    what a process takes of the card before it allocates is not known.

    What the allocator keeps without using it is given back before memory is out: a run that passes on a card as much
    smaller as more may be needed fills its card, and does not run out.
    """
    rank = needs.rank
    if not run.gpu.context_bytes:
        return rank
    traits, steady = traced_traits(run.gpu), rank.peak.device_bytes
    needed, capacity = rank.needed_bytes, run.capacity_bytes
    low, high = interval(traits, steady, purpose="tracing")
    chance = chance_within(traits, steady, capacity - needed + steady, purpose="tracing")
    most = high + needed - steady
    if needed <= capacity < most:
        smaller = max(0, needs.room - capacity + capacity * needed // most)
        if play(run.tape, settings=Settings.parse(run.alloc_conf), capacity_bytes=smaller).failure is None:
            high, chance = capacity - needed + steady, max(chance, HIGH_SHARE)
    return replace(
        rank, interval_bytes=(low, high), chance_to_fit=chance, likest=likest_runs(traits, "tracing"),
        misses=misses(traits, "tracing"),
    )


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
        num_bytes=figures.tried, step=1 + sum(end <= block.born for end in run.tape.step_ends()),
        phase=origin.phase.value, operator=block.operator, module=origin.module,
        line=line_of(stack),
        message=error.torch_message(VERSION, processes=used, device=run.device),
        stack=tuple(shown(frame) for frame in python_frames(map(bare, stack)) if _is_file(frame))[:MOST_FRAMES],
    )


def _recording(run: Run, about: About, labels: list[Category], settings: Settings, room: int) -> Snapshot:
    stacks = tuple(tuple(map(bare, stack)) for stack in run.stacks)
    return recording(
        run.tape, stacks=stacks, labels=[str(label) for label in labels], name=about.name, settings=settings,
        capacity_bytes=max(0, room), alloc_conf=run.alloc_conf,
    )


def _is_file(frame: Frame) -> bool:
    return not frame.filename.startswith("<")
