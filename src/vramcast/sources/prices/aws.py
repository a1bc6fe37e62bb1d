"""AWS: the public price list of EC2, one CSV per region, read as it arrives.

[list] docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-changes.html: /offers/v1.0/aws/AmazonEC2/current/
REGION/index.csv needs no key. Some lines about the list come first, then the header. A region has some 300 MB.
Spot prices are in no public list.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Final

from vramcast.catalogue.prices import HOME_REGIONS
from vramcast.errors import SourceError
from vramcast.sources.fetch import read_lines
from vramcast.sources.prices.found import Found, Request

BASE: Final = "https://pricing.us-east-1.amazonaws.com"
PATH: Final = "/offers/v1.0/aws/AmazonEC2/current/{region}/index.csv"

MOST_BYTES: Final = 2 << 30
MOST_SECONDS: Final = 1200.0
LINES_BEFORE_HEADER: Final = 20

WANTED: Final[dict[str, str]] = {
    "TermType": "OnDemand",
    "Unit": "Hrs",
    "Currency": "USD",
    "Operating System": "Linux",
    "Tenancy": "Shared",
    "CapacityStatus": "Used",
    "Pre Installed S/W": "NA",
}
"""Cells of the rows that are the plain on-demand price of a Linux machine."""

MARKET: Final = "MarketOption"
"""A column of newer lists: OnDemand, or CapacityBlock for machines that are paid in advance."""


def read(request: Request) -> Found:
    """On-demand prices of a few regions.

    Raises: SourceError where a list cannot be read
    """
    found = Found("aws", "USD", request, request.base + "/offers/v1.0/aws/AmazonEC2")
    for region in request.regions or (HOME_REGIONS["aws"],):
        url = request.base + PATH.format(region=region)
        _read_region(found, region, read_lines(url, most=MOST_BYTES, seconds=MOST_SECONDS))
    return found


def _read_region(found: Found, region: str, lines: Iterator[str]) -> None:
    rows = csv.reader(lines)
    try:
        columns = _header(rows)
        wanted = [(columns[name], cell) for name, cell in (*WANTED.items(), (MARKET, "OnDemand")) if name in columns]
        name_at, price_at, last = columns["Instance Type"], columns["PricePerUnit"], max(columns.values())
        for cells in rows:
            if len(cells) > last and all(cells[index] == cell for index, cell in wanted):
                found.add(cells[name_at], region, "on-demand", cells[price_at])
    except csv.Error as error:
        raise SourceError(f"the AWS price list of {region} is no CSV: {error}") from None


def _header(rows: Iterator[list[str]]) -> dict[str, int]:
    """Column -> index, from the first line that is a header."""
    needed = {*WANTED, "Instance Type", "PricePerUnit"}
    for _, cells in zip(range(LINES_BEFORE_HEADER), rows, strict=False):
        if needed <= set(cells):
            return {name: cells.index(name) for name in (*needed, MARKET) if name in cells}
    raise SourceError(f"the AWS price list has no header with {', '.join(sorted(needed))}; its format has changed")
