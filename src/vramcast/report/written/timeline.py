"""The course of a run as a picture: stacked areas and a line above them, as SVG and in characters.

The plot is stretched to the width of its place; labels stand outside it, so that they keep their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from vramcast.report.braille import chart
from vramcast.report.written.bars import look
from vramcast.report.written.characters import markup
from vramcast.report.written.parts import Picture, Slice
from vramcast.units import format_bytes

COLUMNS: Final = 240
"""Steps of the areas: a picture of a million events has as many."""

TALL: Final = 1000
"""Units of the plot from its ground to its top."""

HEIGHT: Final = 240
TEXT_COLUMNS, TEXT_ROWS = 72, 9
MOST_LINES: Final = 4
"""Of the grid."""


class Layer(NamedTuple):
    """One kind of memory over the run."""

    kind: str  # what its colour stands for
    label: str
    values: Sequence[int]  # bytes, one for each point of the course


class Course(NamedTuple):
    """A run in equal stretches; every layer and the line have as many values."""

    title: str
    layers: Sequence[Layer]  # from the ground up
    line: Sequence[int]  # reserved bytes
    line_label: str
    span: str  # what is left and right: "events 0 to 71"
    failures: Sequence[float] = ()  # where memory ran out, 0 the beginning, 1 the end


def course_picture(course: Course) -> Picture:
    """The picture; its legend names the layers that hold anything, with the most they hold."""
    sums = [sum(values) for values in zip(*(layer.values for layer in course.layers), strict=True)]
    highest = [(layer, max(layer.values, default=0)) for layer in course.layers]
    legend = tuple(Slice(layer.kind, layer.label, value, format_bytes(value)) for layer, value in highest if value)
    most = max(max(course.line, default=0), max(sums, default=0), 1)
    lines = chart(sums, course.line, columns=TEXT_COLUMNS, rows=TEXT_ROWS)
    ends = {0: format_bytes(most), TEXT_ROWS - 1: "0"}
    text = "\n".join(f"{ends.get(row, ''):>{len(ends[0])}} {line}" for row, line in enumerate(lines))
    said = f"{course.span}; {course.line_label}: {format_bytes(max(course.line, default=0))}"
    return Picture(course.title, course_svg(course, most), f"{text}\n{'':>{len(ends[0])}} {said}", legend)


def course_svg(course: Course, most: int) -> str:
    """Areas, line, grid and what they are, for a page whose style has the colours of its ground."""
    said = markup(f"{course.title}: {format_bytes(most)}; {course.span}")
    return (
        f'<svg class="course" width="100%" height="{HEIGHT + 22}" role="img" aria-label="{said}">'
        f'<svg width="100%" height="{HEIGHT}" viewBox="0 0 {COLUMNS} {TALL}" preserveAspectRatio="none">'
        f'{"".join(_drawn(course, most))}</svg>{"".join(_labels(course, most))}</svg>'
    )


def _drawn(course: Course, most: int) -> Iterator[str]:
    """The highest area first: each covers the ground below it."""
    sums = list(accumulate((layer.values for layer in course.layers), _sum))
    for layer, values in reversed(list(zip(course.layers, sums, strict=True))):
        path = _steps(_reduced(values), most)
        yield f'<path d="M0 {TALL}{path}V{TALL}z" fill="{look(layer.kind).colour}"/>'
    yield f'<path class="line" d="M0 {_steps(_reduced(course.line), most)[1:]}"/>'
    for place in course.failures:
        yield f'<path class="failure" d="M{place * COLUMNS:.1f} 0V{TALL}"/>'


def _sum(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _reduced(values: Sequence[int]) -> list[int]:
    """As many values as the plot has columns, the largest of each stretch: no peak is lost."""
    edges = [len(values) * column // COLUMNS for column in range(COLUMNS + 1)]
    return [max(values[low : max(high, low + 1)], default=0) for low, high in pairwise(edges)]


def _steps(values: Sequence[int], most: int) -> str:
    """A path of steps; equal neighbours are one."""
    heights = [TALL - round(TALL * value / (1.02 * most)) for value in values]
    ends = [column for column in range(1, len(heights)) if heights[column] != heights[column - 1]] + [len(heights)]
    starts = [0, *ends[:-1]]
    return "".join(f"V{heights[start]}H{end}" for start, end in zip(starts, ends, strict=True))


def _labels(course: Course, most: int) -> Iterator[str]:
    """The grid with sizes, what ran out, and what is left and right."""
    unit = 1 << max(0, (most // MOST_LINES).bit_length())
    for size in range(unit, most + 1, unit):
        y = HEIGHT - HEIGHT * size / (1.02 * most)
        yield f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="size" x="3" y="{y - 4:.1f}">{format_bytes(size)}</text>'
    for place in course.failures:
        anchor = "end" if place > 0.5 else "start"
        yield f'<text class="failure" x="{place:.2%}" y="12" text-anchor="{anchor}">OOM</text>'
    line = f"┄ {course.line_label} {format_bytes(max(course.line, default=0))}"
    yield f'<text class="size" x="3" y="{HEIGHT + 16}">{markup(course.span)}</text>'
    yield f'<text class="size" x="100%" y="{HEIGHT + 16}" text-anchor="end">{markup(line)}</text>'
