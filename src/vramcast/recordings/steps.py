"""Where the steps of a run begin: from the spans that torch marked, else from the optimizer's code, or what repeats.

A stream of allocations repeats with period p when allocation i and i + p ask for the same size at the same stack.
Layers of one forward repeat as well: their allocations all share the frame of the forward that runs them, those of
steps do not. Where no stacks tell, what repeats is a step only if it gives back most of what it took.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from vramcast.domain.snapshot import NO_STACK, Action, DeviceSnapshot, Snapshot, Trace
from vramcast.recordings.kinds import Kind, Kinds
from vramcast.recordings.lives import BACKWARD_PASS, OPTIMIZER_PASS, PASSES
from vramcast.recordings.stacks import MODULE_CALLS

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


def steps_of(snapshot: Snapshot, device: DeviceSnapshot) -> Steps | None:
    """The steps of a device's trace; None where nothing tells them."""
    marked = _marked(snapshot, device)
    if len(marked) > FEWEST_REPEATS:
        return Steps("annotations", marked)
    stepped = _stepped(snapshot, device)
    if len(stepped) > max(FEWEST_REPEATS, len(marked)):
        return Steps("optimizer", stepped)
    repeated = _repeated(snapshot, device.trace)
    if len(repeated) > len(marked):
        return Steps("repetition", repeated)
    return Steps("annotations", marked) if marked else None


def _marked(snapshot: Snapshot, device: DeviceSnapshot) -> array[int]:
    """Ends of optimizer steps; one optimizer where there are several, the one that steps most."""
    times = device.trace.times_us
    if not times or not times[-1]:
        return array("I")
    spans = [span for span in snapshot.annotations if span.name.startswith(STEP_SPAN)]
    own = [span for span in spans if span.device == device.device] or spans
    names = Counter(span.name for span in own)
    if not names:
        return array("I")
    name = names.most_common(1)[0][0]
    ends = {bisect_left(times, span.end_us) for span in own if span.name == name}
    return array("I", sorted(ends | {0}))  # the first step begins with the recording


def _stepped(snapshot: Snapshot, device: DeviceSnapshot) -> array[int]:
    """Ends of the passes of the optimizer's own code; of several optimizers, of the line that runs most often."""
    kinds = Kinds(snapshot).of_events(device)
    ends: dict[int, dict[int, int]] = {}  # stack -> pass -> event after its last allocation there
    number = 0
    trace = device.trace
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
