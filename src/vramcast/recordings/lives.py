"""From when to when each block lived, and what it was: columns beside the events of a trace.

What a block was follows from the kind of code that made it and from whether it outlived that code: what a backward
pass leaves behind are gradients of parameters, what it frees itself were gradients of activations.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from vramcast.domain.cublas import SMALL_BYTES
from vramcast.domain.snapshot import NO_STACK, Action, Annotation, Trace
from vramcast.recordings.stacks import Kind, Kinds
from vramcast.recordings.start import RecordedDevice


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
    COMMUNICATION = "communication"  # stated by recordings of plans; no stack shows it
    BACKWARD = "backward"  # gradients of weights or of activations: the recording ends before that shows
    HELD = "held before"  # since before the recording, without a stack, as weights and states are; and what replaces it
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
    Kind.FUNCTION: Category.ACTIVATIONS,
    Kind.BUFFER: Category.INPUTS,
    Kind.INPUT: Category.INPUTS,
}
"""Of blocks that were still there when the pass that made them was over; other kinds say nothing."""

DIED_INSIDE: Final[dict[Kind, Category]] = OUTLIVED | dict.fromkeys(
    (Kind.STEP, Kind.BACKWARD, Kind.FORWARD, Kind.FUNCTION), Category.TEMPORARIES
)
"""Of blocks that the same pass freed."""

FREED_BY: Final[dict[Kind, Category]] = {
    Kind.ZERO_GRAD: Category.GRADIENTS,
    Kind.ACCUMULATED: Category.GRADIENTS,  # replaced by the sum
    Kind.BACKWARD: Category.ACTIVATIONS,  # the engine frees what the graph saved
    Kind.RECOMPUTED: Category.ACTIVATIONS,
    Kind.STEP: Category.OPTIMIZER,  # what it replaces are its states, or else weights: see _tell_weights
    Kind.WEIGHT: Category.WEIGHTS,  # moved or cast: the old ones go
    Kind.CACHE: Category.CACHE,  # joined with what is new
}
"""Of blocks whose own stack is not known, by the code that gave them up after the pass that made them."""

LABELLED: Final[dict[str, Category]] = {
    "weights": Category.WEIGHTS, "gradients": Category.GRADIENTS, "optimizer": Category.OPTIMIZER,
    "optimizer states": Category.OPTIMIZER, "activations": Category.ACTIVATIONS, "kv cache": Category.CACHE,
    "workspaces": Category.WORKSPACES, "temporaries": Category.TEMPORARIES, "inputs": Category.INPUTS,
    "communication": Category.COMMUNICATION,
    "parameter": Category.WEIGHTS, "gradient": Category.GRADIENTS, "optimizer_state": Category.OPTIMIZER,
    "activation": Category.ACTIVATIONS, "temporary": Category.TEMPORARIES, "input": Category.INPUTS,
}
"""What a recording says itself of a block: predicted ones and vramcast's; and torch's profiler [pytorch
torch/profiler/_memory_profiler.py, Category]. It goes before anything that stacks tell."""

STEPS: Final = frozenset({Kind.STEP, Kind.OPTIMIZER_STATE})

FREES: Final = frozenset({Action.FREE_REQUESTED, Action.FREE_COMPLETED})

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
    older: dict[int, Category]  # address of a block of before the recording -> what it was
    events: int

    def category(self, index: int) -> Category:
        """Of the block that this event allocates."""
        return CATEGORIES[self.categories[index]]


def lives_of(recorded: RecordedDevice) -> Lives:
    """Lifetimes and categories of all blocks of a device."""
    snapshot, trace, known = recorded.snapshot, recorded.trace, Kinds(recorded.snapshot)
    events = known.of_events(trace)
    ends, freed_at_start = _ends(trace)
    if not _frees_have_stacks(trace, ends):
        for index, action in enumerate(trace.actions):
            if action in FREES:
                events[index] = Kind.UNSEEN
    runs, last_run = _runs(trace, events, _span_edges(trace, snapshot.annotations))
    categories = _categories(trace, ends, events, runs, last_run)
    _put_labelled(categories, trace, snapshot.labels)
    lives = Lives(ends, categories, freed_at_start, {}, len(trace))
    likes = _Likes(trace, lives, runs)
    replaced: dict[int, int] = {}  # address of an older block without a stack that a step freed -> its bytes
    for block in recorded.older:
        end = freed_at_start.get(block.address, len(trace))
        freed_by = Kind.UNSEEN if end == len(trace) else Kind(events[end])
        size = block.requested_bytes or block.size_bytes
        found = _older(known[block.stack], size, freed_by, likes, end)
        if found == Category.OPTIMIZER and known[block.stack] == Kind.UNSEEN:
            replaced[block.address] = size
        lives.older[block.address] = found
    if replaced:
        _tell_weights(recorded, lives, events, replaced)
    _inherit(trace, lives, events, runs)
    _put_labelled(categories, trace, snapshot.labels)
    return lives


def _tell_weights(recorded: RecordedDevice, lives: Lives, events: array[int], replaced: dict[int, int]) -> None:
    """Whether what steps replaced can have been weights: then it is not known what it was.

    Some optimizers make new weights as they make new states, and all states alike. Where the older blocks that stay are
    as many and as large as the gradients of a step, the weights are among them; gradients that are older, too, are
    as many again.
    """
    trace = recorded.trace
    step = next((i for i, kind in enumerate(events) if kind in STEPS and trace.actions[i] == Action.ALLOC), len(trace))
    gradients: Counter[int] = Counter()
    places: dict[int, set[int]] = {}  # size -> stacks at which steps make what outlives them
    for index, action in enumerate(trace.actions):
        if action != Action.ALLOC:
            continue
        category, size = lives.category(index), trace.sizes[index]
        if category == Category.GRADIENTS and index < step < lives.ends[index]:
            gradients[size] += 1
        elif category == Category.OPTIMIZER and events[index] in STEPS:
            places.setdefault(size, set()).add(trace.stacks[index])
    kept: Counter[int] = Counter()
    for block in recorded.older:
        size, category = block.requested_bytes or block.size_bytes, lives.older[block.address]
        if block.freed_at > step and category == Category.GRADIENTS:
            gradients[size] += 1
        elif block.freed_at >= len(trace) and category in (Category.HELD, Category.WEIGHTS):
            kept[size] += 1
    if not gradients:
        sizes = Counter(replaced.values())
        gradients.update({size: 2 * (count // len(places.get(size, "?"))) for size, count in sizes.items()})
    if gradients - kept:
        lives.older.update(dict.fromkeys(replaced, Category.HELD))


def _inherit(trace: Trace, lives: Lives, events: array[int], runs: array[int]) -> None:
    """What a step makes in the place of a block that it gives up is what that was: new weights are no states."""
    made: dict[int, int] = {}  # address -> event
    fresh: dict[int, list[int]] = {}  # size -> events of this step whose blocks outlive it
    run = -1
    for index, action in enumerate(trace.actions):
        if runs[index] != run:
            run = runs[index]
            fresh.clear()
        address, size = trace.addresses[index], trace.sizes[index]
        if action == Action.ALLOC:
            made[address] = index
            if events[index] in STEPS and lives.category(index) == Category.OPTIMIZER:
                fresh.setdefault(size, []).append(index)
        elif action == Action.FREE_REQUESTED:
            start = made.pop(address, None)
            if start is not None and runs[start] == run:
                if start in fresh.get(size, ()):
                    fresh[size].remove(start)
                continue
            given_up = lives.older.get(address, Category.UNKNOWN) if start is None else lives.category(start)
            if events[index] in STEPS and given_up in (Category.WEIGHTS, Category.HELD) and fresh.get(size):
                lives.categories[fresh[size].pop()] = CATEGORIES.index(given_up)


def _frees_have_stacks(trace: Trace, ends: array[int]) -> bool:
    """Whether frees have stacks of their own: predicted recordings give each that of its allocation."""
    stacks, never = trace.stacks, len(trace)
    repeated = [stacks[end] == stacks[index] for index, end in enumerate(ends) if end != never]
    return not repeated or not all(repeated)


def _older(kind: Kind, size_bytes: int, freed_by: Kind, likes: _Likes, end: int) -> Category:
    """What a block was that is older than the recording.

    Args:
        kind: of the stack that the table of segments has of it
        size_bytes: as requested [bytes]
        freed_by: the code that freed it during the recording
        likes: what those of its like were that the recording saw being made
        end: index of the event that freed it; the number of events where none did
    """
    if kind == Kind.UNSEEN and size_bytes == SMALL_BYTES:
        return Category.WORKSPACES
    if kind == Kind.UNSEEN and freed_by == Kind.UNSEEN:
        return Category.HELD
    found = _category(kind, True, freed_by, False)
    return likes.of(size_bytes, end) if found == Category.UNKNOWN else found


class _Likes:
    """What blocks were that the recording saw being made, by size and by the code that freed them.

    An iteration gives up what the one before left at the same place: its outputs, and the graph that hangs on them.
    """

    def __init__(self, trace: Trace, lives: Lives, runs: array[int]) -> None:
        self._stacks, self._runs = trace.stacks, runs
        self._here: dict[tuple[int, int], set[Category]] = {}  # stack of the free, size
        self._anywhere: dict[int, set[Category]] = {}  # stack of the free
        self._at_end: dict[int, set[Category]] = {}  # size, of what was never freed
        for index, action in enumerate(trace.actions):
            if action != Action.ALLOC:
                continue
            category, size, end = lives.category(index), trace.sizes[index], lives.ends[index]
            if end == lives.events:
                self._at_end.setdefault(size, set()).add(category)
            elif trace.stacks[end] != NO_STACK:
                self._here.setdefault((trace.stacks[end], size), set()).add(category)
                self._anywhere.setdefault(trace.stacks[end], set()).add(category)

    def of(self, size_bytes: int, end: int) -> Category:
        """What a block of this size was that this event freed; unknown where those like it were of several kinds.

        It was a temporary only if it was freed in the pass in which the recording begins.
        """
        stack = self._stacks[end] if end < len(self._stacks) else NO_STACK
        if stack == NO_STACK:
            return Category.UNKNOWN
        never = set() if self._runs[end] <= FIRST_RUN else {Category.TEMPORARIES}
        for likes in (self._here.get((stack, size_bytes)), self._at_end.get(size_bytes), self._anywhere.get(stack)):
            found = likes - never if likes else None
            if found:
                return found.pop() if len(found) == 1 else Category.UNKNOWN
        return Category.UNKNOWN


FIRST_RUN: Final = 1
"""Number of the pass in which a recording begins."""


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


def _categories(
    trace: Trace, ends: array[int], kinds: array[int], runs: array[int], last_run: int
) -> array[int]:
    numbers = {category: number for number, category in enumerate(CATEGORIES)}
    result = array("B", bytes(len(trace)))
    known: dict[tuple[Kind, bool, Kind, bool], int] = {}
    sizes, never = trace.sizes, len(trace)
    for index, action in enumerate(trace.actions):
        if action != Action.ALLOC:
            continue
        end = ends[index]
        kind = Kind(kinds[index])
        freed_by = Kind.UNSEEN if end == never else Kind(kinds[end])
        undecided = end == never and runs[index] == last_run
        outlived = end == never or runs[index] != runs[end]
        key = (kind, outlived, freed_by, undecided)
        number = known.get(key)
        if number is None:
            number = known[key] = numbers[_category(kind, outlived, freed_by, undecided)]
        if sizes[index] == SMALL_BYTES and (kind == Kind.UNSEEN or end == never):
            number = numbers[Category.WORKSPACES]  # no tensor is just as large; frames of Python alone do not show it
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


def _runs(trace: Trace, kinds: array[int], edges: set[int]) -> tuple[array[int], int]:
    """The number of the pass that each event happens in, counted up whenever another one begins; and the last."""
    runs = array("I", bytes(4 * len(trace)))
    run = present = 0
    for index, (action, kind) in enumerate(zip(trace.actions, kinds, strict=True)):
        if index in edges:
            run += 1
        if action == Action.ALLOC:
            found = PASSES.get(Kind(kind), present)
            if found != present:
                present = found
                run += 1
        runs[index] = run
    return runs, run


def _category(kind: Kind, outlived: bool, freed_by: Kind, undecided: bool) -> Category:
    if kind == Kind.BACKWARD and undecided:
        return Category.BACKWARD
    if kind == Kind.UNSEEN:
        return FREED_BY.get(freed_by, Category.UNKNOWN) if outlived else Category.UNKNOWN
    if freed_by == Kind.ZERO_GRAD and kind == Kind.BACKWARD:
        return Category.GRADIENTS
    in_backward = PASSES.get(freed_by) == BACKWARD_PASS
    if in_backward and (kind in MADE_OUTSIDE or (kind == Kind.BACKWARD and outlived)):
        return Category.ACTIVATIONS  # saved for the backward pass: a loss, say, or the graph of gradients themselves
    freed_elsewhere = freed_by != Kind.UNSEEN and PASSES.get(freed_by) != PASSES.get(kind)
    return (OUTLIVED if outlived or freed_elsewhere else DIED_INSIDE).get(kind, Category.UNKNOWN)


MADE_OUTSIDE: Final = frozenset({Kind.OTHER, Kind.FUNCTION, Kind.STEP})
"""Kinds of code outside modules; a step in whose closure all of an iteration runs is one where no frames tell."""


UPWARDS: Final = (
    Category.WEIGHTS, Category.HELD, Category.OPTIMIZER, Category.GRADIENTS, Category.CACHE, Category.INPUTS,
    Category.WORKSPACES, Category.COMMUNICATION, Category.UNKNOWN, Category.ACTIVATIONS, Category.BACKWARD,
    Category.TEMPORARIES,
)
"""What stays lies below what comes and goes."""
BEFORE: Final = -1
"""Where a block begins that is older than the recording."""


class Blocks(NamedTuple):
    """Columns of the same length: category by category upwards, in each the oldest first."""

    starts: array[int]  # "i", index of the event that allocates; BEFORE
    ends: array[int]  # "i", index of the event that frees; the number of events where none does
    sizes: array[float]  # "d", as requested [bytes]
    categories: array[int]  # "B", index into CATEGORIES
    stacks: array[int]  # "I", index into Snapshot.stacks


def blocks_of(recorded: RecordedDevice, lives: Lives) -> Blocks:
    """All blocks of a device; none where frees do not say what they free."""
    found = Blocks(array("i"), array("i"), array("d"), array("B"), array("I"))
    if not recorded.device.has_addresses:
        return found
    layers: list[list[tuple[int, int, int, int]]] = [[] for _ in CATEGORIES]
    for number, *block in (*_older_blocks(recorded, lives), *_made(recorded, lives)):
        layers[number].append((block[0], block[1], block[2], block[3]))
    for category in UPWARDS:
        number = CATEGORIES.index(category)
        for start, end, size, stack in layers[number]:
            found.starts.append(start)
            found.ends.append(end)
            found.sizes.append(size)
            found.categories.append(number)
            found.stacks.append(stack)
    return found


def _older_blocks(recorded: RecordedDevice, lives: Lives) -> Iterator[tuple[int, int, int, int, int]]:
    """What lived before the recording, the largest first."""
    alive = (block for block in recorded.older if not block.awaits_free)
    for block in sorted(alive, key=lambda block: (-block.size_bytes, block.address)):
        yield (CATEGORIES.index(lives.older[block.address]), BEFORE,
               lives.freed_at_start.get(block.address, lives.events), block.requested_bytes or block.size_bytes,
               block.stack)


def _made(recorded: RecordedDevice, lives: Lives) -> Iterator[tuple[int, int, int, int, int]]:
    trace = recorded.trace
    for index, action in enumerate(trace.actions):
        if action == Action.ALLOC:
            yield lives.categories[index], index, lives.ends[index], trace.sizes[index], trace.stacks[index]
