"""`vramcast pack`: jobs that were answered one by one, placed on cards that they may share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vramcast.catalogue.clusters import cluster_of, taken
from vramcast.domain.packing import Candidate, PackedCard, PackedJob, Packing, Room, Unplaced, chance_to_run_out
from vramcast.errors import InvalidSpec, Note
from vramcast.search.packing import Placed, placed
from vramcast.units import format_bytes

MOST_JOBS: Final = 200
MOST_CARDS: Final = 1024
DEFAULT_RISK: Final = 0.01
OWN_SHARE: Final = 0.5
"""Part of what a job takes from which on its engine's own share of the card is what decides."""

ALIKE: Final = "jobs of one place miss their predictions alike: what suffices each of them but for the risk is added up"
OWN_SETTING: Final = "{}: its engine takes {} of each card by its own setting; a smaller share leaves room for others"
TIME: Final = "jobs on one card share its time, too: each is slower than alone"


def rooms_of(cards: Sequence[str], held_bytes: int = 0) -> tuple[Room, ...]:
    """The cards that are named, one by one.

    Args:
        cards: as `--gpus` takes them: "4xa100-sxm4-40gb", "rtx-4090+rtx-3090", an instance
        held_bytes: of each, by others [bytes]

    Raises: InvalidSpec, UnknownName
    """
    rooms: list[Room] = []
    for text in cards:
        cluster = cluster_of(text)
        for _ in range(cluster.num_nodes):
            machine = rooms[-1].machine + 1 if rooms else 0
            for gpu in cluster.cards or (cluster.gpu,) * cluster.gpus_per_node:
                rooms.append(Room(kind=gpu.name, capacity_bytes=max(0, gpu.visible_bytes - held_bytes),
                                  machine=machine))
    if len(rooms) > MOST_CARDS:
        raise InvalidSpec("{} cards are more than {}; pack machine by machine", len(rooms), MOST_CARDS)
    return tuple(rooms)


def packed(
    jobs: Sequence[Candidate], rooms: Sequence[Room], *, risk: float = DEFAULT_RISK, question: Mapping[str, Any] = {},
) -> Packing:
    """Which jobs share which cards, so that none runs out more often than is put up with.

    Args:
        jobs: each answered on every kind of card
        rooms: the cards
        risk: of each card to run out, at most
        question: what was asked, as the answer repeats it

    Raises: InvalidSpec
    """
    if not 0 < risk < 1:
        raise InvalidSpec("risk={} must be a share above 0 and below 1, for example 1%", risk)
    if len(jobs) > MOST_JOBS:
        raise InvalidSpec("{} jobs are more than {}; pack fewer at once", len(jobs), MOST_JOBS)
    found = placed(jobs, rooms, risk)
    cards = tuple(_card(index, room, [job for job, on in zip(jobs, found.cards, strict=True) if index in on], risk)
                  for index, room in enumerate(rooms))
    shared = any(len(card.jobs) > 1 for card in cards)
    return Packing(
        question=dict(question), risk=risk, cards=cards, is_least=found.is_least,
        unplaced=tuple(_unplaced(jobs, rooms, found, risk)),
        assumptions=((ALIKE, TIME) if shared else ()) + taken(question.get("gpus")),
        warnings=tuple(dict.fromkeys([one for job in jobs for one in job.cautions] + list(_own_shares(jobs)))),
    )


def _card(index: int, room: Room, jobs: Sequence[Candidate], risk: float) -> PackedCard:
    there = tuple(
        PackedJob(name=job.name, needed_bytes=rank.needed_bytes, claimed_bytes=rank.enough_bytes(1 - risk))
        for job in jobs for rank in (job.answers[room.kind].fullest,)
    )
    return PackedCard(
        index=index, gpu=room.kind, capacity_bytes=room.capacity_bytes, jobs=there,
        needed_bytes=sum(job.needed_bytes for job in there), claimed_bytes=sum(job.claimed_bytes for job in there),
        chance_to_run_out=chance_to_run_out(jobs, room.kind, room.capacity_bytes) if jobs else None,
    )


def _unplaced(
    jobs: Sequence[Candidate], rooms: Sequence[Room], found: Placed, risk: float
) -> Iterator[Unplaced]:
    """Jobs without a card, and why."""
    for job, cards in zip(jobs, found.cards, strict=True):
        if cards:
            continue
        if not job.answers:
            yield Unplaced(name=job.name, why=job.why)
            continue
        kind, answer = next(iter(job.answers.items()))
        enough = answer.fullest.enough_bytes(1 - risk)
        largest = max((room.capacity_bytes for room in rooms if room.kind == kind), default=0)
        there = max(sum(room.machine == machine for room in rooms) for machine in {room.machine for room in rooms})
        if job.gpus > there:
            why = Note("it takes {} cards of one machine, and {} are there", job.gpus, there)
        elif enough > largest:
            why = Note("it may take {} of a card, and {} can be used", format_bytes(enough), format_bytes(largest))
        else:
            why = Note("it may take {} of a card, more than the others leave", format_bytes(enough))
        yield Unplaced(name=job.name, why=why)


def _own_shares(jobs: Sequence[Candidate]) -> Iterator[str]:
    """Servers that take a share of a card whatever they need."""
    for job in jobs:
        for answer in list(job.answers.values())[:1]:
            rank = answer.fullest
            if answer.COMMAND == "serve" and rank.exact_bytes > OWN_SHARE * rank.needed_bytes:
                yield Note(OWN_SETTING, job.name, format_bytes(rank.exact_bytes))
