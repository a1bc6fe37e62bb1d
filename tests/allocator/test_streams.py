"""Blocks of several streams, and blocks that one stream frees while another still uses them."""

import pytest

from vramcast.allocator import Allocator
from vramcast.errors import InvalidSpec

from .test_caching import MIB

SIDE, OTHER = 7, 9


def test_a_wait_can_be_ended_for_one_block_as_a_recording_says() -> None:
    allocator = Allocator()
    first, second = allocator.allocate(30 * MIB), allocator.allocate(30 * MIB)
    for block in (first, second):
        allocator.record_stream(block, SIDE)
        allocator.free(block)
    allocator.complete(second)
    assert allocator.awaits_free(first) and not allocator.awaits_free(second)
    with pytest.raises(InvalidSpec, match="does not wait"):
        allocator.complete(second)


def test_freeing_twice_while_it_waits_is_refused() -> None:
    allocator = Allocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, SIDE)
    allocator.free(block)
    with pytest.raises(InvalidSpec, match="not a live block"):
        allocator.free(block)
