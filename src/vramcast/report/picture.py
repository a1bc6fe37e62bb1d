"""Cost against speed as a picture: characters for a terminal, SVG for a file or a page.

Both axes are logarithmic where their largest value is more than ten times the smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.domain.planning import Point
from vramcast.errors import InvalidSpec
from vramcast.report.columns import table_rows
from vramcast.report.document import fleet_words, split_labels
from vramcast.report.messages import Words
from vramcast.sources.files import check_writable, write_whole

COLUMNS: Final = 64
ROWS: Final = 14
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
"""Points beyond these are drawn as dots and not listed."""

LOGARITHMIC: Final = 10.0
"""Largest over smallest value from which an axis is logarithmic."""

MOST_DIGITS: Final = 16
MOST_TICKS: Final = 8

MARGIN: Final = 0.06
"""Of an axis, free on either side of the points."""

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 20, 56
LINE: Final = 20
"""Height of a line of the legend [pixels]."""

STYLE: Final = """
svg { color-scheme: light dark; font: 13px system-ui, "Noto Sans CJK SC", sans-serif; }
.ground { fill: #ffffff; } .ink { fill: #1b2027; } .soft { fill: #57606b; }
.grid { stroke: #dfe3e8; stroke-width: 1; } .front { fill: none; stroke: #0b57c2; stroke-width: 2; }
.best { fill: #0b57c2; } .behind { fill: #ffffff; stroke: #868f9a; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
 .ground { fill: #12161c; } .ink { fill: #e6eaef; } .soft { fill: #a0aab5; }
 .grid { stroke: #2b323c; } .front { stroke: #79b0ff; } .best { fill: #79b0ff; }
 .behind { fill: #12161c; stroke: #a0aab5; }
}
"""


class Axis(NamedTuple):
    """Where values lie between 0 and 1."""

    low: float
    high: float
    logarithmic: bool

    def place(self, value: float) -> float:
        """0 at the lower end, 1 at the upper."""
        bend: Callable[[float], float] = log10 if self.logarithmic else float
        return (bend(value) - bend(self.low)) / (bend(self.high) - bend(self.low))

    def ticks(self) -> list[float]:
        """Round values to label, three to nine on a linear axis."""
        if self.logarithmic:
            decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) < 4 else (1,)
            found = [step * 10.0**decade for decade in decades for step in steps]
        else:
            rough = (self.high - self.low) / MOST_TICKS
            unit = 10.0 ** floor(log10(rough))
            step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough)
            found = [step * index for index in range(ceil(self.low / step), floor(self.high / step) + 1)]
        return [value for value in found if self.low <= value <= self.high]


SAME: Final = 1e-9
"""Relative distance below which values are drawn as one: no label could tell them apart."""


def axis_of(values: Sequence[float]) -> Axis:
    least, most = min(values), max(values)
    if most > LOGARITHMIC * least:
        room = (most / least) ** MARGIN
        return Axis(least / room, most * room, True)
    span = most - least
    room = span * MARGIN if span > SAME * most else most * 0.5
    return Axis(least - room, most + room, False)


def by_unit(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points that can be compared, the fastest first; nothing is converted."""
    units = dict.fromkeys(point.unit for point in points)
    ordered = sorted(points, key=lambda point: (-point.tokens_per_s, point.cost_per_million_tokens))
    return {unit: [point for point in ordered if point.unit == unit] for unit in units}


def scatter(points: Sequence[Point], words: Words) -> Iterator[str]:
    """A picture of characters for each unit; nothing where there is only one point. Capitals are on the front."""
    for unit, found in by_unit(points).items():
        if len(found) > 1:
            yield from _scatter(found, unit, words)


def _scatter(points: list[Point], unit: str, words: Words) -> Iterator[str]:
    across = axis_of([point.tokens_per_s for point in points])
    up = axis_of([point.cost_per_million_tokens for point in points])
    cells = [[" "] * COLUMNS for _ in range(ROWS)]
    for point, mark in reversed(list(zip(points, _marks(points), strict=True))):
        row = ROWS - 1 - round(up.place(point.cost_per_million_tokens) * (ROWS - 1))
        cells[row][round(across.place(point.tokens_per_s) * (COLUMNS - 1))] = mark
    labels = {ROWS - 1 - round(up.place(value) * (ROWS - 1)): text for value, text in labelled(up)}
    yield "  " + words("plan.cost_axis", unit=unit)
    for index, line in enumerate(cells):
        yield f"  {labels.get(index, ''):>8} |{''.join(line)}".rstrip()
    yield f"  {'':>8} +{'-' * COLUMNS}"
    below = [" "] * (COLUMNS + 8)
    for value, text in labelled(across):
        start = round(across.place(value) * (COLUMNS - 1))
        below[start : start + len(text)] = text
    yield f"  {'':>9} {''.join(below).rstrip()}  {axis_words(points, words)}"
    marked = [(mark, point) for point, mark in zip(points, _marks(points), strict=True) if mark.isalpha()]
    shared, own = split_labels(tuple(what_of(point, words) for _, point in marked))
    if shared:
        yield "  " + words("plan.shared", options=shared)
    rows = [(mark, figures(point, words), text) for (mark, point), text in zip(marked, own, strict=True)]
    _, *lines = table_rows([("", "", ""), *rows], folded=2)
    yield from (f"  {line}" for row in lines for line in row)


def what_of(point: Point, words: Words) -> str:
    """The options of a point, and how many replicas there are of it."""
    return point.what if point.fleet is None else f"{point.what} {fleet_words(point.fleet, words)}"


def _marks(points: Sequence[Point]) -> list[str]:
    """A letter each, a capital on the front."""
    letters = [*LETTERS, *("·" * max(0, len(points) - len(LETTERS)))]
    return [
        letter.upper() if point.on_front else letter for letter, point in zip(letters, points, strict=False)
    ]


def figures(point: Point, words: Words) -> str:
    cost = words("plan.cost_axis", unit=f"{short(point.cost_per_million_tokens)} {point.unit}")
    return f"{point.tokens_per_s:,.0f} {axis_words([point], words)}, {cost}"


def axis_words(points: Sequence[Point], words: Words) -> str:
    """Whose tokens a second they are."""
    return words("plan.tokens_axis_each" if points[0].per_user else "plan.tokens_axis")


def short(value: float, digits: int = 3) -> str:
    """A number with few digits.

    >>> short(0.25), short(1500), short(2_000_000)
    ('0.25', '1.5k', '2M')
    """
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.{digits}g}{letter}"
    return f"{value:.{digits}g}"


def labelled(axis: Axis) -> list[tuple[float, str]]:
    """The round values of an axis with as many digits as it takes to tell them apart.

    >>> [text for _, text in labelled(Axis(1000.0, 1001.0, False))]
    ['1k', '1.0002k', '1.0004k', '1.0006k', '1.0008k', '1.001k']
    """
    ticks = axis.ticks()
    for digits in range(3, MOST_DIGITS):
        texts = [short(value, digits) for value in ticks]
        if len(set(texts)) == len(texts):
            break
    return list(zip(ticks, texts, strict=True))


def check_picture(path: Path) -> None:
    """Refuse a path that no picture can be written to.

    Raises: InvalidSpec for an ending of no known kind, SourceError for a folder that is not there
    """
    if path.suffix not in WRITERS:
        raise InvalidSpec("--picture {} must end in .svg or .html", str(path)[:80])
    check_writable(path)


def write_picture(path: Path, points: Sequence[Point], words: Words) -> None:
    """A file of the kind its name ends in.

    Raises: InvalidSpec for another ending or where there is nothing to draw, SourceError where it cannot be written
    """
    check_picture(path)
    if not points:
        raise InvalidSpec("--picture has nothing to draw: no plan that fits has a known speed")
    write_whole(path, WRITERS[path.suffix](points, words))


def html(points: Sequence[Point], words: Words) -> str:
    title = escape(words("plan.picture"))
    return (
        f'<!doctype html>\n<html lang="{words.language}"><meta charset="utf-8"><title>{title}</title>\n'
        "<style>:root { color-scheme: light dark; } body { margin: 2em auto; max-width: 60em; "
        f"font-family: system-ui, sans-serif; }} svg {{ width: 100%; height: auto; }}</style>\n<h1>{title}</h1>\n"
        f"{svg(points, words)}</html>\n"
    )


def svg(points: Sequence[Point], words: Words, *, own_ground: bool = True) -> str:
    """The picture by itself; one panel for each unit, with a legend below it.

    `own_ground`: with colours of its own for ground and text; without them it takes those of the page around it.
    """
    panels, height = [], 0
    for unit, found in by_unit(points).items():
        panels.append(f'<g transform="translate(0 {height})">{"".join(_panel(found, unit, words))}</g>')
        height += HEIGHT + LINE * (min(len(found), len(LETTERS)) + 2)
    ground = f'<style>{STYLE}</style><rect class="ground" width="{WIDTH}" height="{height}"/>' if own_ground else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img"><title>{escape(words("plan.picture"))}</title>{ground}{"".join(panels)}</svg>\n'
    )


WRITERS: Final[dict[str, Callable[[Sequence[Point], Words], str]]] = {".svg": svg, ".html": html}


def _panel(points: list[Point], unit: str, words: Words) -> Iterator[str]:
    across = axis_of([point.tokens_per_s for point in points])
    up = axis_of([point.cost_per_million_tokens for point in points])

    def x_of(value: float) -> float:
        return LEFT + across.place(value) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM)

    for value, text in labelled(up):
        y = y_of(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    for value, text in labelled(across):
        x = x_of(value)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield f'<text class="soft" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>'
    yield _text("ink", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, axis_words(points, words), "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield (
        f'<text class="ink" transform="translate(20 {middle:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(words('plan.cost_axis', unit=unit))}</text>"
    )
    front = sorted((point for point in points if point.on_front), key=lambda point: point.tokens_per_s)
    corners = " L".join(f"{x_of(point.tokens_per_s):.1f} {y_of(point.cost_per_million_tokens):.1f}" for point in front)
    if len(front) > 1:
        yield f'<path class="front" d="M{corners}"/>'
    for point, mark in reversed(list(zip(points, _marks(points), strict=True))):
        x, y = x_of(point.tokens_per_s), y_of(point.cost_per_million_tokens)
        kind = "best" if point.on_front else "behind"
        title = escape(what_of(point, words))
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{title}</title></circle>'
        yield _text("ink", x + 8, y - 8, mark, "start")
    yield from _legend(points, words)


def _legend(points: list[Point], words: Words) -> Iterator[str]:
    y = HEIGHT + 4
    for kind, x, key in (("best", LEFT, "plan.on_front"), ("behind", LEFT + 330, "plan.behind")):
        yield f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"/>' + _text("soft", x + 12, y + 4, words(key), "start")
    listed = [(point, mark) for point, mark in zip(points, _marks(points), strict=True) if mark.isalpha()]
    for point, mark in listed:
        y += LINE
        yield _text("ink", LEFT - 4, y + 4, mark, "start")
        yield _text("ink", LEFT + 16, y + 4, f"{where(point)}: {figures(point, words)}", "start")


def where(point: Point) -> str:
    """The machines of a point, where its options name them.

    >>> what = "--gpus 8xh100 --tp 2"
    >>> where(Point(what=what, gpus=8, tokens_per_s=1, cost_per_million_tokens=1, unit="", on_front=True))
    '8xh100'
    """
    name, _, rest = point.what.partition("--gpus ")[2].partition(" ")
    return name or rest or point.what


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
