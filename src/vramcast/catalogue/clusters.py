"""What `--gpus` names: cards, machines for rent, own clusters; with network, host memory and price.

    8xh100-sxm-80gb   64xh100   2x8xa100     cards
    aws:p5.48xlarge   4xaws:p5.48xlarge   p5.48xlarge   ecs.gn7i-c16g1.4xlarge     machines
    8xgu8t                                   cards under a PAI code
    mybox   2xmybox                          machines of a file of own hardware
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast import catalogue
from vramcast.catalogue import gpu_texts
from vramcast.catalogue.gpu_texts import parse_gpus
from vramcast.domain.device import Cluster, Price, Tariff
from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName, VramcastError
from vramcast.lazy import lazy_pattern
from vramcast.units import format_bytes

if TYPE_CHECKING:
    from vramcast.catalogue.prices import Prices

MACHINES: Final = lazy_pattern(r"(\d{1,7})(?:\s*[x*×]\s*|\s+)(.+)", re.IGNORECASE)
"""A number of machines and what they are."""

CURRENCIES: Final = frozenset(filter(None, re.split(r"\s+", """
    AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD
    CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ
    GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR
    LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN
    PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB
    TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG
""")))
"""Currencies of ISO 4217."""

RENTED: Final = lazy_pattern(r"(?:\d{1,7}\s*[x*×]\s*)?([a-z]+):", re.IGNORECASE)
"""A machine with its provider."""

COUNTS: Final = r"(?:\d{1,7}\s*[x*×]\s*){1,2}"
"""Numbers of machines and of cards before the name of a card."""


class Market(Noun, frozen=True, kw_only=True):
    """How a question prices machines, and what it knows of its own ones."""

    price: str | None = None  # "2.5usd" a card and hour, "98.32usd/node" a machine and hour
    spot: bool = False
    region: str | None = None
    currency: str | None = None  # prices in another one are not used
    prices: str | None = None  # path of a table like prices.csv
    hardware: str | None = None  # path of a file of own clusters
    used: int = 0  # bytes of each card that others hold

    def __post_init__(self) -> None:
        if self.currency is not None and self.currency not in CURRENCIES:
            raise InvalidSpec("currency={!r} must be an ISO 4217 code such as USD or CNY", self.currency[:20])

    @property
    def asks(self) -> bool:
        """Whether prices of a certain kind are wanted."""
        return bool(self.spot or self.region or self.currency)

    @property
    def kind(self) -> str:
        """The kind of prices wanted, as far as it is not the usual: "EUR spot, eastus"."""
        kind = " ".join(filter(None, (self.currency, "spot" if self.spot else "")))
        return ", ".join(filter(None, (kind, self.region)))

    @property
    def tariff(self) -> Tariff:
        """Spot or on-demand."""
        return "spot" if self.spot else "on-demand"


NO_MARKET: Final = Market()


def cluster_of(text: str, market: Market = NO_MARKET) -> Cluster:
    """The cluster that a text names, with its price as far as one is known.

    Raises: InvalidSpec or UnknownName for a text that names none, InvalidSpec where a price asked for is not known,
        SourceError naming file and line for a wrong row of the user's files
    """
    return with_held(priced(resolve(text, own_clusters(market)), market, strict=True), market.used)


def with_held(cluster: Cluster, held_bytes: int) -> Cluster:
    """The cluster with memory of each card in the hands of others.

    Raises: InvalidSpec where nothing is left
    """
    if not held_bytes:
        return cluster
    if held_bytes >= cluster.gpu.visible_bytes:
        raise InvalidSpec(
            "used={} leaves nothing of the {} of {}; give less",
            format_bytes(held_bytes), format_bytes(cluster.gpu.visible_bytes), cluster.gpu.name
        )
    return replace(cluster, gpu=replace(cluster.gpu, held_bytes=held_bytes))


def taken(text: object) -> tuple[str, ...]:
    """Which cards the names in a text are taken for, where several are called so; nothing of what names no cards."""
    try:
        return gpu_texts.taken(text) if isinstance(text, str) else ()
    except VramcastError:
        return ()


def own_clusters(market: Market) -> dict[str, Cluster]:
    """The clusters of the user's file by name in lower case."""
    if market.hardware is None:
        return {}

    return {name.lower(): cluster for name, cluster in catalogue.given.read_clusters(Path(market.hardware)).items()}


def resolve(text: str, own: dict[str, Cluster]) -> Cluster:
    """The cluster of a text, without a price from the catalogue.

    Raises: InvalidSpec or UnknownName for a text that names none
    """
    if text.strip().lower() in own:
        return own[text.strip().lower()]
    match = MACHINES.fullmatch(text.strip())
    count, name = (int(match[1]), match[2]) if match else (1, text)
    if name.strip().lower() in own:
        return _some_of(own[name.strip().lower()], count)
    if text.strip().lower() == "here":
        raise InvalidSpec("the command line alone reads which cards are here; name them, for example 4090 or 24gb")
    rented = RENTED.match(text.strip())
    if rented is not None and rented[1].lower() in catalogue.instances.PROVIDERS:
        return _machines(text)
    try:
        return parse_gpus(text)
    except UnknownName as unknown:
        return _coded(text) or _machines(text, unknown)
    except InvalidSpec as wrong:
        return _machines(text, wrong)


def _some_of(cluster: Cluster, count: int) -> Cluster:
    if not 1 <= count <= cluster.num_nodes:
        raise InvalidSpec("{} has {} machines, {} are asked for", cluster.instance, cluster.num_nodes, count)
    return replace(cluster, num_nodes=count)


def _coded(text: str) -> Cluster | None:
    """Cards under a code of PAI."""
    numbers = re.match(COUNTS, text.strip(), re.IGNORECASE)
    before = numbers[0] if numbers else ""
    found = catalogue.instances.card_of_code(text.strip()[len(before) :])
    if found is None:
        return None
    return replace(parse_gpus(before + found[0]), notes=(found[1],))


def _machines(text: str, otherwise: VramcastError | None = None) -> Cluster:
    """A machine's name, or a number of machines; names of machines may begin with a number themselves."""
    try:
        return catalogue.instances.load_instance(text).cluster()
    except UnknownName as unknown:
        match = MACHINES.fullmatch(text.strip())
        if match is None:
            raise _nearer(unknown, otherwise) from None
    try:
        return catalogue.instances.load_instance(match[2]).cluster(int(match[1]))
    except UnknownName as unknown:
        raise _nearer(unknown, otherwise) from None


def _nearer(unknown: UnknownName, otherwise: VramcastError | None) -> VramcastError:
    """The error that says more: the one of the cards, unless no card's name comes near and a machine's does."""
    if otherwise is None:
        return unknown
    near = isinstance(otherwise, UnknownName) and "did you mean" not in str(otherwise)
    return unknown if near and "did you mean" in str(unknown) else otherwise


class PriceLists(Struct, frozen=True):
    """The tables a price is looked up in."""

    own: Prices  # the user's; it wins
    known: Prices  # shipped and refreshed


def price_lists(market: Market) -> PriceLists:
    """The user's table and the known ones.

    Raises: SourceError naming file and line for a wrong row
    """
    prices = catalogue.prices
    return PriceLists(own_prices(market) if market.prices is not None else prices.Prices({}), prices.known_prices())


def priced(cluster: Cluster, market: Market, lists: PriceLists | None = None, *, strict: bool = False) -> Cluster:
    """The cluster with the price of one machine.

    Args:
        cluster: as resolved
        market: tariff, region, currency, the user's own price and tables
        lists: what to look prices up in; read where a list is needed and none is given
        strict: refuse where a price is asked for in so many words and none is known

    Raises: InvalidSpec where strict and there is no such price
    """
    if market.price is not None:
        return replace(cluster, price=_given(market.price, cluster, market))
    asked = market.asks
    if market.prices is not None and lists is None:
        lists = price_lists(market)  # a file that is not there is refused, whatever is priced
    if cluster.instance is None:
        if asked and strict:
            raise InvalidSpec(
                "{} has no list price; name a machine such as aws:p5.48xlarge, or give --price 2.5usd", cluster.name
            )
        return cluster
    lists = lists or price_lists(market)
    found = _listed(cluster, market, lists)
    if found is not None:
        return replace(cluster, price=found)
    if asked and strict:
        raise InvalidSpec(_why_not(cluster.instance, market, lists))
    note = _why_not(cluster.instance, market, lists) if asked else Note(
        "no public price of {} is known; give --price, for example --price 2.5usd", cluster.instance
    )
    return replace(cluster, price=None, notes=(*cluster.notes, note))


def _given(text: str, cluster: Cluster, market: Market) -> Price:

    price = catalogue.given.parse_price(
        text, gpus_per_node=cluster.gpus_per_node, tariff=market.tariff, region=market.region or ""
    )
    if market.currency not in (None, price.currency):
        raise InvalidSpec("price={} is not in {}, and nothing is converted", text[:40], market.currency)
    return price


def _listed(cluster: Cluster, market: Market, lists: PriceLists) -> Price | None:
    """The price a user's table has, else that of an own cluster, else that of the catalogue."""
    wanted, instance = catalogue.prices.Wanted(market.tariff, market.region, market.currency), str(cluster.instance)
    found = catalogue.prices.choose(instance, lists.own.of(instance), wanted)
    if found is not None:
        return found
    return catalogue.prices.choose(instance, [cluster.price] if cluster.price else lists.known.of(instance), wanted)


def own_prices(market: Market) -> catalogue.prices.Prices:
    """The table of prices that the user names; a machine may be written as `--gpus` takes it.

    Raises: SourceError naming file and line for a wrong row, and for a machine that nobody knows
    """
    path, own = Path(str(market.prices)), own_clusters(market)
    named = {}
    for key, row in catalogue.prices.read_prices(catalogue.tables.read_text(path), file=str(path)).rows.items():
        cluster = own.get(key[0].lower())
        try:
            name = str(cluster.instance) if cluster else catalogue.instances.load_instance(key[0]).full_name
        except VramcastError as error:
            raise SourceError("{}: {}", row.where, error) from None
        named[(name, *key[1:])] = row
    return catalogue.prices.Prices(named)


def _why_not(instance: str, market: Market, lists: PriceLists) -> str:
    """What prices of a machine there are instead of the one asked for."""
    known = [*lists.own.of(instance), *lists.known.of(instance)]
    parts = [market.tariff, *(part for part in (market.region, market.currency) if part)]
    asked = Note("no price of {} is known for {}", instance, ', '.join(parts))
    if not known:
        return Note("{}, nor any other; give --price, for example --price 2.5usd", asked)
    tariffs = ", ".join(sorted({f"{price.tariff} in {price.currency}" for price in known}))
    regions = sorted({price.region for price in known if price.tariff == market.tariff})
    where = Note(" ({})", ', '.join(regions[:12])) if market.region and regions else ""
    return Note("{}; known are {}{}; no currency is converted, --price takes your own", asked, tariffs, where)
