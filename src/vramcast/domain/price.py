"""What a machine costs, and what a job costs on it. No currency is ever converted into another."""

from __future__ import annotations

from typing import Literal

from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec

Tariff = Literal["on-demand", "spot"]


class Price(Noun, frozen=True):
    """One published or given price of one machine for one hour."""

    KEYS = (...,)
    SHOWN = ("tariff",)

    per_hour: float  # of the whole machine, in `currency`
    currency: str  # ISO 4217: "USD", "CNY"
    tariff: Tariff = "on-demand"
    region: str = ""  # "us-east-1", "cn-beijing"
    date: str = ""  # ISO date the price was read
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.per_hour < 1e6:
            raise InvalidSpec("price per hour {!r} must be more than 0 and less than 1,000,000", self.per_hour)
        if len(self.currency) != 3 or not self.currency.isascii() or not self.currency.isupper():
            raise InvalidSpec("currency {!r} must be an ISO 4217 code such as USD or CNY", self.currency[:20])


class Cost(Noun, frozen=True):
    """What a job costs, in the currency of its price. What was not asked for or is not known is None."""

    KEYS = (
        "per_hour", ("currency", "price.currency"), ("tariff", "price.tariff"), "machines",
        ("machine_per_hour", "price.per_hour"), "per_million_tokens", "per_run", "run_hours",
        ("region", "price.region"), ("date", "price.date"), "age_days", ("source", "price.source"),
    )
    SHOWN = ("tariff",)

    price: Price  # of one machine
    machines: int  # rented for it
    per_hour: float  # all of them
    per_million_tokens: float | None = None  # trained, or generated
    per_run: float | None = None  # of the number of tokens the question names
    run_hours: float | None = None
    age_days: int | None = None  # of the price, on the day of the report
