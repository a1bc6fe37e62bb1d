"""Jobs on cards that they share: as many as find room, on the fewest, each card within what its jobs may need."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.api.packing import packed
from vramcast.domain.answer import Answer, Peak, RankAnswer
from vramcast.domain.packing import Candidate, Room, chance_to_run_out
from vramcast.errors import InvalidSpec

MISSES = ((0.9, 0.5), (1.0, 0.9), (1.2, 0.99), (1.5, 1.0))
"""Measured / predicted, and the share of runs up to there."""


def job(name: str, size: int, gpus: int = 1, misses: tuple[tuple[float, float], ...] = ()) -> Candidate:
    peak = Peak(allocated_bytes=size, reserved_bytes=size, device_bytes=size)
    rank = RankAnswer(role="all", count=gpus, peak=peak, interval_bytes=(size, size), phases={"step": peak}, ledger=(),
                      misses=misses)
    return Candidate(name=name, gpus=gpus, answers={
        "card": Answer(question={}, fits=True, capacity_bytes=100, ranks=(rank,), num_parameters=0)})


def fewest(sizes: list[int], cards: int, capacity: int) -> int | None:
    """By looking at every way to place them."""
    found = [len(set(places)) for places in product(range(cards), repeat=len(sizes))
             if all(sum(size for size, place in zip(sizes, places, strict=True) if place == card) <= capacity
                    for card in range(cards))]
    return min(found, default=None)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6), cards=st.integers(1, 3))
def test_jobs_stand_on_the_fewest_cards_that_hold_them(sizes: list[int], cards: int) -> None:
    jobs = [job(f"job {index}", size) for index, size in enumerate(sizes)]
    found = packed(jobs, [Room(kind="card", capacity_bytes=12)] * cards)
    assert found.is_least
    assert found.is_whole == (fewest(sizes, cards, 12) is not None)
    if found.is_whole:
        assert found.used == fewest(sizes, cards, 12)
    assert all(card.claimed_bytes <= card.capacity_bytes for card in found.cards)
    names = [one.name for card in found.cards for one in card.jobs] + [one.name for one in found.unplaced]
    assert sorted(names) == [f"job {index}" for index in range(len(sizes))]


def test_a_job_of_several_cards_takes_them_of_one_machine() -> None:
    rooms = [Room(kind="card", capacity_bytes=10, machine=machine) for machine in (0, 1, 1)]
    found = packed([job("two", 6, gpus=2), job("one", 4)], rooms)
    assert [[one.name for one in card.jobs] for card in found.cards] == [[], ["two", "one"], ["two"]]
    lacking = packed([job("three", 6, gpus=3)], rooms).unplaced[0]
    assert lacking.why == "it takes 3 cards of one machine, and 2 are there"


@pytest.mark.parametrize(("capacity", "chance"), [(300, 0.0), (299, 0.01), (240, 0.01), (239, 0.1), (179, 1.0)])
def test_jobs_that_miss_alike_run_out_together(capacity: int, chance: float) -> None:
    two = [job("a", 100, misses=MISSES), job("b", 100, misses=MISSES)]
    assert chance_to_run_out(two, "card", capacity) == pytest.approx(chance)
    assert packed(two, [Room(kind="card", capacity_bytes=capacity)], risk=0.05).is_whole == (chance <= 0.05)


@pytest.mark.parametrize("risk", [0.0, 1.0, -1.0, float("nan")])
def test_a_risk_is_a_share(risk: float) -> None:
    with pytest.raises(InvalidSpec, match="above 0 and below 1"):
        packed([job("a", 1)], [Room(kind="card", capacity_bytes=2)], risk=risk)
