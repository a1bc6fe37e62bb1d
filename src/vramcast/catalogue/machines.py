"""Machines with their prices, filtered, sorted and set side by side; what a search looks at, told `--on TEXT`.

    8xh100-sxm-80gb          eight such cards in one machine
    h100                     that card: every machine that has it, and boxes of 1, 2, 4 and 8
    aws   alibaba   any      every machine of a provider, of all of them
    aws:p5.48xlarge   mybox  that machine
    h100,aws:p5.48xlarge     several, separated by commas
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.clusters import (
    NO_MARKET,
    Market,
    PriceLists,
    own_clusters,
    price_lists,
    priced,
    resolve,
    with_held,
)
from vramcast.catalogue.gpus import NODE_CARDS_BY_GPU, load_gpu, resolve_gpu
from vramcast.catalogue.instances import PROVIDERS, Instance, instances, load_instance
from vramcast.domain.device import Cluster
from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.units import GB

AMOUNT: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]{3})", re.IGNORECASE)


class Machine(Noun, frozen=True):
    """One type of machine, with its price, and its row where it is one of the catalogue."""

    KEYS = (
        "name", "gpu", ("gpus", "cluster.gpus_per_node"), "machines", "slices_of_a_card",
        ("visible_bytes", "cluster.gpu.visible_bytes"), "link", ("link_bytes_per_s", "cluster.gpu.link_bytes_per_s"),
        ("network_bytes_per_s", "cluster.network.bytes_per_s"), ("rdma", "cluster.network.rdma"),
        ("host_bytes", "cluster.host_bytes"), ("nvme_bytes", "cluster.nvme_bytes"), ("vcpus", "row.vcpus"),
        ("price", "cluster.price"), ("note", "row.note"), ("source", "row.source"), ("checked", "row.checked"),
        ("confidence", "row.confidence"),
    )
    SHOWN = ("gpus",)

    cluster: Cluster  # one machine
    row: Instance | None = None
    wanted: str = ""  # the kind of price that it lacks, where it has others: "EUR spot, eastus"

    @property
    def name(self) -> str:
        """As `--gpus` takes it."""
        return str(self.cluster.instance)

    @property
    def gpu(self) -> str:
        """The card that it has, or slices of."""
        return self.row.gpu if self.row else self.cluster.gpu.name

    @property
    def machines(self) -> int | None:
        """Of a user's own cluster."""
        return None if self.row else self.cluster.num_nodes

    @property
    def slices_of_a_card(self) -> int | None:
        """One of which it has, where it has less than a card."""
        return self.row.parts if self.row and self.row.parts > 1 else None

    @property
    def link(self) -> str:
        """Between its cards."""
        return self.cluster.gpu.link or "PCIe"

    @property
    def memory_bytes(self) -> int:
        """What processes can use of all its cards."""
        return self.cluster.gpu.visible_bytes * self.cluster.gpus_per_node


class Filter(Noun, frozen=True, kw_only=True):
    """What a machine must be like. None: anything."""

    provider: str | None = None
    gpu: str | None = None
    min_memory_gb: float | None = None  # usable, of all cards together
    max_price: str | None = None  # "98.32usd" an hour
    priced: bool = False

    @property
    def asks(self) -> bool:
        """Whether it leaves anything out."""
        return self != Filter()


SORTS: Final[dict[str, Callable[[Machine], tuple[Any, ...]]]] = {
    "price": lambda machine: _price_key(machine, 1),
    "price-per-gpu": lambda machine: _price_key(machine, machine.cluster.gpus_per_node),
    "memory": lambda machine: (-machine.memory_bytes,),
    "gpus": lambda machine: (-machine.cluster.gpus_per_node,),
    "name": lambda machine: (machine.name,),
}
"""Orders; the catalogue's own stays among equals."""


def listed(names: tuple[str, ...], chosen: Filter, market: Market, *, sort: str | None = None) -> list[Machine]:
    """Machines whose name or card holds one of the names, and that are as the filter wants them.

    Raises: UnknownName for a provider, card or order that there is not, InvalidSpec for a price that reads like none
    """
    fits = _conditions(chosen)
    machines = [machine for machine in all_machines(market) if _named(machine, names) and fits(machine)]
    if sort is None:
        return machines
    if sort not in SORTS:
        raise UnknownName.of("order", sort, SORTS)
    return sorted(machines, key=SORTS[sort])


def compared(names: tuple[str, ...], market: Market) -> list[Machine] | None:
    """The machines of whole names, to set side by side; None where a name is only part of one."""
    own, lists = own_clusters(market), price_lists(market)
    found: list[Machine] = []
    for name in names:
        if name.lower() in own:
            found.append(_machine(own[name.lower()], None, market, lists))
            continue
        try:
            row = load_instance(name)
        except UnknownName:
            return None
        found.append(_machine(row.cluster(), row, market, lists))
    return found or None


def all_machines(market: Market) -> list[Machine]:
    """The user's own clusters, then the catalogue."""
    lists = price_lists(market)
    own = [_machine(cluster, None, market, lists) for cluster in own_clusters(market).values()]
    return own + [_machine(row.cluster(), row, market, lists) for row in instances()]


def _machine(cluster: Cluster, row: Instance | None, market: Market, lists: PriceLists) -> Machine:
    """With the price wanted; where there are only others, with the kind that there is none of."""
    found = priced(cluster, market, lists)
    name = str(cluster.instance)
    others = cluster.price is not None or bool(lists.own.of(name) or lists.known.of(name))
    return Machine(cluster=found, row=row, wanted=market.kind if found.price is None and others else "")


def _named(machine: Machine, names: tuple[str, ...]) -> bool:
    where = f"{machine.name} {machine.cluster.gpu.name}".lower()
    return not names or any(name.lower() in where for name in names)


def _conditions(chosen: Filter) -> Callable[[Machine], bool]:
    """One test of a machine from all parts of a filter, each checked before any machine is."""
    if chosen.provider is not None and chosen.provider not in PROVIDERS:
        raise UnknownName.of("provider", chosen.provider, PROVIDERS)
    card = None if chosen.gpu is None else resolve_gpu(chosen.gpu)
    limit = None if chosen.max_price is None else _amount(chosen.max_price)
    least = (chosen.min_memory_gb or 0) * GB

    def fits(machine: Machine) -> bool:
        row, price = machine.row, machine.cluster.price
        return (
            (chosen.provider is None or (row is not None and row.provider == chosen.provider))
            and (card is None or card == machine.gpu)
            and machine.memory_bytes >= least
            and (price is not None or not (chosen.priced or limit))
            and (limit is None or (price is not None and price.currency == limit[1] and price.per_hour <= limit[0]))
        )

    return fits


def _amount(text: str) -> tuple[float, str]:
    match = AMOUNT.fullmatch(text.strip())
    if match is None:
        raise InvalidSpec("price={!r} must name its currency, for example 40usd (per machine and hour)", text[:40])
    return float(match[1]), match[2].upper()


def _price_key(machine: Machine, parts: int) -> tuple[Any, ...]:
    """Within a currency by price; machines without one last."""
    price = machine.cluster.price
    return (price is None, price.currency if price else "", price.per_hour / parts if price else 0.0)


ANY: Final = "any"

BOXES: Final = (1, 2, 4, 8)
"""Cards of a machine that a search looks at where it is only told which card."""

MOST_NAMES: Final = 64
"""Names in one text; more is a mistake."""


class Offer(NamedTuple):
    """Machines of one kind, and how many of them there can be."""

    machine: Cluster  # one of them, with its price
    counts: tuple[int, ...]  # numbers of machines to look at; empty: the search chooses


def offers(text: str, market: Market = NO_MARKET) -> tuple[Offer, ...]:
    """What a text lets a search choose from: every machine once, in the order of the text.

    Args:
        text: names separated by commas
        market: how machines are priced, and the user's own ones; a machine without such a price has none

    Raises: UnknownName or InvalidSpec for a name that stands for nothing, InvalidSpec where prices of a certain kind
        are asked for and no machine has one, SourceError for a wrong row of a user's file
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(names) > MOST_NAMES:
        raise InvalidSpec(
            "--on {!r} must name what to search over, for example 8xh100-sxm-80gb, h100, aws, aws:p5.48xlarge or any",
            text[:60]
        )
    own = own_clusters(market)
    found: dict[str, Offer] = {}
    for name in names:
        for offer in _offers_named(name, own):
            before = found.setdefault(offer.machine.name, offer)
            both = () if not (before.counts and offer.counts) else tuple(sorted({*before.counts, *offer.counts}))
            found[offer.machine.name] = Offer(before.machine, both)
    lists = price_lists(market)
    offered = tuple(
        Offer(with_held(priced(offer.machine, market, lists), market.used), offer.counts) for offer in found.values()
    )
    if market.asks and all(offer.machine.price is None for offer in offered):
        priced(next(iter(found.values())).machine, market, lists, strict=True)
    return offered


def _offers_named(name: str, own: dict[str, Cluster]) -> Iterator[Offer]:
    word = name.lower()
    if word in own:
        yield _own(own[word])
    elif word == ANY:
        yield from (Offer(machine.cluster(), ()) for machine in instances())
        yield from map(_own, own.values())
    elif word in PROVIDERS:
        yield from (Offer(machine.cluster(), ()) for machine in instances() if machine.provider == word)
    else:
        yield from _with_card(name) or [_machine_offer(name, own)]


def _own(cluster: Cluster) -> Offer:
    """An own cluster: as many of its machines as there are, or fewer."""
    return Offer(replace(cluster, num_nodes=1), tuple(range(1, cluster.num_nodes + 1)))


def _machine_offer(name: str, own: dict[str, Cluster]) -> Offer:
    """One type of machine: as many as the search likes, or as many as the text says."""
    try:
        return Offer(load_instance(name).cluster(), ())
    except UnknownName:
        cluster = resolve(name, own)
    return Offer(replace(cluster, num_nodes=1), (cluster.num_nodes,))


def _with_card(name: str) -> list[Offer]:
    """Boxes and machines with a card, where a name without a count stands for one."""
    try:
        card = resolve_gpu(name)
    except UnknownName:
        return []
    sizes = sorted({*BOXES, NODE_CARDS_BY_GPU.get(card, BOXES[-1])})
    boxes = [Offer(Cluster(gpu=load_gpu(card), gpus_per_node=size), ()) for size in sizes]
    return boxes + [
        Offer(machine.cluster(), ()) for machine in instances() if machine.gpu == card and machine.parts == 1
    ]
