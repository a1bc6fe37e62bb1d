"""What an adapter of truth rows hands to the scorer."""

from __future__ import annotations

from typing import Final, NamedTuple

STEP_TIME: Final = "step time"
"""Level of a prediction in seconds."""

VERDICT: Final = "fits"
"""Level of rows that say only whether a run came through, 1 or 0."""


class Prediction(NamedTuple):
    """One predicted number beside its measured one, both in bytes or in the unit of a row's own quantity."""

    level: str  # "allocated", "reserved", "device", STEP_TIME, or a row's own quantity
    predicted: float
    measured: float
    measured_alternative: float | None = None  # the GB reading where a source does not say GiB or GB
    interval: tuple[float, float] | None = None  # the 90 % interval


class Refused(Exception):
    """The row cannot be turned into a question; the text says why."""
