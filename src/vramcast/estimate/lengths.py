"""Runs whose samples differ in length: steps of many sizes leave the caching allocator more than one size does.

A step that is longer than all before it finds no cached block that is large enough for its largest tensors: new
segments are taken, and the old ones stay. Of lengths drawn at random each new longest one comes half as near to the
longest possible one as the last, on average; the sequence here does so exactly, with shorter ones between (van der
Corput). How many new longest ones a run meets, and when, is chance: that decides what is reserved far more than the
length of the shortest does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job, Phase, RankProgram
from vramcast.domain.program import Free, Loop, Node, Program, Tensor, taken_over
from vramcast.errors import Note

PLAYED: Final = 16
"""Steps of different lengths before the longest one [count]."""

Build = Callable[[Job], tuple[RankProgram, ...]]


def step_lengths(shortest: int, longest: int, *, multiple: int = 1, count: int = PLAYED) -> tuple[int, ...]:
    """Lengths of the steps that are played, the longest last.

    Args:
        shortest: of a sample [tokens]
        longest: of a sample [tokens]
        multiple: what the run pads lengths to [tokens]
        count: steps before the longest [count]

    >>> step_lengths(1, 1024, count=4)
    (512, 257, 768, 129, 1024)
    """
    between = (shortest + (longest - shortest) * _mirrored(index) for index in range(1, count + 1))
    padded = (max(multiple, round(length / multiple) * multiple) for length in between)
    return (*(min(length, longest) for length in padded), longest)


def _mirrored(index: int) -> float:
    """The binary digits of a number, mirrored at the point."""
    found, weight = 0.0, 0.5
    while index:
        found += weight * (index & 1)
        index, weight = index >> 1, weight / 2
    return found


def with_lengths(job: Job, build: Build) -> tuple[RankProgram, ...]:
    """The programs of every rank role: of the lengths that the job's samples have, the longest last.

    Args:
        job: the question
        build: the programs of a job of one length
    """
    workload, plan = job.workload, job.plan
    if workload.min_seq_len is None or workload.min_seq_len >= workload.seq_len:
        return build(job)
    divided = plan.cp * plan.tp
    lengths = step_lengths(workload.min_seq_len, workload.seq_len, multiple=2 * divided if divided > 1 else 1)
    built = (build(replace(job, workload=replace(workload, seq_len=length, min_seq_len=None))) for length in lengths)
    said = (
        Note(
            "samples of {} to {} tokens: {} steps of different lengths fill the allocator; the order they come in is "
            "chance, and what is reserved depends on it; time is the longest's",
            workload.min_seq_len, workload.seq_len, len(lengths)
        )
    )
    return tuple(_joined(programs, said) for programs in zip(*built, strict=True))


def _joined(programs: tuple[RankProgram, ...], said: str) -> RankProgram:
    """One role: the first length's first step, every length's step."""
    longest = programs[-1]
    phases = dict(longest.phases)
    if Phase.FIRST_STEP in phases:
        phases[Phase.FIRST_STEP] = programs[0].phases[Phase.FIRST_STEP]
    if Phase.STEP in phases:
        phases[Phase.STEP] = tuple(_one_after_the_other([program.phases[Phase.STEP] for program in programs]))
    return replace(longest, phases=phases, assumptions=(*longest.assumptions, said), has_lengths=True)


def _one_after_the_other(steps: list[Program]) -> Iterator[Node]:
    """Steps of which each frees what the one before it left, not what a step of its own length would have.

    Where something is left, the longest comes twice: its peak has the leavings of a sample as long.
    """
    left = [tuple(taken_over(step)) for step in steps]
    yield from steps[0]
    for (before, own), step in zip(pairwise(left), steps[1:], strict=True):
        yield from _freeing(step, dict(zip(own, before, strict=True))) if own else step
    if left[-1]:
        yield from steps[-1]


def _freeing(program: Program, others: dict[Tensor, Tensor]) -> Iterator[Node]:
    """The same program, where the first to be freed of some tensors are others."""
    for node in program:
        match node:
            case Loop():
                yield replace(node, body=tuple(_freeing(node.body, others)))
            case Free() if node.tensor in others:
                yield Free(others.pop(node.tensor))
            case _:
                yield node
