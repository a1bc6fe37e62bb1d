"""One row of evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from vramcast.doctor.failures.case import Case
from vramcast.domain.failure import Cause

Holds: TypeAlias = Callable[[Case], bool]
Values: TypeAlias = Callable[[Case], dict[str, str]]


def nothing(_: Case) -> dict[str, str]:
    """For sentences without figures."""
    return {}


class Rule(NamedTuple):
    """A condition, the cause it speaks for and how strongly.

    Weights are log-odds: a cause with 2 more than another is e^2 = 7 times as likely.
    """

    key: str  # of the sentence; "" speaks without words: it only takes weight away
    cause: Cause
    weight: float
    holds: Holds
    values: Values = nothing


def known(*figures: int | None) -> bool:
    """Whether the text gives all of them."""
    return None not in figures


def between(low: float, value: float | None, high: float) -> bool:
    """Whether a known share lies in an interval, its upper end left out."""
    return value is not None and low <= value < high


__all__ = ["Holds", "Rule", "Values", "between", "known", "nothing"]
