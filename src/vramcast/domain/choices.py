"""What holds a job, and what cards hold: answers to questions that leave the cards or the model open."""

from __future__ import annotations

from vramcast.domain.answer import Answer
from vramcast.domain.device import Price
from vramcast.domain.model import Noun

LEVELS = (("needed_bytes", "answer.fullest.needed_bytes"), ("capacity_bytes", "answer.capacity_bytes"))
RATE = ("tokens_per_s", "answer.tokens_per_s")


class Offered(Noun, frozen=True):
    """The cheapest machine with so many cards."""

    KEYS = (
        ("per_hour", "price.per_hour"), ("currency", "price.currency"), "instance", ("region", "price.region"),
        ("date", "price.date"), "age_days",
    )

    price: Price
    instance: str
    age_days: int | None = None  # of the price, on the day of the report


class Choice(Noun, frozen=True):
    """Cards that hold a job, or the most that were looked at of a kind that does not."""

    KEYS = ("gpus", ("fits", "answer.fits"), ("verdict", "answer.verdict"), *LEVELS, RATE, ("price", "offer"))

    answer: Answer
    gpus: str  # as `--gpus` takes it
    offer: Offered | None = None

    @property
    def memory_bytes(self) -> int:
        """Of all cards together."""
        return self.answer.capacity_bytes * int(self.gpus.partition("x")[0])


class Choices(Noun, frozen=True):
    """What holds a job."""

    KEYS = ("model", "fits", ("cards", "choices"))

    model: str
    choices: tuple[Choice, ...]  # that fit, the least memory first; where none does the nearest one

    @property
    def fits(self) -> bool:
        """Whether any does."""
        return self.choices[0].answer.fits


class FittingModel(Noun, frozen=True):
    """A model that fits."""

    KEYS = (("model", "name"), "parameters", "form", ("verdict", "answer.verdict"), *LEVELS, RATE)

    name: str
    parameters: int
    form: str  # how it fits
    answer: Answer


class Fitting(Noun, frozen=True):
    """What cards hold."""

    KEYS = (
        "gpus", ("for", "purpose"), ("tokens", "length"), "engine", "looked_at", ("assumptions", "said"),
        ("models", "fits"),
    )

    gpus: str
    purpose: str
    length: int
    engine: str
    looked_at: int
    fits: tuple[FittingModel, ...]  # the largest first
    said: tuple[str, ...]
