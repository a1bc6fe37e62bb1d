"""Whole numbers that follow the varied axes: sums of products, found from samples and exact at all of them.

A number is a sum of terms, each a coefficient times powers of the axes. Where windows slide over an image, or something
is padded, an axis enters through a floor, (x + shift) // width. Several such floors can agree at all samples and
disagree elsewhere: all of them are kept, and where they differ is where the next sample tells most.

Symbols:  x  values of the axes at a sample   v  the number there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from typing import Final, NamedTuple

import numpy as np

Point = tuple[int, ...]
"""A value of each axis."""
Powers = tuple[int, ...]
Floor = tuple[int, int, int]
"""Axis, width, shift."""

MOST_POWER: Final = 2  # of one axis: attention's scores, sides of an image, similarities of a batch
MOST_TERMS: Final = 3
WIDTHS: Final = (2, 4, 8, 16, 32, 64, 128, 256, 3, 6, 12, 24, 7, 14, 28, 56)
"""Of floors: strides of networks of images, their patches, blocks of kernels."""


class Size(NamedTuple):
    """A sum of terms."""

    terms: tuple[tuple[Powers, Fraction], ...]
    floor: Floor | None = None  # through which one axis enters

    def at(self, point: Point) -> Fraction:
        """The number; a fraction tells that the sum is not that of this point."""
        seen = _seen(point, self.floor)
        total = Fraction(0)
        for powers, factor in self.terms:
            total += factor * product_of(seen, powers)
        return total

    def whole(self, point: Point) -> int:
        """The same in whole numbers, which is quicker."""
        seen = point if self.floor is None else _seen(point, self.floor)
        total = 0
        for powers, factor in self.terms:
            number, divisor = factor.numerator * product_of(seen, powers), factor.denominator
            if divisor == 1:
                total += number
            else:
                return int(self.at(point))
        return total


def sizes_of(values: Sequence[int], points: Sequence[Point], *, floors: bool = True) -> list[Size]:
    """The simplest sums that are exact at all samples; none where no sum of the family is.

    >>> [str(factor) for _, factor in sizes_of((8, 16, 32), ((1, 4), (2, 4), (2, 8)))[0].terms]
    ['2']
    """
    if len(set(values)) == 1:
        return [Size((((0,) * len(points[0]), Fraction(values[0])),))]
    columns = {powers: _column(powers, points) for powers in _powers(len(points[0]))}
    for count in range(1, min(MOST_TERMS, len(points) - 1) + 1):
        for chosen in combinations(columns, count):
            factors = _solved([columns[powers] for powers in chosen], values)
            if factors is not None and all(factors):
                return [Size(tuple(zip(chosen, factors, strict=True)))]
    return list(_through_floors(values, points)) if floors else []


def _through_floors(values: Sequence[int], points: Sequence[Point]) -> Iterator[Size]:
    """Products alone: what is added to a floor is a shift."""
    for axis, width in product(range(len(points[0])), WIDTHS):
        for shift in range(-width, 2 * width):
            rows = [_seen(point, (axis, width, shift)) for point in points]
            for powers in _powers(len(points[0])):
                factors = _solved([_column(powers, rows)], values) if powers[axis] else None
                if factors is not None:
                    yield Size(((powers, factors[0]),), (axis, width, shift))


def _seen(point: Point, floor: Floor | None) -> Point:
    if floor is None:
        return point
    axis, width, shift = floor
    return (*point[:axis], (point[axis] + shift) // width, *point[axis + 1:])


@cache
def _powers(axes: int) -> tuple[Powers, ...]:
    """Of all terms, the plain ones first."""
    every = product(range(MOST_POWER + 1), repeat=axes)
    return tuple(sorted(every, key=lambda powers: (sum(powers), max(powers))))


def _column(powers: Powers, rows: Sequence[Point]) -> list[int]:
    return [product_of(row, powers) for row in rows]


def product_of(point: Point, powers: Powers) -> int:
    """The product of the axes' powers."""
    value = 1
    for each, power in zip(point, powers, strict=True):
        if power:
            value *= each if power == 1 else each**power
    return value


def _solved(columns: Sequence[list[int]], values: Sequence[int]) -> list[Fraction] | None:
    """The factors with which columns add up to the values, in whole-number arithmetic; None where none do."""
    if len(columns) == 1:
        column = columns[0]
        place = next((index for index, each in enumerate(column) if each), None)
        if place is None or any(  # at the first sample that disagrees it is over
            value * column[place] != values[place] * each for value, each in zip(values, column, strict=True)
        ):
            return None
        return [Fraction(values[place], column[place])]
    rows: list[list[Fraction]] = []  # reduced, each with its own leading column
    leads: list[int] = []
    for row in zip(*columns, values, strict=True):
        left = [Fraction(each) for each in row]
        for lead, known in zip(leads, rows, strict=True):
            if left[lead]:
                share = left[lead] / known[lead]
                left = [one - share * other for one, other in zip(left, known, strict=True)]
        lead = next((index for index, each in enumerate(left[:-1]) if each), -1)
        if lead < 0:
            if left[-1]:
                return None  # two samples that no factors agree on
            continue
        leads.append(lead)
        rows.append(left)
    if len(rows) < len(columns):
        return None  # the samples do not tell these terms apart
    factors = [Fraction(0)] * len(columns)
    for lead, known in zip(reversed(leads), reversed(rows), strict=True):
        rest = sum((known[index] * factors[index] for index in range(len(columns)) if index != lead), Fraction(0))
        factors[lead] = (known[-1] - rest) / known[lead]
    return factors


def exact_sum(values: Sequence[int], points: Sequence[Point]) -> Size | None:
    """The sum of all terms that is exact at every sample, however many it needs; None where none is."""
    powers = _apart(points)
    factors = _solved([_column(one, points) for one in powers], values)
    if factors is None:
        return None
    return Size(tuple((one, factor) for one, factor in zip(powers, factors, strict=True) if factor))


def closest_sum(values: Sequence[int], points: Sequence[Point]) -> Size:
    """The sum of all terms with the smallest squared error."""
    powers = _apart(points)
    scales = [max(_column(one, points)) for one in powers]
    matrix = np.array([_column(one, points) for one in powers], float).T / scales
    factors, *_ = np.linalg.lstsq(matrix, np.array(values, float), rcond=None)
    return Size(tuple(
        (one, Fraction(float(factor)) / scale) for one, factor, scale in zip(powers, factors, scales, strict=True)
    ))


def _apart(points: Sequence[Point]) -> list[Powers]:
    """The terms that samples can tell apart: of an axis with two values no square."""
    counts = [len(set(values)) for values in zip(*points, strict=True)]
    return [
        powers for powers in _powers(len(points[0]))
        if all(power < count for power, count in zip(powers, counts, strict=True))
    ]


def disagreements(candidates: Sequence[Size], points: Sequence[Point]) -> Iterator[tuple[int, Point]]:
    """Points at which candidates for one number differ, with into how many values."""
    for point in points:
        count = len({one.at(point) for one in candidates})
        if count > 1:
            yield count, point
