"""What held the peak, and what it was for."""

from __future__ import annotations

import pytest

from vramcast.domain.cublas import SMALL_BYTES
from vramcast.domain.snapshot import Frame, Snapshot
from vramcast.recordings.examine import Asked, Examined, examine
from vramcast.recordings.kinds import Kind, Kinds
from vramcast.recordings.lives import Category, lives_of
from vramcast.units import MIB

from . import _made as made
from ._made import Run, train


def examined(run: Run, first: int = 0) -> Examined:
    snapshot = run.dump(first)
    return examine(snapshot, snapshot.devices[0], Asked())


def categories(found: Examined) -> dict[str, int]:
    return {group.name: group.size_bytes for group in found.held.by_category}


def test_a_training_step_is_told_apart_by_category() -> None:
    run = Run()
    train(run, 3)
    found = examined(run)
    # At the first gradient of a later step: all activations, the states, a temporary of the backward pass.
    requested: dict[str, int] = {}
    for block in found.held.blocks:
        requested[block.category] = requested.get(block.category, 0) + block.requested_bytes
    assert requested == {
        "optimizer": 8 * MIB, "activations": 6 * MIB, "weights": 4 * MIB, "gradients": 2 * MIB,
        "temporaries": MIB + 512,
    }
    assert found.held.size_bytes == found.replayed.peak_allocated_bytes == sum(categories(found).values())


def test_the_sums_of_every_grouping_are_the_whole() -> None:
    run = Run()
    train(run, 2)
    held = examined(run).held
    for groups in (held.by_category, held.by_stack, held.by_module, held.by_line):
        assert sum(group.size_bytes for group in groups) == held.size_bytes
        assert sum(group.num_blocks for group in groups) == len(held.blocks)
        assert [group.size_bytes for group in groups] == sorted((g.size_bytes for g in groups), reverse=True)


def test_lines_are_the_users_and_modules_the_nearest_forward() -> None:
    run = Run()
    library = made.python("linear", "/lib/python3.12/site-packages/torch/nn/functional.py", 5)
    run.make(4 * MIB, (made.cpp("at::empty"), library, *made.FORWARD))
    held = examined(run).held
    assert [group.name for group in held.by_line] == ["model.py:10 forward"]
    assert [group.name for group in held.by_module] == ["model.py:10"]


def test_a_backward_pass_without_python_is_named_by_its_node() -> None:
    run = Run()
    run.make(4 * MIB, made.BACKWARD)
    assert [group.name for group in examined(run).held.by_line] == ["MmBackward0"]


def test_what_a_backward_pass_leaves_are_gradients_and_what_it_frees_are_not() -> None:
    run = Run()
    kept = run.make(MIB, made.BACKWARD)
    freed = run.make(2 * MIB, made.BACKWARD)
    run.drop(freed, made.BACKWARD)
    run.drop(kept, made.ZERO_GRAD)
    lives = _lives(run)
    assert lives == [Category.GRADIENTS, Category.TEMPORARIES]


def test_an_unfinished_backward_pass_says_so() -> None:
    run = Run()
    run.make(MIB, made.FORWARD)
    run.make(2 * MIB, made.BACKWARD)
    assert _lives(run) == [Category.ACTIVATIONS, Category.BACKWARD]


def test_states_made_within_a_step_outlive_it() -> None:
    run = Run()
    with run.span("Optimizer.step#Mine.step"):
        state = run.make(MIB, made.STEP)
        run.drop(run.make(MIB, made.STEP), made.STEP)
    with run.span("Optimizer.step#Mine.step"):
        run.make(MIB, made.STEP)
        run.drop(state, made.STEP)
    assert _lives(run) == [Category.OPTIMIZER, Category.TEMPORARIES, Category.OPTIMIZER]


def test_a_loss_made_outside_modules_is_an_activation_once_the_engine_frees_it() -> None:
    run = Run()
    loss, other = run.make(512, made.PLAIN), run.make(512, made.PLAIN)
    run.drop(loss, made.BACKWARD)
    run.drop(other, made.PLAIN)
    assert _lives(run) == [Category.ACTIVATIONS, Category.UNKNOWN]


def test_what_was_there_before_and_stays_is_held_and_what_goes_is_unknown() -> None:
    run = Run()
    stays, goes, grad = run.make(4 * MIB), run.make(6 * MIB), run.make(3 * MIB)
    first = len(run.trace)
    run.make(MIB, made.INPUT)
    run.drop(goes, made.PLAIN)
    run.drop(grad, made.ZERO_GRAD)
    found = examined(run, first)
    assert categories(found) == {
        "unknown": 6 * MIB, "held before": 4 * MIB, "gradients": 3 * MIB, "inputs": MIB
    }
    ages = {block.category: (block.since, block.age_us) for block in found.held.blocks}
    assert ages[Category.HELD] == (None, None)
    assert ages[Category.INPUTS] == (found.held.event, 0)
    assert stays in {block.address for block in found.held.blocks}


def test_the_workspace_of_cublas_is_known_by_its_size_where_no_stack_is() -> None:
    run = Run()
    run.make(SMALL_BYTES)
    run.make(SMALL_BYTES + 512)
    assert _lives(run) == [Category.WORKSPACES, Category.UNKNOWN]


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (made.WORKSPACE, Kind.WORKSPACE),
        (made.ACCUMULATE, Kind.ACCUMULATED),
        (made.STATES, Kind.OPTIMIZER_STATE),
        (made.MOVED, Kind.WEIGHT),
        (made.STEP, Kind.STEP),
        (made.BACKWARD, Kind.BACKWARD),
        ((*made.FORWARD, *made.BACKWARD), Kind.RECOMPUTED),
        (made.FORWARD, Kind.FORWARD),
        (made.INPUT, Kind.INPUT),
        (made.PLAIN, Kind.OTHER),
        ((), Kind.UNSEEN),
        ((made.python("update", "/site-packages/transformers/cache_utils.py"), *made.FORWARD), Kind.CACHE),
        ((made.python("__init__", line=3), made.python("__init__", line=9)), Kind.WEIGHT),
        ((made.python("__init__", line=3), made.MAIN), Kind.OTHER),
        ((made.python("step", "/home/me/game.py"),), Kind.OTHER),
        ((made.cpp("c10d::Reducer::initialize_buckets(x)"),), Kind.ACCUMULATED),
    ],
)
def test_rules_name_what_they_say(frames: tuple[Frame, ...], kind: Kind) -> None:
    assert Kinds(((), tuple(frames)))[1 if frames else 0] == kind


def _lives(run: Run) -> list[Category]:
    snapshot: Snapshot = run.dump()
    lives = lives_of(snapshot, snapshot.devices[0])
    actions = snapshot.devices[0].trace.actions
    return [lives.category(index) for index, action in enumerate(actions) if action == 0]
