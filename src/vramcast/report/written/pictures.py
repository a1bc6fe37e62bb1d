"""What reports draw: stacked bars against what there is, the course of a run; as SVG and as characters.

Positions across are shares of the width, so that pictures shrink on a phone and their text does not. The plot of a
course is stretched to the width of its place; its labels stand outside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from vramcast.report.looks import look
from vramcast.report.replay_words import scaled_chart
from vramcast.report.written.parts import Bar, Bars, Picture, Slice, Table
from vramcast.units import format_bytes

UNPRINTABLE: Final = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]"
)
"""Controls, marks that turn the direction of writing, halves of characters."""


def printable(text: str) -> str:
    """The text with a mark in place of everything that is no character to read.

    >>> printable("a" + chr(0x202e) + "b" + chr(27) + "c") == "a\\ufffdb\\ufffdc"
    True
    """
    return UNPRINTABLE.sub("\ufffd", text)


def markup(text: str) -> str:
    """The text as it stands in HTML and SVG, in elements and in quoted attributes."""
    return escape(printable(text))


COLUMNS: Final = 48
"""Characters of a bar as text."""

TOP, LINE, THICK, GAP = 20, 20, 26, 10
"""Room for the label of the limit, height of a label, of a bar, room below it [pixels]."""

ROOM: Final = 1.02
"""Of the limit, so that its stroke does not stand at the edge."""

MOST_COLUMNS: Final = 6
"""Bars whose figures a table shows side by side."""

LEAST_SHARE: Final = 1e-4
"""Of the width; what is thinner is not drawn."""


def total(bar: Bar) -> float:
    return sum(part.value for part in bar.slices)


def scale(bars: Bars) -> float:
    """The value at the right end: the largest of all bars, marks and the limit."""
    longest = max((max(total(bar), bar.mark or 0) for bar in bars.bars), default=0)
    return max(longest, (bars.limit or 0) * ROOM) or 1.0


def legend(bars: Bars) -> tuple[Slice, ...]:
    """One slice of each kind, as the first bar that has it says."""
    found: dict[str, Slice] = {}
    for bar in bars.bars:
        for part in bar.slices:
            found.setdefault(part.kind, part)
    return tuple(found.values())


def bars_table(bars: Bars, corner: str) -> Table:
    """The figures of the first bars, a column each."""
    shown = bars.bars[:MOST_COLUMNS]
    kinds = {part.kind: part.label for bar in shown for part in bar.slices}
    values = [{part.kind: part.shown for part in bar.slices} for bar in shown]
    rows = tuple((label, *(column.get(kind, "") for column in values)) for kind, label in kinds.items())
    return Table((corner, *(bar.label for bar in shown)), rows, right=frozenset(range(1, len(shown) + 1)))


def bars_svg(bars: Bars) -> str:
    """The bars with their labels; a table of the same figures belongs beside it."""
    top = TOP if bars.limit is not None else 0
    height = top + len(bars.bars) * (LINE + THICK + GAP)
    said = "; ".join(f"{bar.label}: {bar.shown}" for bar in bars.bars)
    drawn = "".join([*_drawn(bars, top), *_limit(bars)])
    label = markup(f"{bars.title}: {said}")
    return f'<svg class="bars" width="100%" height="{height}" role="img" aria-label="{label}">{drawn}</svg>'


def _drawn(bars: Bars, top: int) -> Iterator[str]:
    whole = scale(bars)
    for row, bar in enumerate(bars.bars):
        y = top + row * (LINE + THICK + GAP)
        yield f'<text x="0" y="{y + 14}">{markup(bar.label)}</text>'
        yield f'<text class="total" x="100%" y="{y + 14}" text-anchor="end">{markup(bar.shown)}</text>'
        yield f'<rect class="trough" x="0" y="{y + LINE}" width="100%" height="{THICK}" rx="3"/>'
        left = 0.0
        for part in bar.slices:
            width = part.value / whole
            if width >= LEAST_SHARE:
                title = markup(f"{part.label}: {part.shown}")
                yield (
                    f'<rect class="slice" x="{left:.3%}" y="{y + LINE}" width="{width:.3%}" height="{THICK}" '
                    f'fill="{look(part.kind).colour}"><title>{title}</title></rect>'
                )
            left += width
        if bar.mark is not None:
            x = f"{bar.mark / whole:.3%}"
            yield (
                f'<line class="mark" x1="{x}" x2="{x}" y1="{y + LINE - 3}" y2="{y + LINE + THICK + 3}">'
                f"<title>{markup(bar.mark_label)}</title></line>"
            )


def _limit(bars: Bars) -> Iterator[str]:
    if bars.limit is None:
        return
    share = bars.limit / scale(bars)
    anchor = "end" if share > 0.5 else "start"
    x = f"{share:.3%}"
    yield f'<text class="limit" x="{x}" y="13" text-anchor="{anchor}">{markup(bars.limit_label)}</text>'
    for row in range(len(bars.bars)):
        y = TOP + row * (LINE + THICK + GAP) + LINE
        yield f'<line class="limit" x1="{x}" x2="{x}" y1="{y - 2}" y2="{y + THICK + 4}"/>'


def bars_text(bars: Bars) -> str:
    """The same in characters, the limit as a stroke, and the legend."""
    whole, lines = scale(bars), []
    stroke = None if bars.limit is None else min(COLUMNS - 1, round(COLUMNS * bars.limit / whole))
    for bar in bars.bars:
        cells = list(_filled(bar, whole).ljust(COLUMNS))
        if stroke is not None:
            cells[stroke] = "|"
        marked = f" ({bar.mark_label})" if bar.mark is not None else ""
        lines += [f"{bar.label}: {bar.shown}{marked}", f"[{''.join(cells)}]"]
    if bars.limit is not None:
        lines.append(f"| {bars.limit_label}")
    alone = len(bars.bars) == 1
    marks = (f"{look(one.kind).character}  {one.label}" + f": {one.shown}" * alone for one in legend(bars))
    return "\n".join([*lines, "", *marks])


def _filled(bar: Bar, whole: float) -> str:
    """One character for each share of the scale; rounding never makes a bar longer or shorter than its sum."""
    text, sum_so_far = "", 0.0
    for part in bar.slices:
        sum_so_far += part.value
        text += look(part.kind).character * (round(COLUMNS * sum_so_far / whole) - len(text))
    return text


STEPS: Final = 240
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
    text = "\n".join(scaled_chart(sums, course.line, columns=TEXT_COLUMNS, rows=TEXT_ROWS, most=most))
    said = f"{course.span}; {course.line_label}: {format_bytes(max(course.line, default=0))}"
    return Picture(course.title, course_svg(course, most), f"{text}\n{'':>{len(format_bytes(most))}} {said}", legend)


def course_svg(course: Course, most: int) -> str:
    """Areas, line, grid and what they are, for a page whose style has the colours of its ground."""
    said = markup(f"{course.title}: {format_bytes(most)}; {course.span}")
    return (
        f'<svg class="course" width="100%" height="{HEIGHT + 22}" role="img" aria-label="{said}">'
        f'<svg width="100%" height="{HEIGHT}" viewBox="0 0 {STEPS} {TALL}" preserveAspectRatio="none">'
        f'{"".join(_areas(course, most))}</svg>{"".join(_labels(course, most))}</svg>'
    )


def _areas(course: Course, most: int) -> Iterator[str]:
    """The highest area first: each covers the ground below it."""
    sums = list(accumulate((layer.values for layer in course.layers), _added))
    for layer, values in reversed(list(zip(course.layers, sums, strict=True))):
        path = _steps(_reduced(values), most)
        yield f'<path d="M0 {TALL}{path}V{TALL}z" fill="{look(layer.kind).colour}"/>'
    yield f'<path class="line" d="M0 {_steps(_reduced(course.line), most)[1:]}"/>'
    for place in course.failures:
        yield f'<path class="failure" d="M{place * STEPS:.1f} 0V{TALL}"/>'


def _added(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _reduced(values: Sequence[int]) -> list[int]:
    """As many values as the plot has columns, the largest of each stretch: no peak is lost."""
    edges = [len(values) * column // STEPS for column in range(STEPS + 1)]
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
