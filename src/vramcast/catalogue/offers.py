"""What a search looks at when it is told `--on TEXT`: machines, one of each kind, with their price.

    8xh100-sxm-80gb          eight such cards in one machine
    h100                     that card: every machine that has it, and boxes of 1, 2, 4 and 8
    aws   alibaba   any      every machine of a provider, of all of them
    aws:p5.48xlarge   mybox  that machine
    h100,aws:p5.48xlarge     several, separated by commas
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.clusters import NO_MARKET, Market, own_clusters, price_lists, priced, resolve, with_held
from vramcast.catalogue.gpus import NODE_CARDS_BY_GPU, load_gpu, resolve_gpu
from vramcast.catalogue.instances import PROVIDERS, instances, load_instance
from vramcast.domain.device import Cluster
from vramcast.errors import InvalidSpec, UnknownName

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
            f"--on {text[:60]!r} must name what to search over, for example 8xh100-sxm-80gb, h100, aws, "
            "aws:p5.48xlarge or any"
        )
    own = own_clusters(market)
    found: dict[str, Offer] = {}
    for name in names:
        for offer in _named(name, own):
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


def _named(name: str, own: dict[str, Cluster]) -> Iterator[Offer]:
    word = name.lower()
    if word in own:
        yield _own(own[word])
    elif word == ANY:
        yield from (Offer(machine.cluster(), ()) for machine in instances())
        yield from map(_own, own.values())
    elif word in PROVIDERS:
        yield from (Offer(machine.cluster(), ()) for machine in instances() if machine.provider == word)
    else:
        yield from _with_card(name) or [_machine(name, own)]


def _own(cluster: Cluster) -> Offer:
    """An own cluster: as many of its machines as there are, or fewer."""
    return Offer(replace(cluster, num_nodes=1), tuple(range(1, cluster.num_nodes + 1)))


def _machine(name: str, own: dict[str, Cluster]) -> Offer:
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
