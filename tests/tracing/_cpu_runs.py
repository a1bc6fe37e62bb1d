"""Real runs on the CPU that are small, and the peaks that torch's profiler and a trace see of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from vramcast.tracing.session import Session

WITHIN = 0.001
VECTORS = "AVX512", "AVX2"
onednn = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in VECTORS or not torch.backends.mkldnn.is_available(),
    reason="oneDNN's layouts are known for x86 vectors only",
)
wide_vectors = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available(),
    reason="oneDNN's layouts were seen with AVX-512 only",
)
Run = Callable[[], Any]


def highest(changes: Iterable[int]) -> int:
    held = most = 0
    for change in changes:
        held += change
        most = max(most, held)
    return most


def real_peak(run: Run) -> int:
    """Of every byte the CPU's allocator gave and took back, in the order of time."""
    run()  # what torch makes once is there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            alive = run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    del alive
    return highest(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))


def traced_peak(run: Run) -> int:
    session = Session(None)
    with session.active():
        alive = run()
        tape = session.device.tape
        peak = highest((1 if event > 0 else -1) * tape.blocks[abs(event) - 1].num_bytes for event in tape.events)
        del alive
    return peak


def operator(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Run:
    """Forward and backward of a function of tensors, all of which get gradients."""

    def run() -> Any:
        given = [torch.randn(*shape, requires_grad=True) for shape in shapes or [(256, 300)]]
        y = function(*given)
        y = y[0] if isinstance(y, tuple) else y
        y.square().sum().backward()
        return given, y

    return run


def module(make: Callable[[], nn.Module], *shapes: tuple[int, ...], learns: bool = True, amp: bool = False) -> Run:
    """Two steps of training with SGD, or of inference, of a module on random inputs."""

    def run() -> Any:
        model = make().train(learns)
        optimizer = torch.optim.SGD(model.parameters(), 0.1) if learns else None
        for _ in range(2):
            inputs = [torch.randn(*shape) for shape in shapes]
            with torch.set_grad_enabled(learns), torch.autocast("cpu", torch.bfloat16, enabled=amp):
                y = model(*inputs)
                y = y[0] if isinstance(y, tuple) else y
            if optimizer is not None:
                y.float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return model, optimizer, y

    return run
