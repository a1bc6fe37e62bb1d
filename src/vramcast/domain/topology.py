"""How links join cards, and so how much of a card's links a group of cards can use.

Behind a switch any group uses all of them. Where links join pairs of cards directly, a group uses those among its own
cards only, and a message to one card those between the two.

Symbols:  n cards of a group   N cards that are joined
[rccl] ROCm/rccl README.md, "Improving performance on MI300 when using less than 8 GPUs": every pair of eight has a link
of its own; ROCm/rccl#1210: 48 GB/s each, 144 GB/s for four cards.
[cube] NVIDIA, DGX-1 system architecture (WP-08437-002): the hybrid cube mesh of eight P100 (4 links) and V100 (6).
[gpu-topology] Alibaba Cloud, overview of topology-aware GPU scheduling: V100 0 has 2 links to 3 and 4, 1 to 1 and 2.
[frontier] OLCF, Frontier user guide: 200 GB/s between the dies of an MI250X, 50 to 100 GB/s to those of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ONE_HOP: Final = 1
"""In place of a group's cards: a message to one of them [count]."""


def all_links(cards: int, joined: int) -> float:
    """Of a switch."""
    return 1.0


def mesh_links(cards: int, joined: int) -> float:
    """Of a full mesh: (n - 1) / (N - 1), one link for one hop.

    >>> round(896 / 2 * mesh_links(2, 8)), round(896 / 2 * mesh_links(8, 8))
    (64, 448)
    """
    return max(cards - 1, 1) / (joined - 1)


def _counted(links: int, used: dict[int, int]) -> Callable[[int, int], float]:
    """Of an irregular topology: the links that a ring through so many neighbouring cards uses of each."""

    def share(cards: int, joined: int) -> float:
        return used[max(size for size in used if size <= cards)] / links

    return share


TOPOLOGIES: Final[dict[str, Callable[[int, int], float]]] = {
    "switch": all_links,
    "mesh": mesh_links,
    "bridge": mesh_links,  # sold apart from the cards
    "cube mesh of 4 links": _counted(4, {ONE_HOP: 1, 2: 1, 3: 2, 4: 3, 8: 4}),
    "cube mesh of 6 links": _counted(6, {ONE_HOP: 1, 2: 1, 3: 2, 4: 4, 8: 6}),
    # four of a die's eight links go to the other die of the card, one to the host
    "pairs of dies": _counted(8, {ONE_HOP: 1, 2: 4, 3: 3}),
}
"""Name in `gpus.csv` -> share of a card's links that a group of n out of N joined cards uses [rccl, cube, frontier]."""

UNBOUNDED: Final = ("switch",)
"""Topologies that join all cards of a machine, however many."""


def used_share(topology: str | None, *, cards: int, joined: int) -> float:
    """Share of a card's links that a group of neighbouring cards uses; all where the topology is not known.

    Args:
        topology: key of `TOPOLOGIES`, None where it is not known
        cards: of the group, or `ONE_HOP` [count]
        joined: cards that the links join [count]
    """
    return TOPOLOGIES[topology](cards, joined) if topology else 1.0
