"""What is said of a plan against the memory that there is, in the words that every surface prints."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

CLOSE: Final = 0.05
"""Share of a card that stays free above the 90 % interval of what fits and is not said to fit closely."""


class Fit(StrEnum):
    """The verdict on a plan, in the words that every surface prints. The interval is that of 90 %."""

    FITS = "fits"  # the interval ends within the card, and CLOSE of it stays free
    CLOSELY = "fits closely"  # the interval ends within the card
    MAY_RUN_OUT = "may run out"  # the prediction is within the card, the interval goes beyond
    NOT = "does not fit"  # on the card, beside it, or as many sequences as are asked for


def fit_of(*, fits: bool, high_bytes: int | None, capacity_bytes: int | None) -> Fit:
    """The verdict on what fits or not.

    Args:
        fits: whether the prediction is within what there is
        high_bytes: upper end of its 90 % interval; None: not known [bytes]
        capacity_bytes: what a process can use of the card; None: not known [bytes]

    >>> [str(fit_of(fits=True, high_bytes=high, capacity_bytes=80)) for high in (76, 77, 80, 81)]
    ['fits', 'fits closely', 'fits closely', 'may run out']
    """
    if not fits:
        return Fit.NOT
    if high_bytes is None or capacity_bytes is None:
        return Fit.FITS
    if high_bytes > capacity_bytes:
        return Fit.MAY_RUN_OUT
    return Fit.CLOSELY if high_bytes > (1 - CLOSE) * capacity_bytes else Fit.FITS


def claimed_bytes(*, needed_bytes: int, high_bytes: int, headroom: float | None) -> int:
    """What a search holds against a card: what a plan needs, or where nobody says how much of the card is to stay free
    the upper end of its 90 % interval [bytes].

    Args:
        needed_bytes: device bytes of the highest phase
        high_bytes: upper end of its interval
        headroom: share of a card that stays free; None: the interval
    """
    return high_bytes if headroom is None else needed_bytes


def usable_bytes(visible_bytes: int, headroom: float | None) -> int:
    """What a search lets a plan have of a card [bytes]."""
    return int(visible_bytes * (1 - (headroom or 0.0)))
