"""How reductions are split over a chip."""

from hypothesis import given
from hypothesis import strategies as st

from vramcast.operators.reduction import Chip, Kernel, Strided, accumulator_bytes, buffers, reduction


def taken(walk, chip, kernel=Kernel(4)):  # noqa: B008
    return [needs.buffer_bytes + needs.semaphore_bytes for needs in buffers(walk, kernel, Chip(*chip))]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.data())
def test_a_walk_keeps_all_elements_and_its_outputs(sizes, data):
    dims = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    strides, step = [], 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    walk = reduction(Strided(tuple(sizes), tuple(strides), 4), tuple(dims), 4)
    outputs = 1
    for dim, size in enumerate(sizes):
        outputs *= 1 if dim in dims else size
    assert walk.elements == step
    assert walk.elements // max(1, walk.outputs) * walk.outputs == step
    assert walk.outputs in (outputs, 1) or walk.outputs == outputs


def test_what_32_bits_do_not_reach_is_split_in_halves():
    walk = reduction(Strided((1 << 30,), (1,), 4), (0,), 4)
    parts = list(walk.parts())
    assert [part.elements for part in parts] == [1 << 29] * 2
    assert all(part.fits_32_bits for part in parts)


def test_a_bf16_sum_of_several_launches_needs_an_accumulator():
    walk = reduction(Strided((1 << 20, 4096), (4096, 1), 2), (0,), 2)
    wide, narrow = Kernel(4, accumulates_in_output=False), Kernel(4)
    assert accumulator_bytes(walk, wide, 2) == 4096 * 4
    assert accumulator_bytes(walk, narrow, 2) == 0


def test_a_scalar_needs_nothing():
    assert not taken(reduction(Strided((), (), 4), (), 4), (108, 2048))
