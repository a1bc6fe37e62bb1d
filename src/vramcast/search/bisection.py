"""The largest number that fits, where more never needs less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WIDENING: Final = 4
"""Factor by which a bracket grows at every step away from a guess."""


def largest(fits: Callable[[int], bool], most: int, guess: int = 1) -> int:
    """The largest number from 1 to `most` that fits, 0 where none does: a bracket that widens, then bisection.

    >>> largest(lambda number: number * number <= 1000, most=10**6, guess=3)
    31
    """
    low, high = _bracket(fits, most, min(max(1, guess), most))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _bracket(fits: Callable[[int], bool], most: int, guess: int) -> tuple[int, int]:
    """A number that fits (0: none) and a larger one that does not (or most + 1)."""
    width = 1
    if fits(guess):
        low = guess
        while low + width <= most and fits(low + width):
            low, width = low + width, WIDENING * width
        return low, min(low + width, most + 1)
    high = guess
    while high > width and not fits(high - width):
        high, width = high - width, WIDENING * width
    return max(0, high - width), high
