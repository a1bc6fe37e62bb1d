"""Alibaba Cloud: the list behind the price page of the China site, in CNY; it needs no key.

[list] The page names the version of the list: g.alicdn.com/aliyun/ecs-price-info/VERSION/price/download/
instancePrice.json, as cloudpilot-ai/priceserver pkg/client/alibabacloud.go reads it. Its keys are
REGION::TYPE::NETWORK::OS::OPTIMIZED. Machines on request (gn8v, gn8is) are not in it, nor spot prices, nor PAI.
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.errors import SourceError
from vramcast.sources.fetch import read_url
from vramcast.sources.prices.found import Found, Request, document, table

BASE: Final = "https://www.aliyun.com"
PAGE: Final = "/price/ecs/ecs-pricing/zh"
LIST: Final = re.compile(r"(https?:)?(//[a-z0-9.:-]+/aliyun/ecs-price-info/[0-9.]+)", re.ASCII)
PATH: Final = "/price/download/instancePrice.json"
LIST_HOSTS: Final = ("g.alicdn.com",)

MOST_PAGE_BYTES: Final = 16 << 20
MOST_BYTES: Final = 256 << 20
MOST_SECONDS: Final = 600.0


def read(request: Request) -> Found:
    """On-demand prices of Linux machines.

    Raises: SourceError where page or list cannot be read
    """
    url = _list_address(request.base)
    found = Found("alibaba", "CNY", request, url)
    content = document(read_url(url, most=MOST_BYTES, seconds=MOST_SECONDS), url)
    for key, value in table(content.get("pricingInfo"), "pricingInfo").items():
        parts = key.split("::")
        if len(parts) >= 4 and parts[3] == "linux" and parts[1] in request.machines:
            found.add(parts[1], parts[0], "on-demand", _hourly(value, key))
    return found


def _list_address(base: str) -> str:
    """The list that the page names, on the host of the lists or of a mirror."""
    page = read_url(base + PAGE, most=MOST_PAGE_BYTES).decode("utf-8", errors="replace")
    match = LIST.search(page)
    if match is None:
        raise SourceError(f"{base + PAGE} names no list of prices; its format has changed")
    host = match[2][2:].partition("/")[0]
    if host not in LIST_HOSTS and f"://{host}" not in base:
        raise SourceError(f"{base + PAGE} leads to an unknown host, {host[:80]!r}")
    return (match[1] or "https:") + match[2] + PATH


def _hourly(value: Any, key: str) -> Any:
    """The price of one hour, 0 where none is listed."""
    hours = table(value, key[:80]).get("hours")
    if not hours:
        return 0
    if not isinstance(hours, list):
        raise SourceError(f"{key[:80]}: hours is no list; the source has changed its format")
    return table(hours[0], key[:80]).get("price", 0)
