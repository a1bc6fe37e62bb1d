"""Machines with their prices, filtered, sorted and set side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from vramcast.catalogue.clusters import Market, PriceLists, own_clusters, price_lists, priced
from vramcast.catalogue.gpus import resolve_gpu
from vramcast.catalogue.instances import PROVIDERS, Instance, instances, load_instance
from vramcast.domain.device import Cluster
from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.units import GB

AMOUNT: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]{3})", re.IGNORECASE)


class Machine(NamedTuple):
    """One type of machine, with its price, and its row where it is one of the catalogue."""

    cluster: Cluster  # one machine
    row: Instance | None = None
    wanted: str = ""  # the kind of price that it lacks, where it has others: "EUR spot, eastus"

    @property
    def name(self) -> str:
        """As `--gpus` takes it."""
        return str(self.cluster.instance)

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
    return Machine(found, row, market.kind if found.price is None and others else "")


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
            and (card is None or card == (row.gpu if row else machine.cluster.gpu.name))
            and machine.memory_bytes >= least
            and (price is not None or not (chosen.priced or limit))
            and (limit is None or (price is not None and price.currency == limit[1] and price.per_hour <= limit[0]))
        )

    return fits


def _amount(text: str) -> tuple[float, str]:
    match = AMOUNT.fullmatch(text.strip())
    if match is None:
        raise InvalidSpec(f"price={text[:40]!r} must name its currency, for example 40usd (per machine and hour)")
    return float(match[1]), match[2].upper()


def _price_key(machine: Machine, parts: int) -> tuple[Any, ...]:
    """Within a currency by price; machines without one last."""
    price = machine.cluster.price
    return (price is None, price.currency if price else "", price.per_hour / parts if price else 0.0)
