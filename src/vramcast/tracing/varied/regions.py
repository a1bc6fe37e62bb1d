"""Where a run is one program, and where it is another: boxes of the varied axes, found by few runs.

A batch of 1 needs no copy to be contiguous, a long sequence takes another kernel, a mask is made from some length on:
then a run makes other calls. Runs at the corners of a box and within tell whether it is one program; if not, the value
at which an axis changes it is bisected and both sides are boxes of their own. What is left after so many runs is said.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from vramcast.errors import Unsupported
from vramcast.tracing.tape import Tape
from vramcast.tracing.varied.programs import Ask, Differs, Program, Sample, Unread, differences, items_of, shape_of
from vramcast.tracing.varied.sizes import Point, Size, disagreements

INSIDE: Final = 3  # runs within a box beside its corners
CHECKS: Final = 2  # of those that a program has not seen when it is held against them
MOST_RUNS: Final = 64
PROBES: Final = 32  # settings within a box for which every call is asked, beside a grid
GRID: Final = 12  # values of each axis in that grid
MOST_LOOKED_AT: Final = 400  # points at which candidates are compared

Run = Callable[[Point], Tape]
Box = tuple[range, ...]
"""The values of each axis, in order."""

NO_ORDER: Final = (
    "what runs does not follow {} in a way that can be read: after {} traces its calls still change from one setting "
    "to the next; give a narrower range"
)
NO_SIZE: Final = (
    "what {} allocates does not follow {} in a way that can be read; give ranges with a step, as seq=256..4096/256, or "
    "a narrower one"
)


class Region(NamedTuple):
    """A box in which runs are one program."""

    box: Box
    program: Program

    def has(self, point: Point) -> bool:
        return _is_in(point, self.box)

    def corners(self) -> list[Point]:
        return list(dict.fromkeys(product(*((values[0], values[-1]) for values in self.box))))

    def some(self, count: int) -> list[Point]:
        """Settings anywhere within, always the same."""
        chooser = random.Random(count)
        return [tuple(chooser.choice(values) for values in self.box) for _ in range(count)]


class Survey:
    """Runs at few settings, and the regions that they make."""

    def __init__(
        self, axes: Sequence[str], box: Box, run: Run, ask: Ask, has_rule: Callable[[str], bool],
        known: Mapping[Point, Tape],
    ) -> None:
        """Runs where it must; `known`: runs there were.

        Raises: Unsupported where what runs is no function of the axes
        """
        self._named, self._run, self._ask, self._has_rule = " and ".join(axes), run, ask, has_rule
        self._random = random.Random(0)
        self._shapes: dict[Point, int] = {}
        self._kinds: dict[int, tuple[object, ...]] = {}
        self.samples = dict(known)
        self.checked = 0  # runs that a program was equal to before it saw them
        self.regions = list(self._regions(box))

    def region_of(self, point: Point) -> tuple[int, Region]:
        return next((number, region) for number, region in enumerate(self.regions) if region.has(point))

    def tape(self, point: Point, *, is_asked: bool = False) -> Tape:
        """The tape of a run there; see `Program.tape`."""
        return self.region_of(point)[1].program.tape(point, is_asked=is_asked)

    def _sample(self, point: Point) -> Tape:
        if point not in self.samples:
            if len(self.samples) >= MOST_RUNS:
                raise Unsupported(NO_ORDER, self._named, MOST_RUNS)
            self.samples[point] = self._run(point)
        return self.samples[point]

    def _kind(self, point: Point) -> int:
        """A number that runs share which do the same in the same order."""
        if point not in self._shapes:
            shape = tuple(map(shape_of, items_of(self._sample(point))))
            same = next((kind for kind, known in self._kinds.items() if known == shape), len(self._kinds))
            self._kinds[same] = shape
            self._shapes[point] = same
        return self._shapes[point]

    def _regions(self, box: Box) -> Iterator[Region]:
        corners = product(*((values[0], values[-1]) for values in box))
        known = (point for point in self.samples if _is_in(point, box))
        points = list(dict.fromkeys((*corners, *self._within(box, INSIDE), *known)))
        kinds = {point: self._kind(point) for point in points}
        if len(set(kinds.values())) == 1:
            yield self._read(box, points)
            return
        axis, low, high = self._split(box, kinds)
        values = box[axis]
        at = values.index(high)
        assert values[at - 1] == low
        for part in (values[:at], values[at:]):
            yield from self._regions((*box[:axis], part, *box[axis + 1:]))

    def _within(self, box: Box, count: int) -> list[Point]:
        return [tuple(self._random.choice(values) for values in box) for _ in range(count)]

    def _split(self, box: Box, kinds: dict[Point, int]) -> tuple[int, int, int]:
        """The axis that changes what runs, and the neighbouring values between which it does."""
        first, *rest = kinds
        point, other = first, next(each for each in rest if kinds[each] != kinds[first])
        for axis in range(len(box)):  # one axis after the other becomes that of the other point
            moved = (*point[:axis], other[axis], *point[axis + 1:])
            if self._kind(moved) != self._kind(point):
                low, high = sorted((point[axis], other[axis]))
                return axis, *self._bisected(box[axis], axis, (*point[:axis], *point[axis + 1:]), low, high)
            point = moved
        raise AssertionError  # the last moved point is the other one

    def _bisected(self, values: Sequence[int], axis: int, rest: Point, low: int, high: int) -> tuple[int, int]:
        first, last = values.index(low), values.index(high)
        kind = self._kind((*rest[:axis], low, *rest[axis:]))
        while last - first > 1:
            middle = (first + last) // 2
            if self._kind((*rest[:axis], values[middle], *rest[axis:])) == kind:
                first = middle
            else:
                last = middle
        return values[first], values[last]

    def _read(self, box: Box, points: list[Point]) -> Region:
        """The program of a box, from runs that all do the same."""
        looked_at = self._within(box, MOST_LOOKED_AT)
        while True:
            program = self._program(points)
            doubtful = [found for one in program.open if (found := _doubt(one, looked_at))]
            if not doubtful:
                break
            points.append(max(doubtful)[1])
            self._sample(points[-1])
        for point in self._within(box, CHECKS):
            if point in points:
                continue
            if any(differences(program.tape(point), self._sample(point))):
                points.append(point)
                return self._read(box, points)
            self.checked += 1
        program.settle(self._within(box, PROBES) + list(product(*(spread(values, GRID) for values in box))))
        return Region(box, program)

    def _program(self, points: list[Point]) -> Program:
        samples = [Sample(point, self._sample(point)) for point in points]
        try:
            return Program(samples, self._ask, self._has_rule)
        except Differs:
            raise Unsupported(NO_ORDER, self._named, len(self.samples)) from None
        except Unread as error:
            raise Unsupported(NO_SIZE, error.operator, self._named) from None


def spread(values: Sequence[int], most: int) -> list[int]:
    """Some of the values, from one to the next twice as many places.

    >>> spread(range(1, 65), 10), spread(range(1, 129), 3)
    ([1, 2, 4, 8, 16, 32, 64], [1, 16, 128])
    """
    if len(values) <= most:
        return list(values)
    places = sorted({(1 << power) - 1 for power in range(len(values).bit_length())} - {len(values)} | {len(values) - 1})
    places = [place for place in places if place < len(values)]
    kept = {round(index * (len(places) - 1) / (most - 1)) for index in range(most)} if len(places) > most else None
    return [values[place] for index, place in enumerate(places) if kept is None or index in kept]


def _is_in(point: Point, box: Box) -> bool:
    return all(value in values for value, values in zip(point, box, strict=True))


def _doubt(candidates: list[Size], points: Sequence[Point]) -> tuple[int, Point] | None:
    """Where candidates differ most; None where they are the same everywhere."""
    return max(disagreements(candidates, points), default=None)
