"""What a list of prices says about the machines that the catalogue knows."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from vramcast.catalogue.prices import Key
from vramcast.domain.price import Price, Tariff
from vramcast.errors import InvalidSpec, SourceError


class Request(NamedTuple):
    """What to read, and from where."""

    base: str  # address of the source, or of a mirror
    machines: frozenset[str]  # names without the provider
    regions: tuple[str, ...]  # empty: all that the source lists
    today: str  # ISO date


class Found:
    """Prices as they are read; of two for one machine, region and tariff the source decides which stands."""

    def __init__(self, provider: str, currency: str, request: Request, source: str) -> None:
        self.provider, self.currency, self.request, self.source = provider, currency, request, source
        self.prices: dict[Key, Price] = {}

    def add(self, name: str, region: str, tariff: Tariff, per_hour: Any) -> None:
        """One price, where it is of a machine and region asked for; zero stands for none.

        Raises: SourceError for what is no price
        """
        if name not in self.request.machines or (self.request.regions and region not in self.request.regions):
            return
        amount = number(per_hour, f"{self.provider}:{name} in {region[:40]}")
        if amount == 0:
            return
        if not region.isascii() or not region.replace("-", "").isalnum() or len(region) > 40:
            raise SourceError(f"{region[:40]!r} is no region")
        key = (f"{self.provider}:{name}", region, tariff, self.currency)
        try:
            self.prices[key] = Price(
                per_hour=amount, currency=self.currency, tariff=tariff, region=region, date=self.request.today,
                source=self.source,
            )
        except InvalidSpec as error:
            raise SourceError(f"{key[0]} in {region}: {error}") from None


def number(value: Any, where: str) -> float:
    """A finite number of at least 0 from a number or its text.

    Raises: SourceError naming what it was for
    """
    try:
        amount = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        amount = -1.0
    if not isfinite(amount) or amount < 0:
        raise SourceError(f"{where}: {str(value)[:40]!r} is no price")
    return round(amount, 6)


def table(value: Any, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises: SourceError where it is something else
    """
    if not isinstance(value, dict):
        raise SourceError(f"{what} is not an object; the source has changed its format")
    return value


def document(content: bytes, source: str) -> dict[str, Any]:
    """A JSON document whose top is an object.

    Raises: SourceError where it is none
    """
    import msgspec

    try:
        return table(msgspec.json.decode(content), source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(f"{source} sends no JSON: {str(error)[:100]}") from None
