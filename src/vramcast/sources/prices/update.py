"""Refresh the user's table of prices: read, check, and only then put in place of the old one."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.catalogue.instances import instances
from vramcast.catalogue.prices import COLUMNS, Key, Prices, known_prices, read_prices, user_file
from vramcast.catalogue.tables import read_text
from vramcast.domain.device import Price
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName
from vramcast.sources.files import write_whole
from vramcast.sources.prices.lists import SOURCES, Request

WITHOUT: Final[dict[str, str]] = {
    "pai": "PAI publishes no list; its prices need an account (GetQuota, ListEcsSpecs). Give --price or --prices",
    "onprem": "your own machines have no list price. Give --price or --prices",
}

LARGEST_CHANGE: Final = 10.0
"""A price that moved by more than this factor is a mistake of the source, not a change."""


class Outcome(NamedTuple):
    """What became of one provider."""

    provider: str
    source: str = ""
    prices: int = 0  # that were read
    regions: int = 0
    left_out: tuple[str, ...] = ()
    failure: str = ""  # why nothing was changed


def update(
    providers: tuple[str, ...], *, regions: tuple[str, ...] = (), bases: Mapping[str, str] | None = None, today: str,
) -> tuple[Outcome, ...]:
    """Read the public lists of some providers into the user's table; one that fails changes nothing of what is there.

    Args:
        providers: names; none: all that have a list
        regions: names; none: all that a list has (of AWS, whose lists are large, the home region)
        bases: provider -> address of a mirror
        today: ISO date

    Raises: UnknownName for a provider, SourceError where the user's table cannot be read or written
    """
    for name in (*providers, *(bases or {})):
        if name not in (*SOURCES, *WITHOUT):
            raise UnknownName.of("provider", name, (*SOURCES, *WITHOUT))
    for region in regions:
        if not region.isascii() or not region.replace("-", "").isalnum():
            raise InvalidSpec("region={!r} must read like us-east-1 or cn-beijing", region[:40])
    known = known_prices()
    outcomes: list[Outcome] = []
    fresh: dict[Key, Price] = {}
    for provider in providers or tuple(SOURCES):
        outcome, found = _read(provider, regions, (bases or {}).get(provider), known, today)
        outcomes.append(outcome)
        fresh |= found
    if fresh:
        _write(user_file(), fresh)
    return tuple(outcomes)


def _read(
    provider: str, regions: tuple[str, ...], base: str | None, known: Prices, today: str
) -> tuple[Outcome, dict[Key, Price]]:
    if provider in WITHOUT:
        return Outcome(provider, failure=WITHOUT[provider]), {}
    address, read = SOURCES[provider]
    machines = frozenset(machine.name for machine in instances() if machine.provider == provider)
    request = Request((base or address).rstrip("/"), machines, regions, today)
    try:
        found = read(request)
        if not found.prices:
            where = f" in {', '.join(regions)}" if regions else ""
            raise SourceError("{} lists no price of a machine of the catalogue{}", found.source, where)
    except SourceError as error:
        return Outcome(provider, failure=str(error)), {}
    kept, left_out = _plausible(found.prices, known)
    return Outcome(provider, found.source, len(kept), len({key[1] for key in kept}), left_out), kept


def _plausible(prices: dict[Key, Price], known: Prices) -> tuple[dict[Key, Price], tuple[str, ...]]:
    """The prices that are near those known before, and why the others are left out."""
    kept: dict[Key, Price] = {}
    left_out: list[str] = []
    for key, price in prices.items():
        same = [
            before.per_hour for before in known.of(key[0]) if (before.tariff, before.currency) == (key[2], key[3])
        ]
        if same and not min(same) / LARGEST_CHANGE <= price.per_hour <= max(same) * LARGEST_CHANGE:
            left_out.append(
                Note(
                    "{} in {}: {:g} {} is more than {:g} times away from the {:g} to {:g} known before",
                    key[0], key[1], price.per_hour, price.currency, LARGEST_CHANGE, min(same), max(same)
                )
            )
        else:
            kept[key] = price
    return kept, tuple(left_out)


def _write(path: Path, fresh: dict[Key, Price]) -> None:
    """The user's table with fresh rows instead of those with the same key, put in place in one step.

    Raises: SourceError where it cannot be written; the old table is then untouched
    """
    prices = _before(path) | fresh
    rows = {key: (*key, f"{price.per_hour:.6f}", price.date, price.source) for key, price in prices.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows[key] for key in sorted(rows))
    read_prices(text.getvalue(), file=path.name)  # what cannot be read back must not replace what can
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError("{}: {}", path, error.strerror or error) from None
    write_whole(path, text.getvalue())


def _before(path: Path) -> dict[Key, Price]:
    if not path.exists():
        return {}
    return {
        (name, price.region, price.tariff, price.currency): price
        for name, price in read_prices(read_text(path), file=str(path))
    }
