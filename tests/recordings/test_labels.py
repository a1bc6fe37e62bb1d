"""Categories that a recording states itself."""

from __future__ import annotations

from vramcast.recordings.examine import Asked, examine
from vramcast.units import MIB

from ._made import FORWARD, Run


def test_what_a_recording_calls_a_block_goes_before_what_its_stack_tells() -> None:
    run = Run()
    for label in ("weights", "optimizer_state", ""):
        run.allocate(4 * MIB, stack=FORWARD, label=label)
    snapshot = run.dump()
    found = examine(snapshot, snapshot.devices[0], Asked())
    sizes = {group.name: group.size_bytes for group in found.held.by_category}
    assert sizes == {"weights": 4 * MIB, "optimizer": 4 * MIB, "activations": 4 * MIB}
