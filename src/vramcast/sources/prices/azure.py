"""Azure: the retail prices API, which needs no key and gives a hundred meters a page.

[api] learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlsplit

from vramcast.domain.price import Tariff
from vramcast.errors import SourceError
from vramcast.sources.fetch import read_url
from vramcast.sources.prices.found import Found, Request, document, table

BASE: Final = "https://prices.azure.com"
PATH: Final = "/api/retail/prices?api-version=2023-01-01-preview&$filter="

MOST_BYTES: Final = 8 << 20
MOST_PAGES: Final = 200
NAMES_PER_QUESTION: Final = 10

CURRENCY: Final = "USD"
"""What Microsoft sets prices in; figures in other currencies are converted by it, so none is asked for."""


def read(request: Request) -> Found:
    """On-demand and spot prices of Linux machines.

    Raises: SourceError where a page cannot be read
    """
    found = Found("azure", CURRENCY, request, request.base + "/api/retail/prices")
    since: dict[tuple[str, str, Tariff], str] = {}
    names = sorted(request.machines)
    for start in range(0, len(names), NAMES_PER_QUESTION):
        for item in _items(request, names[start : start + NAMES_PER_QUESTION]):
            tariff = _tariff(item)
            if tariff is None:
                continue
            name, region = str(item.get("armSkuName")), str(item.get("armRegionName"))
            effective = str(item.get("effectiveStartDate", ""))
            if effective >= since.get((name, region, tariff), ""):  # an older meter of the same machine may be listed
                since[name, region, tariff] = effective
                found.add(name, region, tariff, item.get("retailPrice"))
    return found


def _items(request: Request, names: list[str]) -> Iterator[dict[str, Any]]:
    """The meters of some machines, page after page of the same host."""
    parts = ["serviceName eq 'Virtual Machines'", "priceType eq 'Consumption'", _any("armSkuName", names)]
    if request.regions:
        parts.append(_any("armRegionName", list(request.regions)))
    url = request.base + PATH + quote(" and ".join(parts))
    for _ in range(MOST_PAGES):
        page = document(read_url(url, most=MOST_BYTES), request.base)
        items = page.get("Items")
        if not isinstance(items, list):
            raise SourceError(f"{request.base} lists no Items; the source has changed its format")
        yield from (table(item, "an item of the Azure prices") for item in items)
        following = page.get("NextPageLink")
        if not following:
            return
        if not isinstance(following, str) or urlsplit(following)[:2] != urlsplit(request.base)[:2]:
            raise SourceError(f"{request.base} leads on to another host, {str(following)[:80]!r}")
        url = following
    raise SourceError(f"{request.base} has more than {MOST_PAGES} pages")


def _any(field: str, values: list[str]) -> str:
    quoted = (value.replace("'", "''") for value in values)
    return "(" + " or ".join(f"{field} eq '{value}'" for value in quoted) + ")"


def _tariff(item: dict[str, Any]) -> Tariff | None:
    """On-demand or spot; None for Windows, low priority, reservations and development prices."""
    words = f"{item.get('productName')} {item.get('skuName')} {item.get('meterName')}"
    plain = item.get("type") == "Consumption" and item.get("unitOfMeasure") == "1 Hour"
    if not plain or item.get("currencyCode") != CURRENCY or "Windows" in words or "Low Priority" in words:
        return None
    return "spot" if "Spot" in words else "on-demand"
