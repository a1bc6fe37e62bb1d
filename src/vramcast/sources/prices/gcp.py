"""Google Cloud: the table that karpenter-provider-gcp keeps of whole machines; Google's own list needs a key."""

from __future__ import annotations

from typing import Final

from vramcast.domain.price import Tariff
from vramcast.sources.fetch import read_url
from vramcast.sources.prices.found import Found, Request, document, table

BASE: Final = "https://raw.githubusercontent.com"
PATH: Final = "/cloudpilot-ai/karpenter-provider-gcp/main/pkg/providers/pricing/initial-prices.json"

MOST_BYTES: Final = 32 << 20

TARIFFS: Final[tuple[tuple[str, Tariff], ...]] = (("on_demand", "on-demand"), ("spot", "spot"))


def read(request: Request) -> Found:
    """On-demand and spot prices.

    Raises: SourceError where the table cannot be read
    """
    found = Found("gcp", "USD", request, request.base + PATH)
    content = document(read_url(request.base + PATH, most=MOST_BYTES), request.base)
    for region, by_tariff in table(content.get("prices"), "prices").items():
        for key, tariff in TARIFFS:
            for name, per_hour in table(table(by_tariff, region).get(key) or {}, f"{region} {key}").items():
                found.add(name, region, tariff, per_hour)
    return found
