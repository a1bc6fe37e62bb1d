"""Refresh the user's table of prices: read, check, and only then put in place of the old one.

[alibaba] the list behind the price page of the China site, in CNY. The page names the version of the list:
g.alicdn.com/aliyun/ecs-price-info/VERSION/price/download/instancePrice.json, as cloudpilot-ai/priceserver
pkg/client/alibabacloud.go reads it. Its keys are REGION::TYPE::NETWORK::OS::OPTIMIZED. Machines on request (gn8v,
gn8is) are not in it, nor spot prices, nor PAI.
[aws] docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-changes.html: one CSV per region, read as it arrives.
Some lines about the list come first, then the header. A region has some 300 MB. Spot prices are in no public list.
[azure] learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices: a hundred meters a page.
[gcp] the table that karpenter-provider-gcp keeps of whole machines; Google's own list needs a key.
[lambda] the catalogue that SkyPilot keeps; Lambda's own list needs a key.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from vramcast.catalogue.instances import instances
from vramcast.catalogue.prices import COLUMNS, HOME_REGIONS, Key, Prices, known_prices, read_prices, user_file
from vramcast.catalogue.tables import read_text
from vramcast.domain.device import Price, Tariff
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName
from vramcast.sources.fetch import read_lines, read_url
from vramcast.sources.files import write_whole


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
            raise SourceError("{!r} is no region", region[:40])
        key = (f"{self.provider}:{name}", region, tariff, self.currency)
        try:
            self.prices[key] = Price(
                per_hour=amount, currency=self.currency, tariff=tariff, region=region, date=self.request.today,
                source=self.source,
            )
        except InvalidSpec as error:
            raise SourceError("{} in {}: {}", key[0], region, error) from None


def number(value: Any, where: str) -> float:
    """A finite number of at least 0 from a number or its text.

    Raises: SourceError naming what it was for
    """
    try:
        amount = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        amount = -1.0
    if not isfinite(amount) or amount < 0:
        raise SourceError("{}: {!r} is no price", where, str(value)[:40])
    return round(amount, 6)


def table(value: Any, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises: SourceError where it is something else
    """
    if not isinstance(value, dict):
        raise SourceError("{} is not an object; the source has changed its format", what)
    return value


def document(content: bytes, source: str) -> dict[str, Any]:
    """A JSON document whose top is an object.

    Raises: SourceError where it is none
    """
    try:
        return table(msgspec.json.decode(content), source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError("{} sends no JSON: {}", source, str(error)[:100]) from None


ALIBABA: Final = "https://www.aliyun.com"
ALIBABA_PAGE: Final = "/price/ecs/ecs-pricing/zh"
ALIBABA_LIST: Final = re.compile(r"(https?:)?(//[a-z0-9.:-]+/aliyun/ecs-price-info/[0-9.]+)", re.ASCII)
ALIBABA_PATH: Final = "/price/download/instancePrice.json"
ALIBABA_HOSTS: Final = ("g.alicdn.com",)

ALIBABA_PAGE_BYTES: Final = 16 << 20
ALIBABA_LIST_BYTES: Final = 256 << 20
ALIBABA_SECONDS: Final = 600.0


def _alibaba(request: Request) -> Found:
    """On-demand prices of Linux machines.

    Raises: SourceError where page or list cannot be _alibaba
    """
    url = _alibaba_list(request.base)
    found = Found("alibaba", "CNY", request, url)
    content = document(read_url(url, most=ALIBABA_LIST_BYTES, seconds=ALIBABA_SECONDS), url)
    for key, value in table(content.get("pricingInfo"), "pricingInfo").items():
        parts = key.split("::")
        if len(parts) >= 4 and parts[3] == "linux" and parts[1] in request.machines:
            found.add(parts[1], parts[0], "on-demand", _hourly(value, key))
    return found


def _alibaba_list(base: str) -> str:
    """The list that the page names, on the host of the lists or of a mirror."""
    page = read_url(base + ALIBABA_PAGE, most=ALIBABA_PAGE_BYTES).decode("utf-8", errors="replace")
    match = ALIBABA_LIST.search(page)
    if match is None:
        raise SourceError("{} names no list of prices; its format has changed", base + ALIBABA_PAGE)
    host = match[2][2:].partition("/")[0]
    if host not in ALIBABA_HOSTS and f"://{host}" not in base:
        raise SourceError("{} leads to an unknown host, {!r}", base + ALIBABA_PAGE, host[:80])
    return (match[1] or "https:") + match[2] + ALIBABA_PATH


def _hourly(value: Any, key: str) -> Any:
    """The price of one hour, 0 where none is listed."""
    hours = table(value, key[:80]).get("hours")
    if not hours:
        return 0
    if not isinstance(hours, list):
        raise SourceError("{}: hours is no list; the source has changed its format", key[:80])
    return table(hours[0], key[:80]).get("price", 0)


AWS: Final = "https://pricing.us-east-1.amazonaws.com"
AWS_PATH: Final = "/offers/v1.0/aws/AmazonEC2/current/{region}/index.csv"

AWS_BYTES: Final = 2 << 30
AWS_SECONDS: Final = 1200.0
LINES_BEFORE_HEADER: Final = 20

AWS_WANTED: Final[dict[str, str]] = {
    "TermType": "OnDemand",
    "Unit": "Hrs",
    "Currency": "USD",
    "Operating System": "Linux",
    "Tenancy": "Shared",
    "CapacityStatus": "Used",
    "Pre Installed S/W": "NA",
}
"""Cells of the rows that are the plain on-demand price of a Linux machine."""

AWS_MARKET: Final = "MarketOption"
"""A column of newer lists: OnDemand, or CapacityBlock for machines that are paid in advance."""


def _aws(request: Request) -> Found:
    """On-demand prices of a few regions.

    Raises: SourceError where a list cannot be _aws
    """
    found = Found("aws", "USD", request, request.base + "/offers/v1.0/aws/AmazonEC2")
    for region in request.regions or (HOME_REGIONS["aws"],):
        url = request.base + AWS_PATH.format(region=region)
        _aws_region(found, region, read_lines(url, most=AWS_BYTES, seconds=AWS_SECONDS))
    return found


def _aws_region(found: Found, region: str, lines: Iterator[str]) -> None:
    rows = csv.reader(lines)
    try:
        columns = _aws_header(rows)
        cells_wanted = AWS_WANTED | {AWS_MARKET: "OnDemand"}
        wanted = [(columns[name], cell) for name, cell in cells_wanted.items() if name in columns]
        name_at, price_at, last = columns["Instance Type"], columns["PricePerUnit"], max(columns.values())
        for cells in rows:
            if len(cells) > last and all(cells[index] == cell for index, cell in wanted):
                found.add(cells[name_at], region, "on-demand", cells[price_at])
    except csv.Error as error:
        raise SourceError("the AWS price list of {} is no CSV: {}", region, error) from None


def _aws_header(rows: Iterator[list[str]]) -> dict[str, int]:
    """Column -> index, from the first line that is a header."""
    needed = {*AWS_WANTED, "Instance Type", "PricePerUnit"}
    for _, cells in zip(range(LINES_BEFORE_HEADER), rows, strict=False):
        if needed <= set(cells):
            return {name: cells.index(name) for name in (*needed, AWS_MARKET) if name in cells}
    raise SourceError("the AWS price list has no header with {}; its format has changed", ", ".join(sorted(needed)))


AZURE: Final = "https://prices.azure.com"
AZURE_PATH: Final = "/api/retail/prices?api-version=2023-01-01-preview&$filter="

AZURE_BYTES: Final = 8 << 20
AZURE_PAGES: Final = 200
NAMES_PER_QUESTION: Final = 10

AZURE_CURRENCY: Final = "USD"
"""What Microsoft sets prices in; figures in other currencies are converted by it, so none is asked for."""


def _azure(request: Request) -> Found:
    """On-demand and spot prices of Linux machines.

    Raises: SourceError where a page cannot be _azure
    """
    found = Found("azure", AZURE_CURRENCY, request, request.base + "/api/retail/prices")
    since: dict[tuple[str, str, Tariff], str] = {}
    names = sorted(request.machines)
    for start in range(0, len(names), NAMES_PER_QUESTION):
        for item in _azure_items(request, names[start : start + NAMES_PER_QUESTION]):
            tariff = _azure_tariff(item)
            if tariff is None:
                continue
            name, region = str(item.get("armSkuName")), str(item.get("armRegionName"))
            effective = str(item.get("effectiveStartDate", ""))
            if effective >= since.get((name, region, tariff), ""):  # an older meter of the same machine may be listed
                since[name, region, tariff] = effective
                found.add(name, region, tariff, item.get("retailPrice"))
    return found


def _azure_items(request: Request, names: list[str]) -> Iterator[dict[str, Any]]:
    """The meters of some machines, page after page of the same host."""
    parts = ["serviceName eq 'Virtual Machines'", "priceType eq 'Consumption'", _any("armSkuName", names)]
    if request.regions:
        parts.append(_any("armRegionName", list(request.regions)))
    url = request.base + AZURE_PATH + quote(" and ".join(parts))
    for _ in range(AZURE_PAGES):
        page = document(read_url(url, most=AZURE_BYTES), request.base)
        items = page.get("Items")
        if not isinstance(items, list):
            raise SourceError("{} lists no Items; the source has changed its format", request.base)
        yield from (table(item, "an item of the Azure prices") for item in items)
        following = page.get("NextPageLink")
        if not following:
            return
        if not isinstance(following, str) or urlsplit(following)[:2] != urlsplit(request.base)[:2]:
            raise SourceError("{} leads on to another host, {!r}", request.base, str(following)[:80])
        url = following
    raise SourceError("{} has more than {} pages", request.base, AZURE_PAGES)


def _any(field: str, values: list[str]) -> str:
    quoted = (value.replace("'", "''") for value in values)
    return "(" + " or ".join(f"{field} eq '{value}'" for value in quoted) + ")"


def _azure_tariff(item: dict[str, Any]) -> Tariff | None:
    """On-demand or spot; None for Windows, low priority, reservations and development prices."""
    words = f"{item.get('productName')} {item.get('skuName')} {item.get('meterName')}"
    plain = item.get("type") == "Consumption" and item.get("unitOfMeasure") == "1 Hour"
    if not plain or item.get("currencyCode") != AZURE_CURRENCY or "Windows" in words or "Low Priority" in words:
        return None
    return "spot" if "Spot" in words else "on-demand"


GITHUB: Final = "https://raw.githubusercontent.com"
GCP_PATH: Final = "/cloudpilot-ai/karpenter-provider-gcp/main/pkg/providers/pricing/initial-prices.json"

GCP_BYTES: Final = 32 << 20

GCP_TARIFFS: Final[tuple[tuple[str, Tariff], ...]] = (("on_demand", "on-demand"), ("spot", "spot"))


def _gcp(request: Request) -> Found:
    """On-demand and spot prices.

    Raises: SourceError where the table cannot be _gcp
    """
    found = Found("gcp", "USD", request, request.base + GCP_PATH)
    content = document(read_url(request.base + GCP_PATH, most=GCP_BYTES), request.base)
    for region, by_tariff in table(content.get("prices"), "prices").items():
        for key, tariff in GCP_TARIFFS:
            for name, per_hour in table(table(by_tariff, region).get(key) or {}, f"{region} {key}").items():
                found.add(name, region, tariff, per_hour)
    return found


LAMBDA_PATH: Final = "/skypilot-org/skypilot-catalog/master/catalogs/v8/lambda/vms.csv"

LAMBDA_BYTES: Final = 8 << 20
LAMBDA_COLUMNS: Final = ("InstanceType", "Price", "Region")


def _lambda(request: Request) -> Found:
    """On-demand prices.

    Raises: SourceError where the catalogue cannot be _lambda
    """
    found = Found("lambda", "USD", request, request.base + LAMBDA_PATH)
    text = read_url(request.base + LAMBDA_PATH, most=LAMBDA_BYTES).decode("utf-8", errors="replace")
    try:
        rows = csv.DictReader(text.splitlines())
        if not set(LAMBDA_COLUMNS) <= set(rows.fieldnames or ()):
            raise SourceError("the catalogue lacks one of {}; its format has changed", ", ".join(LAMBDA_COLUMNS))
        for row in rows:
            found.add(row["InstanceType"] or "", row["Region"] or "", "on-demand", row["Price"] or 0)
    except csv.Error as error:
        raise SourceError("the catalogue is no CSV: {}", error) from None
    return found


SOURCES: Final[dict[str, tuple[str, Callable[[Request], Found]]]] = {
    "alibaba": (ALIBABA, _alibaba),
    "aws": (AWS, _aws),
    "azure": (AZURE, _azure),
    "gcp": (GITHUB, _gcp),
    "lambda": (GITHUB, _lambda),
}
"""Providers with a public list: where it is, and who reads it."""


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
