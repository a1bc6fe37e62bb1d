"""Leaks over steps, and what is none."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from vramcast.domain.snapshot import Snapshot
from vramcast.recordings.lives import lives_of
from vramcast.recordings.steps import Leaks, leaks_of, steps_of
from vramcast.units import MIB

from . import _made as made
from ._made import Run, train
from ._record import device_of


def leaks(snapshot: Snapshot) -> Leaks:
    recorded = device_of(snapshot)
    return leaks_of(recorded, lives_of(recorded))


def trained(steps: int, **options: int) -> Snapshot:
    run = Run()
    train(run, steps, **options)
    return run.dump()


def unmarked(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, annotations=())


def without_stacks(snapshot: Snapshot) -> Snapshot:
    device = snapshot.devices[0]
    columns = {name: getattr(device.trace, name)[:] for name in device.trace.__struct_fields__}
    columns["stacks"] = type(device.trace.stacks)("I", bytes(4 * len(device.trace)))
    trace = type(device.trace)(**columns)
    return replace(unmarked(snapshot), devices=(replace(device, trace=trace),), stacks=((),))


def test_a_leak_is_found_with_its_stack_and_its_bytes_a_step() -> None:
    snapshot = trained(6, leaked_bytes=MIB)
    found = leaks(snapshot)
    assert (found.steps, found.found_by, found.bytes_per_step) == (6, "annotations", MIB)
    (leak,) = found.leaks
    assert snapshot.stacks[leak.stack] == made.PLAIN
    assert leak.blocks_per_step == 1.0
    # The first boundary is the beginning, and what a step leaks is made after its optimizer has stepped.
    assert leak.history == (0, 0, MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB)


def test_a_run_without_leaks_has_none() -> None:
    found = leaks(trained(6))
    assert found.can_be_told and found.leaks == ()


def test_a_cache_that_levels_off_is_no_leak() -> None:
    assert leaks(trained(10, leaked_bytes=MIB, keep=3)).leaks == ()


def test_steps_are_found_without_marks() -> None:
    found = leaks(unmarked(trained(8, leaked_bytes=MIB)))
    assert found.found_by == "optimizer"
    assert found.bytes_per_step == MIB
    assert leaks(unmarked(trained(8))).leaks == ()


@pytest.mark.parametrize("marked", [True, False])
def test_batches_of_varying_length_and_evaluations_between_hide_no_leak(marked: bool) -> None:
    run, rng = Run(), random.Random(0)
    weights, states = [run.make(2 * MIB, made.MOVED) for _ in range(4)], []
    for step in range(9):
        activations = [run.make(rng.randrange(MIB, 5 * MIB), made.FORWARD) for _ in weights]
        for activation in reversed(activations):
            run.drop(run.make(MIB, made.BACKWARD), made.BACKWARD)
            run.drop(activation, made.BACKWARD)
        with run.span("Optimizer.step#Adam.step"):
            states = states or [run.make(2 * MIB, made.STATES) for _ in range(8)]
            run.drop(run.make(2 * MIB, made.STEP), made.STEP)
        run.make(3 * MIB, made.PLAIN)
        if step % 3 == 2:
            run.drop(run.make(7 * MIB, (made.python("evaluate", line=4), made.MAIN)))
    found = leaks(run.dump() if marked else unmarked(run.dump()))
    assert [(leak.bytes_per_step, leak.live_bytes) for leak in found.leaks] == [(3 * MIB, 24 * MIB)]


def test_a_buffer_that_is_filled_and_emptied_in_turn_is_no_leak() -> None:
    run, buffer = Run(), []
    for step in range(8):
        with run.span("Optimizer.step#Adam.step"):
            run.drop(run.make(2 * MIB, made.STEP), made.STEP)
        if step == 4:
            for handle in buffer:
                run.drop(handle)
            buffer = []
        buffer.append(run.make(MIB, made.PLAIN))
    assert leaks(run.dump()).can_be_told and leaks(run.dump()).leaks == ()


def test_steps_are_found_without_stacks() -> None:
    steps = steps_of(device_of(without_stacks(trained(8))))
    assert steps is not None and steps.found_by == "repetition" and steps.num_steps in (6, 7)


def test_layers_of_one_forward_are_no_steps() -> None:
    run = Run()
    outer = made.python("forward", "/home/me/model.py", 50)
    for _ in range(30):
        for line in (10, 11, 12):
            run.make(MIB, (made.python("forward", "/home/me/layer.py", line), outer, made.MAIN))
    assert steps_of(device_of(run.dump())) is None
    assert steps_of(device_of(without_stacks(run.dump()))) is None
    assert not leaks(run.dump()).can_be_told


def test_random_allocations_have_no_steps() -> None:
    run = Run()
    for size in range(200):
        run.make(MIB + 512 * (size * size % 97), (made.python("f", line=size * 7 % 31), made.MAIN))
    assert steps_of(device_of(run.dump())) is None


def test_layers_of_one_backward_pass_are_no_steps() -> None:
    run = Run()
    for _ in range(30):
        for name in ("Mm", "Add", "Mul"):
            run.make(MIB, (made.cpp(f"torch::autograd::generated::{name}Backward0::apply()"), made.BACKWARD[1]))
    assert steps_of(device_of(run.dump())) is None
