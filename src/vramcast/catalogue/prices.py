"""Prices of machines: one row of `prices.csv` per machine, region, tariff and currency, with the day it was read.

Three layers, the first that knows a machine wins: a file the user names, then what `vramcast prices update` wrote to
the user's data folder and the shipped table together, the newer row of both. Nothing is ever converted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.catalogue.tables import Row, read_table, read_text
from vramcast.domain.device import Price, Tariff
from vramcast.errors import InvalidSpec, SourceError


def data_folder() -> Path:
    """$VRAMCAST_DATA, else the platform's folder for a program's data. It need not exist."""
    chosen = os.environ.get("VRAMCAST_DATA")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "vramcast"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "vramcast"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "vramcast"


FILE: Final = Path(__file__).with_name("prices.csv")
USER_FILE: Final = "prices.csv"

COLUMNS: Final = ("instance", "region", "tariff", "currency", "per_hour", "date", "source")
KEY: Final = ("instance", "region", "tariff", "currency")
TARIFFS: Final[tuple[Tariff, ...]] = ("on-demand", "spot")

HOME_REGIONS: Final[dict[str, str]] = {
    "alibaba": "cn-hangzhou", "aws": "us-east-1", "azure": "eastus", "gcp": "us-central1", "lambda": "us-east-1",
}
"""Region a price is taken from where the question names none; elsewhere the cheapest."""

Key = tuple[str, str, str, str]


class Wanted(NamedTuple):
    """Which of a machine's prices a question asks for."""

    tariff: Tariff = "on-demand"
    region: str | None = None
    currency: str | None = None


class Prices:
    """One layer: prices by machine, region, tariff and currency."""

    def __init__(self, rows: dict[Key, Row]) -> None:
        self.rows = rows
        self._keys: dict[str, list[Key]] = {}
        for key in rows:
            self._keys.setdefault(key[0], []).append(key)

    def __iter__(self) -> Iterator[tuple[str, Price]]:
        for key, row in self.rows.items():
            yield key[0], price_of_row(row)

    def of(self, instance: str) -> list[Price]:
        """All prices of a machine."""
        return [price_of_row(self.rows[key]) for key in self._keys.get(instance, ())]

    def over(self, other: Prices) -> Prices:
        """Both tables as one; of two rows with one key the newer, of two as new this table's."""
        rows = dict(other.rows)
        for key, row in self.rows.items():
            if key not in rows or row["date"] >= rows[key]["date"]:
                rows[key] = row
        return Prices(rows)


def choose(instance: str, prices: Iterable[Price], wanted: Wanted) -> Price | None:
    """The price a question asks for; where it names no region, that of the provider's home region or the cheapest.

    Two currencies cannot be compared: where the question names none, that of the first fitting row stays.
    """
    fitting = [
        price
        for price in prices
        if price.tariff == wanted.tariff
        and wanted.region in (None, price.region)
        and wanted.currency in (None, price.currency)
    ]
    home = HOME_REGIONS.get(instance.partition(":")[0])
    eligible = [price for price in fitting if price.region == home] or fitting
    return min(
        (price for price in eligible if price.currency == eligible[0].currency),
        key=lambda price: price.per_hour, default=None,
    )


def read_prices(text: str, *, file: str) -> Prices:
    """A table of prices, every row checked.

    Raises: SourceError naming file and line
    """
    prices = _table(text, file)
    for row in prices.rows.values():
        price_of_row(row)
    return prices


def price_of_row(row: Row) -> Price:
    """The price of one row.

    Raises: SourceError naming file and line
    """
    per_hour = row.number("per_hour")
    if per_hour is None:
        raise SourceError("{}: per_hour is empty; leave out the row where the price is not known", row.where)
    row.text("instance")
    try:
        return Price(
            per_hour=per_hour, currency=row["currency"], tariff=_tariff(row), region=row["region"],
            date=row.date("date"), source=row.text("source"),
        )
    except InvalidSpec as error:
        raise SourceError("{}: {}", row.where, error) from None


def shipped_prices() -> Prices:
    """The table that comes with vramcast."""
    return _shipped()


def user_file() -> Path:
    """What `vramcast prices update` writes."""
    return data_folder() / USER_FILE


def known_prices() -> Prices:
    """The shipped table with what was refreshed.

    Raises: SourceError naming file and line of a refreshed table that was damaged
    """
    path = user_file()
    if not path.exists():
        return _shipped()
    return read_prices(read_text(path), file=str(path)).over(_shipped())


def _tariff(row: Row) -> Tariff:
    return "spot" if row.choice("tariff", TARIFFS) == "spot" else "on-demand"


def _table(text: str, file: str) -> Prices:
    rows = read_table(text, file=file, columns=COLUMNS, key=KEY)
    return Prices({(row["instance"], row["region"], row["tariff"], row["currency"]): row for row in rows})


@cache
def _shipped() -> Prices:
    return _table(FILE.read_text(encoding="utf-8"), FILE.name)
