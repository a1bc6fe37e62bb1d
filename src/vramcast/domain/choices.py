"""What holds a job, and what cards hold: answers to questions that leave the cards or the model open."""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.price import Price


class Choice(NamedTuple):
    """Cards that hold a job, or the most that were looked at of a kind that does not."""

    answer: Answer
    gpus: str  # as `--gpus` takes it
    price: Price | None  # of the cheapest machine with so many of them
    instance: str  # that machine, "" where none is priced

    @property
    def memory_bytes(self) -> int:
        """Of all cards together."""
        return self.answer.capacity_bytes * int(self.gpus.partition("x")[0])


class Choices(NamedTuple):
    """What holds a job."""

    model: str
    choices: tuple[Choice, ...]  # that fit, the least memory first; where none does the nearest one


class FittingModel(NamedTuple):
    """A model that fits."""

    name: str
    parameters: int
    form: str  # how it fits
    answer: Answer

    @property
    def tokens_per_s(self) -> float | None:
        """Generated or trained, None where the speed is not known."""
        if isinstance(self.answer, ServeAnswer):
            return self.answer.speed.tokens_per_s if self.answer.speed is not None else None
        return self.answer.time.tokens_per_s if self.answer.time is not None else None


class Fitting(NamedTuple):
    """What cards hold."""

    gpus: str
    purpose: str
    length: int
    engine: str
    looked_at: int
    fits: tuple[FittingModel, ...]  # the largest first
    said: tuple[str, ...]
