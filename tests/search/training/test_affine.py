"""A program through two of its builds says what every other build says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor, extent
from vramcast.search.training.extents import NotAffine, affine

SIZES = st.tuples(st.integers(0, 5000), st.integers(0, 300))


def built(spec: list[tuple[int, int, bool]], tokens: int, repeats: int) -> Program:
    nodes = []
    for fixed, slope, dies in spec:
        tensor = Tensor(name="x", num_bytes=fixed + slope * tokens, category=Category.ACTIVATIONS)
        nodes += [Alloc(tensor), Free(tensor)] if dies else [Alloc(tensor)]
    return (*nodes, Loop(repeats, tuple(nodes)), *nodes[:1])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 5), st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
)
def test_a_line_says_what_the_program_says_at_any_size(
    spec: list[tuple[int, int, bool]], repeats: int, tokens: list[int]
) -> None:
    line = affine(built(spec, 64, repeats), built(spec, 4096, repeats), (64, 4096))
    found = line.extents(np.array(tokens, np.int64))
    for index, number in enumerate(tokens):
        assert (found.net[index], found.peak[index]) == extent(built(spec, number, repeats))


def test_programs_of_another_shape_are_no_line() -> None:
    one = built([(1, 1, True)], 1, 2)
    with pytest.raises(NotAffine):
        affine(one, built([(1, 1, False)], 2, 2), (1, 2))
    with pytest.raises(NotAffine):
        affine(one, built([(1, 1, True)], 2, 3), (1, 2))
