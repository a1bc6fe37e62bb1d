"""The largest number that fits is found for every threshold, from any guess, with few looks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vramcast.search.bisection import largest


@given(threshold=st.integers(0, 2**40), guess=st.integers(1, 2**40), most=st.integers(1, 2**40))
def test_the_threshold_is_found_in_a_logarithm_of_looks(threshold: int, guess: int, most: int) -> None:
    looked: list[int] = []

    def fits(number: int) -> bool:
        looked.append(number)
        return number <= threshold

    assert largest(fits, most, guess) == min(threshold, most)
    assert len(looked) < 100
    assert all(1 <= number <= most for number in looked)
