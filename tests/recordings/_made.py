"""Recordings with stacks, times and marks, of a simulated process."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from vramcast.domain.snapshot import Frame, Snapshot

from ._record import Process


def python(name: str, filename: str = "/home/me/train.py", line: int = 1) -> Frame:
    return Frame(name, filename, line)


def cpp(name: str) -> Frame:
    return Frame(name, "??", 0)


MAIN = python("<module>", line=99)
MAIN_ONLY = (MAIN,)
FORWARD = (python("forward", "/home/me/model.py", 10), MAIN)
BACKWARD = (cpp("torch::autograd::generated::MmBackward0::apply(x)"), cpp("torch::autograd::Engine::thread_main(y)"))
ACCUMULATE = (cpp("torch::autograd::AccumulateGrad::apply(x)"), cpp("torch::autograd::Engine::thread_main(y)"))
STEP = (
    python("_single_tensor_adam", "/lib/python3.12/site-packages/torch/optim/adam.py", 400),
    python("wrapper", "/lib/python3.12/site-packages/torch/optim/optimizer.py", 500), MAIN,
)
STATES = (python("_init_group", "/lib/python3.12/site-packages/torch/optim/adam.py", 100), *STEP[1:])
MOVED = (
    python("convert", "/lib/python3.12/site-packages/torch/nn/modules/module.py", 1300),
    python("_apply", "/lib/python3.12/site-packages/torch/nn/modules/module.py", 900), MAIN,
)
INPUT = (cpp("torch::autograd::THPVariable_to(_object*, _object*, _object*)"), MAIN)
WORKSPACE = (cpp("at::cuda::getNewWorkspace()"), *FORWARD)
PLAIN = (python("helper", line=7), MAIN)
ZERO_GRAD = (python("zero_grad", "/lib/python3.12/site-packages/torch/optim/optimizer.py", 900), MAIN)


START_US = 1_000_000


class Run(Process):
    """A process whose events have stacks and times, one microsecond apart."""

    def make(self, size: int, stack: Sequence[Frame] = ()) -> int:
        handle = self.request(size, stack=stack)
        assert handle is not None
        return handle

    def drop(self, handle: int, stack: Sequence[Frame] = ()) -> None:
        self.free(handle, stack=tuple(stack))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = self.clock
        yield
        self.annotate(name, start)

    def dump(self, first: int = 0) -> Snapshot:
        recorded = super().dump(first)
        trace = recorded.devices[0].trace
        trace.times_us = array("q", [START_US + time for time in trace.times_us])
        spans = (replace(span, start_us=START_US + span.start_us, end_us=START_US + span.end_us)
                 for span in recorded.annotations)
        return replace(recorded, annotations=tuple(spans))


def train(run: Run, steps: int, *, leaked_bytes: int = 0, keep: int = 10**9) -> None:
    """Steps of a small training run: 4 MiB of weights, as much of gradients, twice of states, 6 MiB of activations."""
    mib = 1 << 20
    weights = [run.make(2 * mib, MOVED) for _ in range(2)]
    states: list[int] = []
    kept: list[int] = []
    for _ in range(steps):
        activations = [run.make(3 * mib, FORWARD) for _ in weights]
        gradients = []
        for activation in reversed(activations):
            scratch = run.make(mib + 512, BACKWARD)
            gradients.append(run.make(2 * mib, ACCUMULATE))
            run.drop(activation, BACKWARD)
            run.drop(scratch, BACKWARD)
        with run.span("Optimizer.step#Adam.step"):
            states = states or [run.make(2 * mib, STATES) for _ in range(4)]
            run.drop(run.make(2 * mib, STEP), STEP)
        for gradient in gradients:
            run.drop(gradient, ZERO_GRAD)
        if leaked_bytes and len(kept) < keep:
            kept.append(run.make(leaked_bytes, PLAIN))
