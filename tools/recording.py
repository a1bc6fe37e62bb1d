"""Write the recording that docs/replay.md looks into: `python -m tools.recording`.

A small training run in the simulated allocator, recorded as torch records it: sequences of many lengths on a card of
1 GiB, a probe that keeps one activation of every step, until a request finds no memory.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tools.docs import ROOT
from vramcast.allocator import Allocator, Settings
from vramcast.domain.snapshot import Action, Annotation, DeviceSnapshot, Frame, Snapshot, Trace
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.errors import OutOfMemory

PATH: Final = ROOT / "docs" / "examples" / "crash.pickle.gz"
MIB: Final = 1 << 20
CAPACITY_BYTES: Final = 1024 * MIB
LAYERS: Final = 16
WEIGHT_BYTES: Final = 6 * MIB
BYTES_PER_POSITION: Final = 6144
KEPT_BYTES: Final = 3 * MIB // 2
STEPS: Final = 60

TORCH: Final = "/usr/lib/python3.12/site-packages/torch"
MAIN: Final = Frame("<module>", "/home/me/train.py", 60)
TRAIN: Final = (Frame("train", "/home/me/train.py", 38), MAIN)
MOVED: Final = (Frame("_apply", f"{TORCH}/nn/modules/module.py", 930), Frame("main", "/home/me/train.py", 21), MAIN)
BATCH: Final = (Frame("torch::autograd::THPVariable_to(_object*, _object*, _object*)", "??", 0), *TRAIN)
MODEL: Final = (Frame("forward", "/home/me/model.py", 71), *TRAIN)
ATTENTION: Final = (Frame("forward", "/home/me/model.py", 34), *MODEL)
MLP: Final = (Frame("forward", "/home/me/model.py", 52), *MODEL)
KEPT: Final = (Frame("keep", "/home/me/probe.py", 12), *MODEL)
ENGINE: Final = Frame("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)", "??", 0)
BACKWARD: Final = (Frame("torch::autograd::generated::MmBackward0::apply(variable_list&&)", "??", 0), ENGINE)
ACCUMULATE: Final = (Frame("torch::autograd::AccumulateGrad::apply(variable_list&&)", "??", 0), ENGINE)
ADAM: Final = f"{TORCH}/optim/adam.py"
STATES: Final = (Frame("_init_group", ADAM, 190), Frame("step", ADAM, 236), *TRAIN)
UPDATE: Final = (Frame("_multi_tensor_adam", ADAM, 640), Frame("step", ADAM, 246), *TRAIN)
ZERO_GRAD: Final = (Frame("zero_grad", f"{TORCH}/optim/optimizer.py", 970), *TRAIN)


class Recorder:
    """An allocator whose calls are events."""

    def __init__(self) -> None:
        self.trace = Trace.empty()
        self.allocator = Allocator(
            settings=Settings(), capacity_bytes=CAPACITY_BYTES, total_bytes=CAPACITY_BYTES, observer=self._segment
        )
        self.stacks: dict[tuple[Frame, ...], int] = {(): 0}
        self.spans: list[Annotation] = []
        self.sizes: dict[int, int] = {}
        self.stack = 0

    @property
    def now_us(self) -> int:
        """A time that goes on by 50 microseconds an event."""
        return 1_700_000_000_000_000 + 50 * len(self.trace)

    def make(self, size: int, stack: Sequence[Frame]) -> int:
        """Allocate; an OutOfMemory is recorded and raised."""
        self.stack = self.stacks.setdefault(tuple(stack), len(self.stacks))
        try:
            block = self.allocator.allocate(size)
        except OutOfMemory:
            self._event(Action.OOM, CAPACITY_BYTES - self.allocator.reserved_bytes, size)
            raise
        self._event(Action.ALLOC, block, size)
        self.sizes[block] = size
        return block

    def drop(self, blocks: Sequence[int], stack: Sequence[Frame]) -> None:
        """Free."""
        self.stack = self.stacks.setdefault(tuple(stack), len(self.stacks))
        for block in blocks:
            size = self.sizes.pop(block)
            self._event(Action.FREE_REQUESTED, block, size)
            self.allocator.free(block)
            self._event(Action.FREE_COMPLETED, block, size)

    def snapshot(self) -> Snapshot:
        """What a dump now would hold."""
        device = DeviceSnapshot(device=0, trace=self.trace, segments=self.allocator.segments())
        return Snapshot(
            name=PATH.name, format="torch", devices=(device,), stacks=tuple(self.stacks), annotations=tuple(self.spans)
        )

    def _segment(self, action: str, address: int, size: int) -> None:
        self._event(Action[action.upper()], address, size)

    def _event(self, action: Action, address: int, size: int) -> None:
        trace, now = self.trace, self.now_us
        for column, value in (
            (trace.actions, action), (trace.addresses, address), (trace.sizes, size), (trace.streams, 0),
            (trace.times_us, now), (trace.stacks, self.stack), (trace.pools, 0), (trace.labels, 0),
        ):
            column.append(value)


def train(run: Recorder) -> None:
    """Steps until memory runs out."""
    rng = random.Random(7)
    for _ in range(LAYERS):
        run.make(WEIGHT_BYTES, MOVED)
    states: list[int] = []
    for step in range(STEPS):
        positions = rng.randrange(400, 900) + 24 * step
        size = positions * BYTES_PER_POSITION
        batch = run.make(positions * 8, BATCH)
        saved = []
        for layer in range(LAYERS):
            saved += [run.make(size, ATTENTION), run.make(size * 2, MLP)]
            if layer == LAYERS // 2:
                run.make(KEPT_BYTES, KEPT)
        gradients = []
        for place in range(LAYERS - 1, -1, -1):
            scratch = run.make(size, BACKWARD)
            gradients.append(run.make(WEIGHT_BYTES, ACCUMULATE))
            run.drop([*saved[2 * place : 2 * place + 2], scratch], BACKWARD)
        start = run.now_us
        states = states or [run.make(WEIGHT_BYTES, STATES) for _ in range(2 * LAYERS)]
        run.drop([run.make(WEIGHT_BYTES, UPDATE)], UPDATE)
        run.spans.append(Annotation("Optimizer.step#Adam.step", 0, start, run.now_us))
        run.drop(gradients, ZERO_GRAD)
        run.drop([batch], TRAIN)


def main() -> None:
    """Write the file; the same bytes every time."""
    run = Recorder()
    with suppress(OutOfMemory):
        train(run)
    PATH.write_bytes(gzip.compress(write_snapshot(run.snapshot()), mtime=0))


if __name__ == "__main__":
    main()
