"""A filled curve and a line above it in Braille characters: two by four dots each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

BLANK: Final = 0x2800
DOTS: Final = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Bits of a character's two columns, the lowest dot first [Unicode chapter 21.1, Braille Patterns]."""


def chart(filled: Sequence[int], line: Sequence[int], *, columns: int, rows: int) -> list[str]:
    """Lines of characters, the highest first; the same scale for both, from 0 to the largest value.

    Args:
        filled: values drawn as an area
        line: values drawn as a line, as many
        columns: characters from left to right
        rows: characters from top to bottom

    >>> chart([4, 8], [8, 8], columns=1, rows=1)
    ['⣽']
    """
    most = max(max(filled, default=0), max(line, default=0), 1)
    area = [_height(value, most, rows) for value in _spread(filled, columns * 2)]
    top = [_height(value, most, rows) for value in _spread(line, columns * 2)]
    return [
        "".join(_character(area, top, column, row) for column in range(columns)) for row in range(rows - 1, -1, -1)
    ]


def _spread(values: Sequence[int], places: int) -> list[int]:
    """The largest value of each place; a value that covers several places is in all of them."""
    count = len(values)
    if not count:
        return [0] * places
    edges = [count * place // places for place in range(places + 1)]
    return [max(values[low : max(high, low + 1)]) for low, high in pairwise(edges)]


def _height(value: int, most: int, rows: int) -> int:
    """Dots from the ground; what is more than nothing has at least one."""
    return min(4 * rows, max(round(4 * rows * value / most), 1 if value else 0))


def _character(area: list[int], top: list[int], column: int, row: int) -> str:
    bits = 0
    for side in (0, 1):
        place = 2 * column + side
        for dot in range(4):
            height = 4 * row + dot + 1
            if height <= area[place] or height == top[place]:
                bits |= DOTS[side][dot]
    return chr(BLANK + bits)
