"""Lambda: the catalogue that SkyPilot keeps; Lambda's own list needs a key."""

from __future__ import annotations

import csv
from typing import Final

from vramcast.errors import SourceError
from vramcast.sources.fetch import read_url
from vramcast.sources.prices.found import Found, Request

BASE: Final = "https://raw.githubusercontent.com"
PATH: Final = "/skypilot-org/skypilot-catalog/master/catalogs/v8/lambda/vms.csv"

MOST_BYTES: Final = 8 << 20
NEEDED: Final = ("InstanceType", "Price", "Region")


def read(request: Request) -> Found:
    """On-demand prices.

    Raises: SourceError where the catalogue cannot be read
    """
    found = Found("lambda", "USD", request, request.base + PATH)
    text = read_url(request.base + PATH, most=MOST_BYTES).decode("utf-8", errors="replace")
    try:
        rows = csv.DictReader(text.splitlines())
        if not set(NEEDED) <= set(rows.fieldnames or ()):
            raise SourceError(f"the catalogue lacks one of {', '.join(NEEDED)}; its format has changed")
        for row in rows:
            found.add(row["InstanceType"] or "", row["Region"] or "", "on-demand", row["Price"] or 0)
    except csv.Error as error:
        raise SourceError(f"the catalogue is no CSV: {error}") from None
    return found
