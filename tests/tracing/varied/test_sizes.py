"""Whole numbers that follow the axes, from samples."""

import random

import pytest

from vramcast.tracing.varied.sizes import closest_sum, disagreements, exact_sum, sizes_of

CHOOSER = random.Random(1)
CORNERS = [(1, 64), (64, 64), (1, 2048), (64, 2048)]
POINTS = [*CORNERS, *((CHOOSER.randint(1, 64), CHOOSER.randint(64, 2048)) for _ in range(8))]


@pytest.mark.parametrize("function", [
    lambda _b, _s: 7, lambda b, s: b * s * 3072, lambda b, s: 12 * b * s * s, lambda b, s: b * (s - 1) * 50257 * 2,
    lambda b, s: 100 + 3 * b * s, lambda _b, s: s * s + s, lambda b, _s: (2 * b) ** 2,
])
def test_sums_of_products_are_found_and_hold_elsewhere(function) -> None:
    found = sizes_of([function(*point) for point in POINTS], POINTS)
    assert len(found) == 1
    assert all(found[0].whole((b, s)) == function(b, s) for b in (2, 33) for s in (65, 1023))


def test_floors_are_told_apart_where_they_differ() -> None:
    def function(b: int, s: int) -> int:
        return 512 * b * ((s + 31) // 32) ** 2

    points = list(POINTS)
    everywhere = [(b, s) for b in (1, 64) for s in range(64, 2049)]
    while True:
        found = sizes_of([function(*point) for point in points], points)
        differing = list(disagreements(found, everywhere))
        if not differing:
            break
        points.append(max(differing)[1])
    assert len(points) < 24
    assert all(found[0].whole(point) == function(*point) for point in everywhere)


def test_what_follows_no_sum_has_none_and_a_closest_one() -> None:
    values = [b * max(s, 1000) for b, s in POINTS]
    assert sizes_of(values, POINTS) == [] and exact_sum(values, POINTS) is None
    found = closest_sum(values, POINTS)
    off = [abs(float(found.at(point)) / value - 1) for point, value in zip(POINTS, values, strict=True)]
    assert sorted(off)[len(off) // 2] < 0.25
