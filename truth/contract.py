"""What an adapter of truth rows hands to the scorer."""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.answer import Peak
from vramcast.domain.job import Job
from vramcast.estimate.interval import Traits, training_traits
from vramcast.estimate.ranks import slack_share

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
    traits: Traits | None = None  # by which its interval is found
    interval: tuple[float, float] | None = None  # the 90 % interval, from the misses of other harnesses


def traits_at(level: str, job: Job, peak: Peak | None = None) -> Traits:
    """Traits of a training job's number.

    Args:
        level: "allocated", "reserved" or "device"
        job: the question
        peak: of the fullest rank; without it nothing is known of what its allocator keeps
    """
    return training_traits(job, 0.0 if peak is None or level == "allocated" else slack_share(peak))


class Refused(Exception):
    """The row cannot be turned into a question; the text says why."""
