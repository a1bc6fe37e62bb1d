"""Write the recording that docs/replay.md looks into: `python -m tools.recording`.

A small training run in the simulated allocator, recorded as torch records it: sequences of many lengths on a card of
1 GiB, a probe that keeps one activation of every step, until a request finds no memory.
"""

from __future__ import annotations

import gzip
import random
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from tools.docs import ROOT
from vramcast.domain.snapshot import Frame, Snapshot
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.errors import OutOfMemory
from vramcast.recordings.recorder import Recorder, Stack

PATH: Final = ROOT / "docs" / "examples" / "crash.pickle.gz"
MIB: Final = 1 << 20
CAPACITY_BYTES: Final = 1024 * MIB
LAYERS: Final = 16
WEIGHT_BYTES: Final = 6 * MIB
BYTES_PER_POSITION: Final = 6144
KEPT_BYTES: Final = 3 * MIB // 2
STEPS: Final = 60
START_US: Final = 1_700_000_000_000_000
EVENT_US: Final = 50

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


def make(run: Recorder, size: int, stack: Stack) -> int:
    """Allocate; an OutOfMemory is recorded and raised."""
    return run.allocate(size, stack=stack)


def drop(run: Recorder, blocks: Sequence[int], stack: Stack) -> None:
    """Free."""
    for block in blocks:
        run.free(block, stack=stack)


def train(run: Recorder) -> None:
    """Steps until memory runs out."""
    rng = random.Random(7)
    for _ in range(LAYERS):
        make(run, WEIGHT_BYTES, MOVED)
    states: list[int] = []
    for step in range(STEPS):
        positions = rng.randrange(400, 900) + 24 * step
        size = positions * BYTES_PER_POSITION
        batch = make(run, positions * 8, BATCH)
        saved = []
        for layer in range(LAYERS):
            saved += [make(run, size, ATTENTION), make(run, size * 2, MLP)]
            if layer == LAYERS // 2:
                make(run, KEPT_BYTES, KEPT)
        gradients = []
        for place in range(LAYERS - 1, -1, -1):
            scratch = make(run, size, BACKWARD)
            gradients.append(make(run, WEIGHT_BYTES, ACCUMULATE))
            drop(run, [*saved[2 * place : 2 * place + 2], scratch], BACKWARD)
        start = run.clock
        states = states or [make(run, WEIGHT_BYTES, STATES) for _ in range(2 * LAYERS)]
        drop(run, [make(run, WEIGHT_BYTES, UPDATE)], UPDATE)
        run.annotate("Optimizer.step#Adam.step", start)
        drop(run, gradients, ZERO_GRAD)
        drop(run, [batch], TRAIN)


def in_time(recording: Snapshot) -> Snapshot:
    """The recording with a clock that goes on by 50 microseconds an event."""
    trace = recording.devices[0].trace
    trace.times_us = array("q", [START_US + EVENT_US * time for time in trace.times_us])
    spans = (
        replace(span, start_us=START_US + EVENT_US * span.start_us, end_us=START_US + EVENT_US * span.end_us)
        for span in recording.annotations
    )
    return replace(recording, annotations=tuple(spans))


def main() -> None:
    """Write the file; the same bytes every time."""
    run = Recorder(capacity_bytes=CAPACITY_BYTES)
    with suppress(OutOfMemory):
        train(run)
    PATH.write_bytes(gzip.compress(write_snapshot(in_time(run.snapshot(name=PATH.name))), mtime=0))


if __name__ == "__main__":
    main()
