"""Runs that do the same to memory have the same marks, whether they were simulated or remembered."""

import pytest

from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor
from vramcast.errors import InvalidSpec
from vramcast.estimate import timeline
from vramcast.estimate.timeline import simulate

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
