"""Where the steps of a run begin, and memory that grows step by step.

Spans that torch marked tell, else the optimizer's code, or what repeats. A stream of allocations repeats with period p
when allocation i and i + p ask for the same size at the same stack. Layers of one forward repeat as well: their
allocations all share the frame of the forward that runs them, those of steps do not. Where no stacks tell, what repeats
is a step only if it gives back most of what it took.
At every boundary between steps the live bytes of each stack are counted. A leak goes on growing: optimizer states
made in the first step, caches that fill up and level off, and what comes and goes are none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, Literal, NamedTuple

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import NO_STACK, Action, Snapshot, Trace
from vramcast.recordings.lives import BACKWARD_PASS, OPTIMIZER_PASS, PASSES, Category, Lives
from vramcast.recordings.stacks import MODULE_CALLS, Kind, Kinds
from vramcast.recordings.start import RecordedDevice

STEP_SPAN: Final = "Optimizer.step#"

FEWEST_REPEATS: Final = 3
"""What happens less often is no step [count]."""

MOST_TRIED: Final = 24
"""Periods tried, those that most allocations speak for [count]."""

CONTEXT: Final = 5
"""Allocations in a row that must be alike to be taken for the same place of a step [count]."""

MOST_COMPARED: Final = 20_000
"""Allocations compared for each period tried, evenly spread [count]."""

LEAST_ALIKE: Final = 0.9
"""Share of allocations that repeat: caches, logging and evaluation disturb a few."""

AS_GOOD: Final = 0.005
"""Periods whose shares differ by less are equally good, and the shortest of them is the step."""


MOST_LOOKED_AT: Final = 16
"""Repeats looked into [count]."""

ONE_PASS: Final = ({BACKWARD_PASS}, {OPTIMIZER_PASS})
"""Passes that no step consists of alone; inference consists of forwards."""

MOST_KEPT: Final = 0.2
"""Share of what a repeat allocates that it may keep and still be a step."""


class Steps(NamedTuple):
    """Boundaries between steps."""

    found_by: Literal["annotations", "optimizer", "repetition"]
    boundaries: array[int]  # "I", rising: index of the first event of each step but the first

    @property
    def num_steps(self) -> int:
        """Whole steps between the first and the last boundary."""
        return max(0, len(self.boundaries) - 1)


def steps_of(recorded: RecordedDevice) -> Steps | None:
    """The steps of a device's trace; None where nothing tells them."""
    marked = _marked(recorded)
    if len(marked) > FEWEST_REPEATS:
        return Steps("annotations", marked)
    stepped = _stepped(recorded)
    if len(stepped) > max(FEWEST_REPEATS, len(marked)):
        return Steps("optimizer", stepped)
    repeated = _repeated(recorded.snapshot, recorded.trace)
    if len(repeated) > len(marked):
        return Steps("repetition", repeated)
    return Steps("annotations", marked) if marked else None


def _marked(recorded: RecordedDevice) -> array[int]:
    """Ends of optimizer steps; one optimizer where there are several, the one that steps most."""
    times = recorded.trace.times_us
    if not times or not times[-1]:
        return array("I")
    spans = [span for span in recorded.snapshot.annotations if span.name.startswith(STEP_SPAN)]
    own = [span for span in spans if span.device == recorded.device.device] or spans
    names = Counter(span.name for span in own)
    if not names:
        return array("I")
    name = names.most_common(1)[0][0]
    ends = {bisect_left(times, span.end_us) for span in own if span.name == name}
    return array("I", sorted(ends | {0}))  # the first step begins with the recording


def _stepped(recorded: RecordedDevice) -> array[int]:
    """Ends of the passes of the optimizer's own code; of several optimizers, of the line that runs most often."""
    trace = recorded.trace
    kinds = Kinds(recorded.snapshot).of_events(trace)
    ends: dict[int, dict[int, int]] = {}  # stack -> pass -> event after its last allocation there
    number = 0
    for index, (action, stack, kind) in enumerate(zip(trace.actions, trace.stacks, kinds, strict=True)):
        if action != Action.ALLOC:
            continue
        found = PASSES.get(Kind(kind))
        if found == OPTIMIZER_PASS:
            ends.setdefault(stack, {})[number] = index + 1
        elif found is not None:
            number += 1
    most = max(ends.values(), key=len, default={})
    return array("I", sorted({0, *most.values()})) if most else array("I")


def _repeated(snapshot: Snapshot, trace: Trace) -> array[int]:
    """Occurrences of a passage that happens once in every repeat."""
    events = [index for index, action in enumerate(trace.actions) if action == Action.ALLOC]
    tokens = _tokens(trace, events)
    kinds = Kinds(snapshot)
    for period in _periods(tokens):
        places = _anchor(tokens, period)
        if places and places[-1] >= len(tokens) - 2 * period:
            repeats = [events[low:high] for low, high in pairwise(places)]
            inside = sum(_is_inside(repeat, snapshot, trace, kinds) for repeat in repeats[:MOST_LOOKED_AT])
            if 2 * inside < len(repeats[:MOST_LOOKED_AT]):
                return array("I", (events[place] for place in places))
    return array("I")


def _is_inside(repeat: list[int], snapshot: Snapshot, trace: Trace, kinds: Kinds) -> bool:
    """Whether these allocations are part of a step: of one call of a module, one backward pass, one optimizer step."""
    stacks = {trace.stacks[event] for event in repeat}
    if stacks <= {NO_STACK}:
        return _kept(trace, repeat) > MOST_KEPT
    if {PASSES.get(kinds[stack]) for stack in stacks} in ONE_PASS:
        return True
    shared = [
        {frame for frame in snapshot.stacks[stack] if frame.name in MODULE_CALLS} for stack in stacks
    ]
    return bool(set.intersection(*shared))


def _kept(trace: Trace, made: list[int]) -> float:
    """Share of the bytes of these allocations that as many more do not free."""
    after = made[-1] + 1
    until = min(len(trace), after + 4 * len(made))  # an allocation and its free are two to three events
    live = {trace.addresses[event]: trace.sizes[event] for event in made}
    total = sum(trace.sizes[event] for event in made)
    for index in range(made[0], until):
        if trace.actions[index] in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            live.pop(trace.addresses[index], None)
    return sum(live.values()) / total if total else 0.0


def _tokens(trace: Trace, events: list[int]) -> array[int]:
    """A number for each kind of allocation: size and stack."""
    numbers: dict[tuple[int, int], int] = {}
    return array("I", (numbers.setdefault((trace.sizes[e], trace.stacks[e]), len(numbers)) for e in events))


def _periods(tokens: array[int]) -> list[int]:
    """Numbers of allocations after which they repeat: the likeliest first, the shorter of equally likely ones."""
    tried = [(round(_alike(tokens, period) / AS_GOOD), period) for period in _candidates(tokens)]
    tried.sort(key=lambda item: (-item[0], item[1]))
    return [period for share, period in tried if share * AS_GOOD >= LEAST_ALIKE]


def _candidates(tokens: array[int]) -> Iterator[int]:
    """Distances between an allocation and the next of its kind after the same others, those that occur most."""
    last: dict[tuple[int, ...], int] = {}
    distances: Counter[int] = Counter()
    for place, passage in enumerate(_passages(tokens)):
        before = last.get(passage)
        if before is not None:
            distances[place - before] += 1
        last[passage] = place
    longest = len(tokens) // FEWEST_REPEATS
    return (period for period, _ in distances.most_common(MOST_TRIED) if period <= longest)


def _passages(tokens: array[int]) -> Iterator[tuple[int, ...]]:
    """Each allocation with those that follow it."""
    return zip(*(tokens[offset:] for offset in range(CONTEXT)), strict=False)


def _alike(tokens: array[int], period: int) -> float:
    """Share of allocations that are the same one period later; of the later part, as a first step differs."""
    places = range(min(len(tokens) // 4, len(tokens) - 2 * period), len(tokens) - period)
    sampled = places[:: max(1, len(places) // MOST_COMPARED)]
    same = sum(tokens[place] == tokens[place + period] for place in sampled)
    return same / len(sampled) if sampled else 0.0


def _anchor(tokens: array[int], period: int) -> list[int]:
    """Places of the passage whose distances are nearest to one period throughout."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, passage in enumerate(_passages(tokens)):
        places.setdefault(passage, []).append(place)
    expected = len(tokens) / period
    fitting = [found for found in places.values() if expected / 2 <= len(found) <= expected + 1 and len(found) > 1]
    if not fitting:
        return []
    return min(fitting, key=lambda found: (_unevenness(found, period), found[0]))


def _unevenness(places: list[int], period: int) -> float:
    """Mean distance from one period, against the period; few occurrences count as missing ones."""
    missing = max(0.0, (places[0] - period) / period)
    off = sum(abs(after - before - period) for before, after in pairwise(places))
    return off / (len(places) - 1) / period + missing


FEWEST_GROWN: Final = 3
"""Steps in which memory grew before that is called a leak [count]."""


class Leak(Noun, frozen=True):
    """Blocks of one stack that became more, step after step."""

    stack: int
    category: Category
    bytes_per_step: int  # mean over the steps from the first growth on
    blocks_per_step: float
    live_bytes: int  # at the last boundary
    history: tuple[int, ...]  # live bytes at each boundary


class Leaks(Noun, frozen=True):
    """What grows over the steps of a device."""

    steps: int  # whole steps that were compared
    found_by: Literal["annotations", "optimizer", "repetition"] | None  # None: no steps were found
    leaks: tuple[Leak, ...] = ()  # most bytes a step first
    boundaries: tuple[int, ...] = ()
    has_addresses: bool = True  # False: nothing tells when a block was freed

    @property
    def can_be_told(self) -> bool:
        """Whether there were enough steps to tell a leak from a first step."""
        return self.steps >= FEWEST_GROWN

    @property
    def bytes_per_step(self) -> int:
        """Of all leaks together."""
        return sum(leak.bytes_per_step for leak in self.leaks)


def leaks_of(recorded: RecordedDevice, lives: Lives) -> Leaks:
    """What grows over the steps of a device's trace."""
    if not recorded.device.has_addresses:
        return Leaks(steps=0, found_by=None, has_addresses=False)
    steps = steps_of(recorded)
    if steps is None or steps.num_steps < FEWEST_GROWN:
        return Leaks(steps=0 if steps is None else steps.num_steps, found_by=None if steps is None else steps.found_by)
    found = list(_leaks(recorded.trace, lives, steps))
    found.sort(key=lambda leak: (-leak.bytes_per_step, leak.stack))
    return Leaks(
        steps=steps.num_steps, found_by=steps.found_by, leaks=tuple(found), boundaries=tuple(steps.boundaries)
    )


def _leaks(trace: Trace, lives: Lives, steps: Steps) -> Iterator[Leak]:
    boundaries = steps.boundaries
    changes: dict[int, tuple[list[int], list[int], list[int]]] = {}
    for index, action in enumerate(trace.actions):
        if action != Action.ALLOC:
            continue
        first = bisect_right(boundaries, index)
        after = bisect_right(boundaries, lives.ends[index])
        if first >= after:
            continue  # came and went between two boundaries
        size = trace.sizes[index]
        stack = trace.stacks[index]
        if stack not in changes:
            empty = len(boundaries) + 1
            changes[stack] = ([0] * empty, [0] * empty, [index])
        sizes, counts, _ = changes[stack]
        sizes[first] += size
        sizes[after] -= size
        counts[first] += 1
        counts[after] -= 1
    for stack, (sizes, counts, (example,)) in changes.items():
        history = list(accumulate(sizes[:-1]))
        since = _growth(history)
        if since is not None:
            blocks = list(accumulate(counts[:-1]))
            grown = len(history) - 1 - since
            yield Leak(
                stack=stack,
                category=lives.category(example),
                bytes_per_step=(history[-1] - history[since]) // grown,
                blocks_per_step=(blocks[-1] - blocks[since]) / grown,
                live_bytes=history[-1],
                history=tuple(history),
            )


def _came_down(earlier: Sequence[int], level: int) -> bool:
    """Whether it had grown as high before and was given back: a buffer that is filled and emptied in turn."""
    peak = max(earlier)
    return peak >= level and min(earlier[: earlier.index(peak)], default=peak) < peak


def _growth(history: Sequence[int]) -> int | None:
    """The boundary from which live bytes never fall and still grow at the end; None where they do not leak.

    >>> _growth([0, 10, 20, 30]), _growth([0, 30, 30, 30]), _growth([0, 10, 20, 0])
    (0, None, None)
    >>> _growth([0, 10, 20, 30, 0, 10, 20, 30]), _growth([30, 0, 10, 20, 30])
    (None, 1)
    """
    start = len(history) - 1
    while start and history[start - 1] <= history[start]:
        start -= 1
    if _came_down(history[: start + 1], history[-1]):
        return None
    rises = [place for place in range(start + 1, len(history)) if history[place] > history[place - 1]]
    if len(rises) < FEWEST_GROWN:
        return None
    longest_pause = max(after - before for before, after in pairwise(rises))
    if len(history) - 1 - rises[-1] >= longest_pause:
        return None  # it has levelled off
    return rises[0] - 1
