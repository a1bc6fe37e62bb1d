"""Leaks over steps, and what is none."""

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


def test_a_cache_that_levels_off_is_no_leak() -> None:
    assert leaks(trained(10, leaked_bytes=MIB, keep=3)).leaks == ()


def test_steps_are_found_without_marks() -> None:
    found = leaks(unmarked(trained(8, leaked_bytes=MIB)))
    assert found.found_by == "optimizer"
    assert found.bytes_per_step == MIB
    assert leaks(unmarked(trained(8))).leaks == ()


def test_steps_are_found_without_stacks() -> None:
    steps = steps_of(device_of(without_stacks(trained(8))))
    assert steps is not None and steps.found_by == "repetition" and steps.num_steps in (6, 7)


def test_layers_of_one_backward_pass_are_no_steps() -> None:
    run = Run()
    for _ in range(30):
        for name in ("Mm", "Add", "Mul"):
            run.make(MIB, (made.cpp(f"torch::autograd::generated::{name}Backward0::apply()"), made.BACKWARD[1]))
    assert steps_of(device_of(run.dump())) is None
