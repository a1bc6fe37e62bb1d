"""ggml's graph allocator: order, reuse, no overlaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vramcast.allocator.ggml import FreeBlocks, compute_buffer_bytes
from vramcast.operators import ggml as op


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 10)), max_size=60))
def test_live_blocks_never_overlap_and_the_mark_covers_them(steps: list[tuple[int, int]]) -> None:
    blocks, live = FreeBlocks(), []
    for size, victim in steps:
        if live and victim < 5:
            blocks.give(*live.pop(victim % len(live)))
        offset = blocks.take(size)
        for start, length in live:
            assert offset + size <= start or start + length <= offset
        live.append((offset, size))
        assert offset + size <= blocks.highest
    for block in live:
        blocks.give(*block)
    assert blocks.offsets == [0]


def test_the_smallest_hole_that_fits_is_taken_before_the_end_grows() -> None:
    blocks = FreeBlocks()
    starts = [blocks.take(size) for size in (100, 10, 30, 10)]
    blocks.give(starts[0], 100)
    blocks.give(starts[2], 30)
    assert blocks.take(20) == starts[2]
    assert blocks.highest == 150


def test_a_sum_takes_over_the_operand_that_nobody_else_reads() -> None:
    x = op.leaf(256)
    product = op.mul(x, op.weight(256))  # x may be overwritten, too: it has no other reader
    assert compute_buffer_bytes(op.add(product, op.weight(256))) == 1024


def test_an_operand_with_another_reader_keeps_its_memory() -> None:
    x = op.like("norm", op.leaf(256))
    assert compute_buffer_bytes(op.add(op.mul(x, op.weight(256)), x)) == 2048


def test_views_keep_their_owner_alive() -> None:
    x = op.like("norm", op.leaf(64, 64))
    view = op.permute(x, 1, 0, 2, 3)
    copy = op.cont(view)
    assert compute_buffer_bytes(op.concat(copy, x, 0)) >= 4 * 64 * 64 * 4


def test_weights_take_no_room() -> None:
    assert compute_buffer_bytes(op.mul_mat(op.weight(64, 64), op.leaf(64, 1))) == 2 * 64 * 4
