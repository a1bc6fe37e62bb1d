"""What was predicted for each card that is watched: `vramcast watch --predict job.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.domain.model import Noun
from vramcast.domain.observation import Card
from vramcast.errors import VramcastError

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer, RankAnswer

FIRST_STEP = "first step"
"""Phase of an answer that ends with the first optimizer step [domain.job.Phase]."""


class Expected(Noun, frozen=True):
    """The prediction for one card: drawn beside what is observed. Sizes are what the driver shows of the process."""

    gpu_uuid: str
    role: str  # of the rank on it: "all", "first stage"
    steady_bytes: int  # peak of a step once optimizer states exist; of serving at full load
    capacity_bytes: int  # what a process can use of the card
    first_step_bytes: int | None = None  # peak of the first step; None where there is no such phase
    interval_bytes: tuple[int, int] | None = None  # 90 % of `steady_bytes`


def expected_of(job: Path, cards: Sequence[Card]) -> tuple[Expected, ...]:
    """The prediction for each card, in the order of the cards.

    The job's ranks are taken to run on these cards, one each; where ranks differ (pipeline stages), each card is
    given the fullest role, because an answer does not say which rank is which.

    Args:
        job: a job file of `vramcast train` or `vramcast serve`
        cards: those that the job uses on this machine

    Raises: VramcastError where the job cannot be predicted
    """
    answer = _answer(job)
    fullest = answer.fullest
    role = fullest.role if len(answer.ranks) == 1 else f"fullest: {fullest.role}"
    return tuple(_expected(card, role, fullest, answer.capacity_bytes) for card in cards)


def _expected(card: Card, role: str, rank: RankAnswer, capacity_bytes: int) -> Expected:
    first = rank.phases.get(FIRST_STEP)
    return Expected(
        gpu_uuid=card.uuid, role=role, steady_bytes=rank.peak.device_bytes, capacity_bytes=capacity_bytes,
        first_step_bytes=None if first is None else first.device_bytes, interval_bytes=rank.interval_bytes,
    )


def _answer(job: Path) -> Answer:
    """The job's answer, as training where its file reads as such, else as serving."""
    from vramcast.api import job_of, serve_answer
    from vramcast.estimate.training import answer

    try:
        return answer(job_of({}, file=job), with_changes=False)
    except VramcastError as as_training:
        try:
            return serve_answer({}, file=job, with_changes=False)
        except VramcastError:
            raise as_training from None
