"""Tables of text: columns that line up, whatever script their cells are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from vramcast.lazy import lazy_pattern

WIDTH: Final = 100
"""Columns of a terminal that a table keeps within where one of its own can be folded."""

NARROWEST: Final = 24
"""Of a column that is folded."""

PARTS: Final = lazy_pattern(r" (?=--|\(|\d{4}-)")
"""Where options are parted from each other, not from their values; what is in brackets, and a date, stand alone."""


def width_of(text: str) -> int:
    """Columns a terminal takes for a text: two for a Chinese character."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def table_lines(
    rows: Iterable[tuple[str, ...]], *, right: frozenset[int] = frozenset(), folded: int | None = None
) -> Iterator[str]:
    """The lines of a table below a title; none where there is no row."""
    cells = list(rows)
    if cells:
        yield from (f"  {line}" for lines in table_rows(cells, right=right, folded=folded) for line in lines)


def table(rows: Iterable[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> str:
    """Columns as wide as their widest cell; the columns of `right` end flush."""
    return "".join(f"{line}\n" for lines in table_rows(list(rows), right=right) for line in lines)


def table_rows(
    rows: Sequence[tuple[str, ...]], *, right: frozenset[int] = frozenset(), folded: int | None = None
) -> Iterator[list[str]]:
    """The lines of each row.

    Args:
        rows: the head first
        right: columns that end flush
        folded: a column of options that goes on below itself where the table is wider than WIDTH, after the heads of
            the others have
    """
    cells = [[[str(cell)] for cell in row] for row in rows]
    if folded is not None and _whole(cells) > WIDTH:
        below = _widths(cells[1:])
        cells[0] = [head if index == folded else _filled(head[0].split(" "), below[index])
                    for index, head in enumerate(cells[0])]
        room = max(NARROWEST, WIDTH - _whole(cells) + below[folded])
        cells[1:] = [[_filled(PARTS.split(cell[0]), room) if index == folded else cell
                      for index, cell in enumerate(row)] for row in cells[1:]]
    widths = _widths(cells)
    for row in cells:
        yield [
            "  ".join(_padded(cell, line, width, flush=index in right)
                      for index, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
            for line in range(max(map(len, row)))
        ]


def _widths(cells: list[list[list[str]]]) -> list[int]:
    return [max(width_of(text) for row in cells for text in row[index]) for index in range(len(cells[0]))]


def _whole(cells: list[list[list[str]]]) -> int:
    """Of a line, with the two blanks that it is moved in by."""
    return sum(_widths(cells)) + 2 * len(cells[0])


def _filled(parts: Iterable[str], room: int) -> list[str]:
    """Parts of a text on as many lines as they need."""
    lines: list[str] = []
    for part in parts:
        if lines and width_of(lines[-1]) + 1 + width_of(part) <= room:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _padded(cell: list[str], line: int, width: int, *, flush: bool) -> str:
    text = cell[line] if line < len(cell) else ""
    blank = " " * (width - width_of(text))
    return blank + text if flush else text + blank
