"""Runs that do the same to memory have the same marks, whether they were simulated or remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.allocator import Settings
from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor
from vramcast.errors import InvalidSpec
from vramcast.estimate import timeline
from vramcast.estimate.timeline import simulate, simulated_in_full

SIZES = (1, 3 << 20, 12 << 20)

Step = tuple[int, int, bool]


def program_of(steps: list[Step], rounds: int) -> Program:
    """Tensors allocated in turn, each freed at the end or, balanced, at once; few sizes make near-equal programs."""
    nodes: list[Alloc | Free | Loop] = []
    for size, stream, is_freed in steps:
        tensor = Tensor(name="t", num_bytes=SIZES[size], category=Category.ACTIVATIONS, stream=("", "side")[stream])
        body = (Alloc(tensor), Free(tensor)) if is_freed else (Alloc(tensor),)
        nodes.append(Loop(rounds, body))
    kept = [node.body[0] for node in nodes if isinstance(node, Loop) and len(node.body) == 1]
    return (*nodes, *(Free(node.tensor) for node in kept[::2] if isinstance(node, Alloc)))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.booleans()), max_size=4),
    st.integers(1, 4),
    st.sampled_from(["", "expandable_segments:True"]),
)
def test_a_remembered_run_has_the_marks_of_a_simulated_one(steps: list[Step], rounds: int, alloc_conf: str) -> None:
    phases = {Phase.LOAD: program_of(steps[:1], 1), Phase.STEP: program_of(steps[1:], rounds)}
    wanted = simulated_in_full(phases, Settings.parse(alloc_conf), None)
    assert simulate(phases, alloc_conf=alloc_conf) == wanted
    assert simulate(phases, alloc_conf=alloc_conf) == wanted


def test_which_tensor_is_freed_decides_the_marks() -> None:
    large, small = (Tensor(name="t", num_bytes=size, category=Category.ACTIVATIONS) for size in (64 << 20, 32 << 20))
    again = Tensor(name="t", num_bytes=64 << 20, category=Category.ACTIVATIONS)
    marks = [
        simulate({Phase.STEP: (Alloc(large), Alloc(small), Free(freed), Alloc(again))})[Phase.STEP]
        for freed in (large, small)
    ]
    assert [mark.reserved_bytes >> 20 for mark in marks] == [96, 160]


def test_a_tensor_beyond_every_card_is_refused_as_a_question() -> None:
    huge = Tensor(name="t", num_bytes=1 << 46, category=Category.ACTIVATIONS)
    for _ in range(2):  # simulated, then remembered
        with pytest.raises(InvalidSpec, match="larger than can be answered"):
            simulate({Phase.STEP: (Alloc(huge),)}, alloc_conf="expandable_segments:True")


def test_a_long_run_beyond_every_card_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = (Tensor(name=f"t{index}", num_bytes=1 << 40, category=Category.ACTIVATIONS) for index in range(40))
    run = tuple(map(Alloc, huge))
    assert simulate({Phase.STEP: run})[Phase.STEP].reserved_bytes == 40 << 40
    monkeypatch.setattr(timeline, "MOST_IN_FULL", 30)
    with pytest.raises(InvalidSpec, match="larger than can be answered"):
        simulate({Phase.STEP: (*run, Free(run[0].tensor))})
