"""Jobs that share cards: what each takes of one, which stand together, and how likely a card runs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramcast.domain.answer import Answer
from vramcast.domain.model import Noun


class Candidate(Noun, frozen=True):
    """A job that may share cards, answered on each kind of them."""

    name: str
    gpus: int  # cards that it takes of one machine
    answers: dict[str, Answer]  # kind of card -> its answer there; absent: refused
    why: str = ""  # it has no answer on some kind, in a sentence
    cautions: tuple[str, ...] = ()

    def enough_bytes(self, kind: str, share: float) -> int | None:
        """What suffices it on a card in that share of runs; None: it has no answer there [bytes]."""
        answer = self.answers.get(kind)
        return None if answer is None else answer.fullest.enough_bytes(share)


class Room(Noun, frozen=True):
    """A card that jobs may share."""

    kind: str  # as `--gpus` takes it
    capacity_bytes: int  # that jobs can have: without what others hold
    machine: int = 0  # a job of several cards stands within one


class PackedJob(Noun, frozen=True):
    """A job on a card."""

    name: str
    needed_bytes: int  # predicted, of this card
    claimed_bytes: int  # what suffices but for the risk


class PackedCard(Noun, frozen=True):
    """A card and the jobs that share it."""

    SHOWN = ("jobs",)

    index: int  # in the order in which cards were named
    gpu: str
    capacity_bytes: int
    needed_bytes: int = 0  # of all its jobs, predicted
    claimed_bytes: int = 0  # what suffices them but for the risk
    chance_to_run_out: float | None = None  # None: it has no job
    jobs: tuple[PackedJob, ...] = ()


class Unplaced(Noun, frozen=True):
    """A job that found no card."""

    name: str
    why: str


class Packing(Noun, frozen=True):
    """Which jobs share which cards."""

    KEYS = "question", "risk", ("fits", "is_whole"), "used", "is_least", "cards", "unplaced", "assumptions", "warnings",
    SHOWN = ("unplaced", "assumptions", "warnings")

    question: dict[str, Any]
    risk: float  # of each card to run out, at most
    cards: tuple[PackedCard, ...]
    unplaced: tuple[Unplaced, ...] = ()
    is_least: bool = True  # fewer cards, or more jobs, were shown not to do
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every job has its cards."""
        return not self.unplaced

    @property
    def used(self) -> int:
        """Cards with a job."""
        return sum(bool(card.jobs) for card in self.cards)


def chance_to_run_out(jobs: Sequence[Candidate], kind: str, capacity_bytes: int) -> float:
    """How likely jobs that share a card need more than it has.

    Jobs of one place miss their predictions alike: the same data, library versions and habits lie behind all of them.
    So all are taken to miss by the same quantile of what was measured, and what suffices them together in a share of
    runs is the sum of what suffices each. `python -m truth.packing` holds that against measured runs, beside misses
    that know nothing of each other, which promise too much.

    Args:
        jobs: with an answer on such a card
        kind: of the card
        capacity_bytes: that they can have of it [bytes]
    """
    ranks = [job.answers[kind].fullest for job in jobs]
    shares = sorted({share for rank in ranks for _, share in rank.misses} or {1.0})
    low, high = 0, len(shares)  # what suffices grows with the share: the first at which it is too much
    while low < high:
        middle = (low + high) // 2
        if sum(rank.enough_bytes(shares[middle]) for rank in ranks) <= capacity_bytes:
            low = middle + 1
        else:
            high = middle
    return 1.0 - (shares[low - 1] if low else 0.0)
