"""A program through two of its builds says what every other build says."""

import pytest

from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor
from vramcast.search.training.extents import NotAffine, affine


def built(spec: list[tuple[int, int, bool]], tokens: int, repeats: int) -> Program:
    nodes = []
    for fixed, slope, dies in spec:
        tensor = Tensor(name="x", num_bytes=fixed + slope * tokens, category=Category.ACTIVATIONS)
        nodes += [Alloc(tensor), Free(tensor)] if dies else [Alloc(tensor)]
    return (*nodes, Loop(repeats, tuple(nodes)), *nodes[:1])


def test_programs_of_another_shape_are_no_line() -> None:
    one = built([(1, 1, True)], 1, 2)
    with pytest.raises(NotAffine):
        affine(one, built([(1, 1, False)], 2, 2), (1, 2))
    with pytest.raises(NotAffine):
        affine(one, built([(1, 1, True)], 2, 3), (1, 2))
