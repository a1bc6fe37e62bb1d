"""Which jobs share which cards: as many jobs as find room, on as few cards as hold them.

A card holds jobs where what suffices each of them but for the risk adds up to no more than it has; a job of several
cards takes one place on each. So it is bin packing [Martello, Toth, Knapsack Problems, 1990, ch. 8]: the largest job
first, on each card that differs from those tried before it, the fullest first, with the free bytes of all cards as the
bound. Numbers of cards are tried from the fewest that could do; within `MOST_NODES` looks the answer is the least there
is, beyond them the best that was seen, which is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from vramcast.domain.packing import Candidate, Room

MOST_NODES: Final = 50_000
"""Places that are looked at for one number of cards: a tenth of a second."""


class Placed(NamedTuple):
    """What the search found."""

    cards: tuple[tuple[int, ...], ...]  # of each job, the cards it stands on; empty: none
    is_least: bool


class _Out(Exception):
    """The search has looked at as many places as it may."""


class _Search:
    """One search: what jobs take of kinds of cards, and how many places were looked at."""

    def __init__(self, jobs: Sequence[Candidate], rooms: Sequence[Room], share: float) -> None:
        self.jobs, self.rooms = jobs, rooms
        kinds = {room.kind for room in rooms}
        self.sizes = [{kind: size for kind in kinds if (size := job.enough_bytes(kind, share)) is not None}
                      for job in jobs]
        self.nodes = 0

    def least(self, index: int) -> int:
        """What a job takes of all its cards, where it takes the least."""
        return min(self.sizes[index].values()) * self.jobs[index].gpus

    def is_possible(self, index: int) -> bool:
        """Whether one machine has the cards that hold a job alone."""
        holding = Counter(room.machine for room in self.rooms if self._holds(index, room, room.capacity_bytes))
        return max(holding.values(), default=0) >= self.jobs[index].gpus

    def on(self, order: Sequence[int], cards: Iterable[int]) -> dict[int, tuple[int, ...]] | None:
        """The cards of all these jobs, the first of them placed first; None where there is no way.

        Raises: _Out
        """
        self.nodes = 0
        left = {card: self.rooms[card].capacity_bytes for card in cards}
        whole = [*accumulate((self.least(index) for index in reversed(order)), initial=0)][::-1]
        found: dict[int, tuple[int, ...]] = {}
        return found if self._placed(order, 0, whole, left, found) else None

    def _holds(self, index: int, room: Room, left: int) -> bool:
        return self.sizes[index].get(room.kind, left + 1) <= left

    def _placed(
        self, order: Sequence[int], at: int, whole: Sequence[int], left: dict[int, int],
        found: dict[int, tuple[int, ...]],
    ) -> bool:
        """Whether the jobs from one on find cards; `whole`: what they take together, at least."""
        if at == len(order):
            return True
        index = order[at]
        cards = sorted((card for card in left if self._holds(index, self.rooms[card], left[card])),
                       key=lambda card: (left[card], card))

        def choose(begin: int, chosen: tuple[int, ...]) -> bool:
            """One more card for this job; cards with as much left in one machine are one choice."""
            self.nodes += 1
            if self.nodes > MOST_NODES:
                raise _Out
            if len(chosen) == self.jobs[index].gpus:
                found[index] = tuple(sorted(chosen))
                return self._placed(order, at + 1, whole, left, found)
            tried = set()
            for place in range(begin, len(cards)):
                card = cards[place]
                room = self.rooms[card]
                likeness = (room.kind, left[card], room.machine if self.jobs[index].gpus > 1 else 0)
                if likeness in tried or (chosen and room.machine != self.rooms[chosen[0]].machine):
                    continue
                tried.add(likeness)
                left[card] -= self.sizes[index][room.kind]
                if choose(place + 1, (*chosen, card)):
                    return True
                left[card] += self.sizes[index][room.kind]
            return False

        return whole[at] <= sum(left.values()) and choose(0, ())


def placed(jobs: Sequence[Candidate], rooms: Sequence[Room], risk: float) -> Placed:
    """The jobs' cards. Where not all find room the largest are left out, one by one.

    Args:
        jobs: with what they take of each kind of card
        rooms: the cards
        risk: of each card to run out, at most; above 0, below 1
    """
    search = _Search(jobs, rooms, 1 - risk)
    order = sorted((index for index in range(len(jobs)) if search.is_possible(index)),
                   key=lambda index: (-search.least(index), index))
    is_least = True
    for begin in range(len(order)):
        try:
            found = search.on(order[begin:], range(len(rooms)))
        except _Out:
            found, is_least = None, False
        if found is not None:
            fewest, is_fewest = _fewest(search, order[begin:], found)
            is_least &= is_fewest and (not begin or all(jobs[index].gpus == 1 for index in order))
            return Placed(tuple(fewest.get(index, ()) for index in range(len(jobs))), is_least)
    return Placed(((),) * len(jobs), is_least)


def _fewest(
    search: _Search, order: Sequence[int], every: dict[int, tuple[int, ...]]
) -> tuple[dict[int, tuple[int, ...]], bool]:
    """The same jobs on the fewest cards, the roomiest first; whether fewer were shown not to do.

    Of one machine with cards of one kind some hold whatever others as many do, where they are the roomiest.
    """
    rooms = search.rooms
    roomiest = sorted(range(len(rooms)), key=lambda card: (-rooms[card].capacity_bytes, card))
    used = len({card for cards in every.values() for card in cards})
    fewest = max(search.jobs[index].gpus for index in order)
    is_shown = used == fewest or len({(room.kind, room.machine) for room in rooms}) == 1
    for count in range(fewest, used):
        try:
            found = search.on(order, roomiest[:count])
        except _Out:
            is_shown = False
            continue
        if found is not None:
            return found, is_shown
    return every, is_shown
