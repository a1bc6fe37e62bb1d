"""What users say about their own machines: prices on the command line, clusters in a file.

    [clusters.mybox]                  # vramcast train MODEL --hardware boxes.toml --gpus mybox
    gpu = "h100-sxm-80gb"
    gpus_per_node = 8
    num_nodes = 4
    network_gb_per_s = 400            # of one machine, one direction, all adapters together
    rdma = "InfiniBand"
    host_memory_gib = 2048
    price = "2.10usd"                 # per card and hour; "16.80usd/node" per machine
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from vramcast import catalogue
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.tables import DATE, NoDocument, parse_toml, read_text
from vramcast.domain.device import TOPOLOGIES, UNBOUNDED, Cluster, Network, Price, Tariff
from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.units import GB, GIB

GIVEN_PRICE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]{3})(?:/(gpu|card|node|machine))?", re.IGNORECASE)
PER_MACHINE: Final = ("node", "machine")

NAME: Final = re.compile(r"[a-z][a-z0-9._-]{0,63}", re.IGNORECASE)
"""Letters first, so that a count can stand before it."""

RDMA_KINDS: Final = ("InfiniBand", "RoCE", "EFA", "eRDMA")


class OwnCluster(Noun, frozen=True, kw_only=True):
    """The keys of one cluster in a file of own hardware."""

    gpu: str
    gpus_per_node: int
    num_nodes: int = 1
    network_gb_per_s: float | None = None
    rdma: str | None = None
    link: str | None = None  # between the cards of a machine; by default as the card's data sheet says
    link_gb_per_s: float | None = None
    link_topology: str | None = None  # key of `TOPOLOGIES`; by default the card's usual one
    link_cards: int | None = None  # that a link of that topology joins
    host_memory_gib: float | None = None
    nvme_gb: float | None = None
    price: str | None = None
    region: str = ""
    price_date: str = ""


def parse_price(text: str, *, gpus_per_node: int, tariff: Tariff = "on-demand", region: str = "") -> Price:
    """The price of one machine as a user writes it: per card and hour, or per machine.

    >>> parse_price("2.5usd", gpus_per_node=8).per_hour, parse_price("98.32 USD/node", gpus_per_node=8).per_hour
    (20.0, 98.32)
    """
    match = GIVEN_PRICE.fullmatch(text.strip())
    if match is None:
        raise InvalidSpec(
            "price={!r} must read like 2.5usd (per GPU and hour) or 98.32usd/node (per machine and hour)", text[:40]
        )
    per_hour = float(match[1]) * (1 if (match[3] or "").lower() in PER_MACHINE else gpus_per_node)
    return Price(per_hour=per_hour, currency=match[2].upper(), tariff=tariff, region=region, source="given by the user")


def read_clusters(path: Path) -> dict[str, Cluster]:
    """The clusters of a file of own hardware, by name.

    Raises: SourceError naming file and line
    """
    text = read_text(path)
    try:
        document = parse_toml(text)
    except NoDocument as error:
        raise SourceError("{}: not TOML: {}", path, error) from None
    tables = document.pop("clusters", None)
    if document:
        raise SourceError("{}: line {}: only [clusters.NAME] tables are read", path, _line(text, next(iter(document))))
    if not isinstance(tables, dict) or not tables:
        raise SourceError("{}: no cluster in it; begin with [clusters.mybox] and gpu = \"h100-sxm-80gb\"", path)
    return {name: _cluster(name, table, text, path) for name, table in tables.items()}


def _cluster(name: str, table: Any, text: str, path: Path) -> Cluster:
    try:
        if not NAME.fullmatch(name):
            raise InvalidSpec("a cluster's name has letters, digits, '.', '_' and '-', a letter first")
        own = msgspec.convert(table, OwnCluster)
        return _built(name, own)
    except msgspec.ValidationError as error:
        message = str(error)
        field = re.search(r"`\$\.(\w+)`", message) or re.search(r"unknown field `(\w+)`", message)
        line = _line(text, name, field[1] if field else "")
        raise SourceError("{}: line {}: cluster {}: {}", path, line, name[:64], message[:200]) from None
    except (InvalidSpec, UnknownName) as error:
        raise SourceError("{}: line {}: cluster {}: {}", path, _line(text, name), name[:64], error) from None


def _built(name: str, own: OwnCluster) -> Cluster:

    for field in ("network_gb_per_s", "link_gb_per_s", "host_memory_gib", "nvme_gb"):
        value = getattr(own, field)
        if value is not None and not 0 < value < 1e9:
            raise InvalidSpec("{}={!r} must be more than 0", field, value)
    if own.rdma is not None and (own.rdma not in RDMA_KINDS or own.network_gb_per_s is None):
        raise InvalidSpec("rdma={!r} must be one of {}, with network_gb_per_s", own.rdma[:40], ", ".join(RDMA_KINDS))
    if (own.link is None) != (own.link_gb_per_s is None) or not re.fullmatch(r"(?!PCIe).*|PCIe[3-6]", own.link or ""):
        raise InvalidSpec("link and link_gb_per_s must be given together; PCIe with its generation, for example PCIe4")
    _check_topology(own)
    if own.price_date and not DATE.fullmatch(own.price_date):
        raise InvalidSpec("price_date={!r} must be a date like 2026-11-20", own.price_date[:40])
    price = None if own.price is None else parse_price(own.price, gpus_per_node=own.gpus_per_node, region=own.region)
    if price is not None and own.price_date:
        price = replace(price, date=own.price_date)
    return Cluster(
        gpu=catalogue.instances.linked(
            load_gpu(own.gpu), own.link, _scaled(own.link_gb_per_s, GB), own.link_topology,
            () if own.link_cards is None else (own.link_cards,),
        ),
        gpus_per_node=own.gpus_per_node,
        num_nodes=own.num_nodes,
        instance=name,
        network=_network(own),
        host_bytes=_scaled(own.host_memory_gib, GIB),
        nvme_bytes=_scaled(own.nvme_gb, GB),
        price=price,
    )


def _check_topology(own: OwnCluster) -> None:
    topology, cards = own.link_topology, own.link_cards
    if topology is not None and (topology not in TOPOLOGIES or own.link is None or own.link.startswith("PCIe")):
        raise InvalidSpec(
            "link_topology={!r} must be one of {}, with a link that is not PCIe", topology[:40], ", ".join(TOPOLOGIES)
        )
    if (cards is None) != (topology is None or topology in UNBOUNDED) or (cards is not None and cards < 2):
        raise InvalidSpec("link_cards must be at least 2 and stand with a link_topology other than switch")


def _network(own: OwnCluster) -> Network | None:
    rate = _scaled(own.network_gb_per_s, GB)
    return None if rate is None else Network(bytes_per_s=rate, rdma=own.rdma, source="given by the user")


def _scaled(value: float | None, unit: int) -> int | None:
    return None if value is None else round(value * unit)


def _line(text: str, name: str, key: str = "") -> int:
    """Where a table, or a key of it, stands in a file."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if re.search(rf"\b{re.escape(name)}\b", line)), 0)
    if key:
        for number, line in enumerate(lines[start:], start):
            if re.match(rf"\s*{re.escape(key)}\s*=", line):
                return number + 1
    return start + 1
