"""The two readings of a program agree with unrolling it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.program import (
    Alloc,
    BrokenProgram,
    Category,
    Free,
    Loop,
    Program,
    Tensor,
    events,
    extent,
    live_at_end,
    total_bytes,
)


def tensor(name: str, num_bytes: int) -> Tensor:
    return Tensor(name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS)


TENSORS = [tensor(f"t{index}", 512 * 3**index) for index in range(4)]

LEAVES = st.sampled_from([kind(item) for item in TENSORS for kind in (Alloc, Free)])
PROGRAMS = st.recursive(
    st.lists(LEAVES, max_size=5).map(tuple),
    lambda inner: st.lists(
        LEAVES | st.builds(lambda count, body: Loop(count, body), st.integers(0, 3), inner), max_size=4
    ).map(tuple),
    max_leaves=20,
)


@given(PROGRAMS)
def test_tensors_alive_at_the_end_add_up_to_the_net_change(program: Program) -> None:
    assert total_bytes(live_at_end(program)) == extent(program).net


def test_balanced_repeats_are_cut_in_the_timeline_and_growing_ones_are_not() -> None:
    item = tensor("x", 512)
    assert len(list(events((Loop(100, (Alloc(item), Free(item))),)))) == 4
    assert len(list(events((Loop(100, (Alloc(item),)),)))) == 100


def test_a_rank_that_frees_what_it_has_not_allocated_is_not_answered() -> None:
    hidden, other = tensor("hidden states", 55_000_000), tensor("hidden states", 54_988_800)
    step = (Loop(2, (Alloc(hidden),)), Loop(32, (Alloc(hidden), Free(other))))
    with pytest.raises(BrokenProgram, match="all frees activations/hidden states of 54988800 bytes"):
        RankProgram(role="all", count=8, phases={Phase.LOAD: (), Phase.STEP: step}).require_sound()
