"""From when to when each block lived, and what it was: columns beside the events of a trace.

What a block was follows from the kind of code that made it and from whether it outlived that code: what a backward
pass leaves behind are gradients of parameters, what it frees itself were gradients of activations.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from enum import StrEnum
from typing import Final, NamedTuple

from vramcast.domain.cublas import SMALL_BYTES
from vramcast.domain.snapshot import Action, Annotation, DeviceSnapshot, Snapshot, Trace
from vramcast.recordings.kinds import Kind, Kinds


class Category(StrEnum):
    """What memory is for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    CACHE = "kv cache"
    WORKSPACES = "workspaces"
    TEMPORARIES = "temporaries"
    INPUTS = "inputs"
    BACKWARD = "backward"  # gradients of weights or of activations: the recording ends before that shows
    HELD = "held before"  # since before the recording until after it, without a stack: mostly weights and states
    UNKNOWN = "unknown"


CATEGORIES: Final = tuple(Category)
"""In the order in which columns number them."""

OUTLIVED: Final[dict[Kind, Category]] = {
    Kind.WORKSPACE: Category.WORKSPACES,
    Kind.ACCUMULATED: Category.GRADIENTS,
    Kind.OPTIMIZER_STATE: Category.OPTIMIZER,
    Kind.CACHE: Category.CACHE,
    Kind.WEIGHT: Category.WEIGHTS,
    Kind.CLIPPING: Category.TEMPORARIES,
    Kind.STEP: Category.OPTIMIZER,
    Kind.RECOMPUTED: Category.ACTIVATIONS,
    Kind.BACKWARD: Category.GRADIENTS,
    Kind.FORWARD: Category.ACTIVATIONS,
    Kind.INPUT: Category.INPUTS,
}
"""Of blocks that were still there when the pass that made them was over; other kinds say nothing."""

DIED_INSIDE: Final[dict[Kind, Category]] = OUTLIVED | dict.fromkeys(
    (Kind.STEP, Kind.BACKWARD, Kind.FORWARD), Category.TEMPORARIES
)
"""Of blocks that the same pass freed."""

LABELLED: Final[dict[str, Category]] = {
    "weights": Category.WEIGHTS, "gradients": Category.GRADIENTS, "optimizer": Category.OPTIMIZER,
    "optimizer states": Category.OPTIMIZER, "activations": Category.ACTIVATIONS, "kv cache": Category.CACHE,
    "workspaces": Category.WORKSPACES, "temporaries": Category.TEMPORARIES, "inputs": Category.INPUTS,
    "parameter": Category.WEIGHTS, "gradient": Category.GRADIENTS, "optimizer_state": Category.OPTIMIZER,
    "activation": Category.ACTIVATIONS, "temporary": Category.TEMPORARIES, "input": Category.INPUTS,
}
"""What a recording says itself of a block: predicted ones and vramcast's; and torch's profiler [pytorch
torch/profiler/_memory_profiler.py, Category]. It goes before anything that stacks tell."""

FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_PASS, UNSEEN_PASS = 1, 2, 3, 4

PASSES: Final[dict[Kind, int]] = {
    Kind.FORWARD: FORWARD_PASS,
    Kind.BACKWARD: BACKWARD_PASS, Kind.RECOMPUTED: BACKWARD_PASS, Kind.ACCUMULATED: BACKWARD_PASS,
    Kind.STEP: OPTIMIZER_PASS, Kind.OPTIMIZER_STATE: OPTIMIZER_PASS,
    Kind.UNSEEN: UNSEEN_PASS,
}
"""Kinds that tell which pass of a step runs; the others happen in any."""

OPTIMIZER_SPANS: Final = "Optimizer."
"""What torch calls the spans of step and zero_grad: "Optimizer.step#AdamW.step"."""


class Lives(NamedTuple):
    """Of each event that allocates: when its block was freed and what it was. Other events have no meaning here."""

    ends: array[int]  # "I", index of the event that frees it; the number of events where none does
    categories: array[int]  # "B", index into CATEGORIES
    freed_at_start: dict[int, int]  # address of a block of before the recording -> index of the event that frees it
    events: int

    def category(self, index: int) -> Category:
        """Of the block that this event allocates."""
        return CATEGORIES[self.categories[index]]


def lives_of(snapshot: Snapshot, device: DeviceSnapshot, kinds: Kinds | None = None) -> Lives:
    """Lifetimes and categories of all blocks of a device."""
    trace = device.trace
    ends, freed_at_start = _ends(trace)
    categories = _categories(trace, ends, kinds or Kinds(snapshot.stacks), _span_edges(trace, snapshot.annotations))
    _put_labelled(categories, trace, snapshot.labels)
    return Lives(ends, categories, freed_at_start, len(trace))


def _ends(trace: Trace) -> tuple[array[int], dict[int, int]]:
    never = len(trace)
    ends = array("I", [never]) * never
    made: dict[int, int] = {}
    freed_at_start: dict[int, int] = {}
    requested: set[int] = set()
    for index, (action, address) in enumerate(zip(trace.actions, trace.addresses, strict=True)):
        if action == Action.ALLOC:
            made[address] = index
        elif action == Action.FREE_REQUESTED or (action == Action.FREE_COMPLETED and address not in requested):
            start = made.pop(address, None)
            if start is not None:
                ends[start] = index
            else:
                freed_at_start.setdefault(address, index)
            if action == Action.FREE_REQUESTED:
                requested.add(address)
        elif action == Action.FREE_COMPLETED:
            requested.discard(address)
    return ends, freed_at_start


def _span_edges(trace: Trace, annotations: tuple[Annotation, ...]) -> set[int]:
    """Events that are the first after the start or the end of an optimizer's span."""
    if not len(trace) or not trace.times_us[-1]:
        return set()
    moments = (
        moment for span in annotations if span.name.startswith(OPTIMIZER_SPANS)
        for moment in (span.start_us, span.end_us)
    )
    return {bisect_left(trace.times_us, moment) for moment in moments}


def _categories(trace: Trace, ends: array[int], kinds: Kinds, edges: set[int]) -> array[int]:
    runs, last_run = _runs(trace, kinds, edges)
    numbers = {category: number for number, category in enumerate(CATEGORIES)}
    result = array("B", bytes(len(trace)))
    known: dict[tuple[Kind, bool, Kind, bool], int] = {}
    stacks, sizes, never = trace.stacks, trace.sizes, len(trace)
    for index, action in enumerate(trace.actions):
        if action != Action.ALLOC:
            continue
        end = ends[index]
        kind = kinds[stacks[index]]
        freed_by = Kind.UNSEEN if end == never else kinds[stacks[end]]
        undecided = end == never and runs[index] == last_run
        outlived = end == never or runs[index] != runs[end]
        key = (kind, outlived, freed_by, undecided)
        number = known.get(key)
        if number is None:
            number = known[key] = numbers[_category(kind, outlived, freed_by, undecided)]
        if kind == Kind.UNSEEN and sizes[index] == SMALL_BYTES:  # no tensor is likely to be just as large
            number = numbers[Category.WORKSPACES]
        result[index] = number
    return result


def _put_labelled(categories: array[int], trace: Trace, labels: tuple[str, ...]) -> None:
    """Write the categories that the recording states over those that follow from stacks."""
    stated = {number: LABELLED[label] for number, label in enumerate(labels) if label in LABELLED}
    if not stated:
        return
    numbers = {number: CATEGORIES.index(category) for number, category in stated.items()}
    for index, (action, label) in enumerate(zip(trace.actions, trace.labels, strict=True)):
        if action == Action.ALLOC and label in numbers:
            categories[index] = numbers[label]


def _runs(trace: Trace, kinds: Kinds, edges: set[int]) -> tuple[array[int], int]:
    """The number of the pass that each event happens in, counted up whenever another one begins; and the last."""
    runs = array("I", bytes(4 * len(trace)))
    run = present = 0
    for index, (action, stack) in enumerate(zip(trace.actions, trace.stacks, strict=True)):
        if index in edges:
            run += 1
        if action == Action.ALLOC:
            found = PASSES.get(kinds[stack], present)
            if found != present:
                present = found
                run += 1
        runs[index] = run
    return runs, run


def _category(kind: Kind, outlived: bool, freed_by: Kind, undecided: bool) -> Category:
    if kind == Kind.BACKWARD and undecided:
        return Category.BACKWARD
    if freed_by == Kind.ZERO_GRAD and kind in (Kind.BACKWARD, Kind.UNSEEN):
        return Category.GRADIENTS
    if freed_by == Kind.STEP and kind == Kind.UNSEEN and outlived:
        return Category.OPTIMIZER  # a step that replaces what it did not make itself replaces its states
    freed_elsewhere = freed_by != Kind.UNSEEN and PASSES.get(freed_by) != PASSES.get(kind)
    if kind == Kind.OTHER and PASSES.get(freed_by) == BACKWARD_PASS:
        return Category.ACTIVATIONS  # made outside any module and saved for the backward pass: a loss, say
    return (OUTLIVED if outlived or freed_elsewhere else DIED_INSIDE).get(kind, Category.UNKNOWN)


def category_at_start(lives: Lives, trace: Trace, kinds: Kinds, address: int, size_bytes: int, stack: int) -> Category:
    """What a block was that is older than the recording.

    Args:
        lives: of the same device
        trace: its events
        kinds: of the stacks of the snapshot
        address: of the block
        size_bytes: as requested [bytes]
        stack: of the block, where the table of segments has it
    """
    kind = kinds[stack]
    end = lives.freed_at_start.get(address, lives.events)
    freed_by = Kind.UNSEEN if end == lives.events else kinds[trace.stacks[end]]
    if kind == Kind.UNSEEN and size_bytes == SMALL_BYTES:
        return Category.WORKSPACES
    found = _category(kind, True, freed_by, False)
    if found == Category.UNKNOWN and kind == Kind.UNSEEN and end == lives.events:
        return Category.HELD
    return found
