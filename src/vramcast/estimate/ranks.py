"""One rank role answered: its program at three levels, the ledger that adds up to the peak, the interval.

Memory of a process beside PyTorch's caching allocator: CUDA context, library images, NCCL.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.answer import LedgerEntry, Peak, RankAnswer
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES, Gpu
from vramcast.domain.job import Job, Phase, RankProgram
from vramcast.domain.program import Basis, Category, Tensor, extent
from vramcast.engines.training import engine_of
from vramcast.errors import Note, OutOfMemory
from vramcast.estimate.interval import (
    HIGH_SHARE,
    Purpose,
    Traits,
    chance_within,
    interval,
    likest_runs,
    misses,
    slack_of,
)
from vramcast.estimate.script import Script
from vramcast.estimate.timeline import Simulated, simulate
from vramcast.units import MIB

SHARES: Final = (1.25, 1.5, 2.0)
"""Of what is allocated: capacities at which a run of many lengths is tried where the card is too small."""

GIVES_BACK: Final = (
    "fits only because the allocator gives cached memory back when the card is full: expect retries and slow "
    "steps; --alloc-conf expandable_segments:True avoids most of it"
)
"""What to know of a plan that would need more than its card if the allocator kept all."""


class RankNeed(Struct, frozen=True):
    """What a rank must have of its card, in short: what plans are compared by [bytes]."""

    needed_bytes: int  # device bytes of the highest phase
    steady_bytes: int  # of the steady one
    slack_share: float  # of what the allocator keeps without using it, in the latter


def rank_answer(
    program: RankProgram, *, outside: tuple[Tensor, ...], capacity_bytes: int, traits: Traits, alloc_conf: str = "",
    exact_bytes: int = 0, purpose: Purpose = "training",
) -> RankAnswer:
    """The peaks of every phase, and the ledger at the peak of the steady one.

    Args:
        program: what the ranks of the role do
        outside: what lies beside the caching allocator whatever the program says
        capacity_bytes: what a process can use of the card [bytes]
        traits: of the job: the measured cases like it make the interval
        exact_bytes: what of the steady peak the engine fixes itself: a cache sized by a fraction cannot be missed
        purpose: which kind of measured cases
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF of the user; empty: the engine's own
    """
    outside = (*outside, *program.outside)
    outside_bytes = sum(tensor.num_bytes for tensor in outside)
    program.require_sound()
    script = Script(program.phases)
    marks, gives_back_cache = _marks(program, script, alloc_conf or program.alloc_conf, capacity_bytes - outside_bytes)
    phases = {phase.value: _peak(marks[phase], outside_bytes) for phase in program.phases}
    steady = phases[program.steady.value]
    exact_bytes = min(exact_bytes, steady.device_bytes)
    like = replace(traits, slack=slack_of(slack_share(steady))) if traits.slack else traits
    low, high = (exact_bytes + end for end in interval(like, steady.device_bytes - exact_bytes, purpose=purpose))
    beyond = max(peak.device_bytes for peak in phases.values()) - steady.device_bytes  # of the highest phase
    chance = chance_within(
        like, steady.device_bytes - exact_bytes, capacity_bytes - exact_bytes - beyond, purpose=purpose)
    if purpose == "training":  # servers plan their memory ahead, or do not ask PyTorch for it
        ended = -beyond + ended_at_card(
            program, high_bytes=high + beyond, needed_bytes=steady.device_bytes + beyond, capacity_bytes=capacity_bytes,
            outside=outside, alloc_conf=alloc_conf, script=script,
        )
        if ended < high:  # it passes where as much more is needed as the interval says at most
            high, chance = ended, max(chance, HIGH_SHARE)
    return RankAnswer(
        role=program.role,
        count=program.count,
        peak=steady,
        interval_bytes=(low, high),
        phases=phases,
        ledger=_ledger(script.live_at_peak(program.steady), steady, outside),
        gives_back_cache=gives_back_cache,
        chance_to_fit=chance,
        likest=likest_runs(like, purpose),
        misses=misses(like, purpose),
        exact_bytes=exact_bytes,
    )


def rank_need(
    program: RankProgram, *, outside: tuple[Tensor, ...], capacity_bytes: int, alloc_conf: str = ""
) -> RankNeed:
    """What `rank_answer` comes to, for those who compare: without ledger and interval."""
    outside_bytes = sum(tensor.num_bytes for tensor in (*outside, *program.outside))
    program.require_sound()
    script = Script(program.phases)
    marks, _ = _marks(program, script, alloc_conf or program.alloc_conf, capacity_bytes - outside_bytes)
    highest, steady = max(mark.reserved_bytes for mark in marks.values()), marks[program.steady]
    peak = _peak(steady, outside_bytes)
    return RankNeed(outside_bytes + highest, peak.device_bytes, slack_share(peak))


def _peak(mark: Simulated, outside_bytes: int) -> Peak:
    return Peak(allocated_bytes=mark.allocated_bytes, reserved_bytes=mark.reserved_bytes,
                device_bytes=mark.reserved_bytes + outside_bytes)


def ended_at_card(
    program: RankProgram, *, high_bytes: int, needed_bytes: int, capacity_bytes: int, outside: tuple[Tensor, ...],
    alloc_conf: str = "", script: Script[Phase] | None = None,
) -> int:
    """The upper end of an interval that goes beyond the card: the card's own where the run passes there all the same.

    What the allocator keeps without using it is given back before memory is out. So a run is tried on a card that is
    smaller by as much as the prediction may be too small; one that passes there fills the card, and does not run out.

    Args:
        program: what the ranks of the role do
        high_bytes: upper end of the interval of what the highest phase needs [bytes]
        needed_bytes: what it is predicted to need [bytes]
        capacity_bytes: what a process can use of the card [bytes]
        outside: what lies beside the caching allocator, the program's own included
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF of the user; empty: the engine's own
        script: of the program's phases, where they are read already
    """
    if not needed_bytes <= capacity_bytes < high_bytes:
        return high_bytes
    smaller = max(0, capacity_bytes * needed_bytes // high_bytes - sum(tensor.num_bytes for tensor in outside))
    if extent(tuple(chain.from_iterable(program.phases.values()))).peak > smaller:
        return high_bytes  # more lives at once than it holds: nothing that could be given back is enough
    try:
        simulate(program.phases, alloc_conf=alloc_conf or program.alloc_conf, capacity_bytes=smaller, script=script)
    except OutOfMemory:
        return high_bytes
    return capacity_bytes


def slack_share(peak: Peak) -> float:
    """Share of a peak that is reserved and not allocated."""
    return (peak.reserved_bytes - peak.allocated_bytes) / max(1, peak.device_bytes)


def _marks(
    program: RankProgram, script: Script[Phase], alloc_conf: str, capacity_bytes: int
) -> tuple[dict[Phase, Simulated], bool]:
    """High-water marks of each phase, and whether cached memory had to be given back to stay within the capacity.

    A run whose cache outgrows the card is not out of memory yet: the allocator returns what it can and tries again.
    """
    marks = simulate(program.phases, alloc_conf=alloc_conf, script=script)
    if max(mark.reserved_bytes for mark in marks.values()) <= capacity_bytes:
        return marks, False
    allocated = max(mark.allocated_bytes for mark in marks.values())
    # what does not fit is told by a card on which it would: one without end keeps the segments of every length
    larger = (int(allocated * share) for share in SHARES if program.has_lengths)
    for limit in (*([capacity_bytes] if allocated <= capacity_bytes else []), *larger):
        try:
            within = simulate(program.phases, alloc_conf=alloc_conf, capacity_bytes=limit, script=script)
        except OutOfMemory:
            continue
        return within, limit <= capacity_bytes
    return marks, False


def _ledger(live: Mapping[Tensor, int], steady: Peak, outside: tuple[Tensor, ...]) -> tuple[LedgerEntry, ...]:
    """Named entries that add up to the device bytes of the steady peak."""
    entries = [ledger_entry(tensor, tensor.block_bytes, count) for tensor, count in live.items()]
    slack = steady.allocated_bytes - sum(entry.num_bytes for entry in entries)
    unused = steady.reserved_bytes - steady.allocated_bytes
    rest = [("reserved but not allocated", unused, "peak reserved - allocated at the peak")]
    if slack:
        rest.insert(0, ("slack of large blocks", slack, "peak allocated - requests at the peak, rounded"))
    entries += [
        LedgerEntry(path=f"allocator/{name}", num_bytes=num_bytes, basis=Basis.FORMULA, formula=formula,
                    source="simulated caching allocator, see docs/levels.md")
        for name, num_bytes, formula in rest
    ]
    entries += [ledger_entry(tensor, tensor.num_bytes, 1) for tensor in outside]
    return tuple(sorted(entries, key=lambda entry: -entry.num_bytes))


def ledger_entry(tensor: Tensor, num_bytes: int, count: int) -> LedgerEntry:
    """`count` live instances of a tensor that take `num_bytes` each."""
    return LedgerEntry(path=tensor.path, num_bytes=num_bytes * count, count=count, basis=tensor.basis,
                       formula=tensor.formula, source=tensor.source)


FALLBACK_NCCL_BYTES: Final = 100 * MIB
"""Where the catalogue says nothing of a card's links: a communicator over PCIe [bytes]."""


def outside_tensors(job: Job) -> tuple[Tensor, ...]:
    """Entries between reserved and device memory of one rank."""
    gpu = job.cluster.gpu
    around = around_process(gpu)
    communicators = communicator_count(job)
    if not communicators:
        return around
    per_communicator = communicator_bytes(gpu)
    nccl = Tensor(
        name="NCCL communicators",
        num_bytes=communicators * per_communicator,
        category=Category.COMMUNICATION,
        owner="process",
        basis=Basis.ASSUMED,
        formula=Note("{} communicators x {} MiB", communicators, per_communicator // MIB),
        source="catalogue/contexts.csv, NCCL rows",
    )
    return (*around, nccl)


def around_process(gpu: Gpu) -> tuple[Tensor, ...]:
    """What of a card a process cannot have: its context, and what others hold."""
    context = context_tensor(gpu)
    if not gpu.held_bytes:
        return (context,)
    held = Tensor(
        name="held by others", num_bytes=gpu.held_bytes, category=Category.WORKSPACES, owner="card",
        basis=Basis.ASSUMED, formula=f"--used {gpu.held_bytes // MIB}MiB", source="given by the user",
    )
    return (context, held)


def context_tensor(gpu: Gpu) -> Tensor:
    """What a process takes of a card before it allocates anything."""
    return Tensor(
        name="CUDA context and library images",
        num_bytes=gpu.context_bytes or FALLBACK_CONTEXT_BYTES,
        category=Category.WORKSPACES,
        owner="process",
        basis=Basis.MEASURED if gpu.context_bytes else Basis.ASSUMED,
        formula=Note("one {} process", gpu.arch),
        source="catalogue/contexts.csv",
    )


def communicator_bytes(gpu: Gpu) -> int:
    """Buffers of one NCCL communicator [bytes]."""
    return gpu.nccl_bytes or FALLBACK_NCCL_BYTES


def communicator_count(job: Job) -> int:
    """Groups of more than one rank that this job communicates in; the cards of one process copy to each other."""
    plan = job.plan
    stages = 1 if engine_of(job).kin == "eager" else plan.pp
    degrees = (job.data_parallel, plan.tp, stages, plan.cp, plan.ep)
    return sum(degree > 1 for degree in degrees)
