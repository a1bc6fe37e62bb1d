"""How Liger-Kernel's benchmarks call an operator: setup, ten iterations, the median peak.

`_test_memory` resets the peak before every call and reads `max_memory_allocated` after it, so gradients that earlier
iterations left in `.grad` count, and what the calls before left too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

from truth.rows.kernels.harness import Case

CUDA: Final = torch.device("cuda")
STEADY: Final = 3
"""Iterations after which the peak does not change any more."""
DTYPES: Final = {"torch.float32": torch.float32, "torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}
Outputs = Any


class Run(NamedTuple):
    """One benchmark after its setup."""

    forward: Callable[[], Outputs]
    backward: Callable[[Outputs], Any]
    before: Callable[[], Any] = lambda: None  # at the start of every iteration


def dtype_of(case: Case) -> torch.dtype:
    """The row's dtype; fp32 where it names none."""
    return DTYPES[case.config.get("dtype", "torch.float32")]


def leaf(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers that require a gradient."""
    return torch.randn(*size, dtype=dtype, device=CUDA, requires_grad=True)


def constant(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(*size, dtype=dtype, device=CUDA)


def labels(classes: int, *size: int) -> torch.Tensor:
    """Random classes."""
    return torch.randint(classes, size, device=CUDA)


def with_random_gradient(forward: Callable[[], torch.Tensor]) -> Run:
    """A gradient is drawn for every backward; the graph is kept."""
    return Run(forward, lambda y: y.backward(torch.randn_like(y), retain_graph=True))


def with_given_gradient(forward: Callable[[], torch.Tensor], gradient: torch.Tensor) -> Run:
    """The gradient is made once; the graph is kept."""
    return Run(forward, lambda y: y.backward(gradient, retain_graph=True))


def of_loss(forward: Callable[[], torch.Tensor], *, retain_graph: bool = False) -> Run:
    """A scalar."""
    return Run(forward, lambda y: y.backward(retain_graph=retain_graph))


def clearing(run: Run, *leaves: torch.Tensor) -> Run:
    """Gradients are dropped before every iteration."""

    def clear() -> None:
        for tensor in leaves:
            tensor.grad = None

    return run._replace(before=clear)


def by_autograd(
    forward: Callable[[], Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> Run:
    """`torch.autograd.grad`: nothing accumulates."""
    return Run(forward, lambda outputs: torch.autograd.grad(outputs, inputs, gradients, retain_graph=True))


def peak_bytes(run: Run, mode: str) -> int:
    """`max_memory_allocated` of a steady iteration [bytes]."""
    kept = run.forward() if mode == "backward" else None

    def forward() -> None:
        run.forward()

    def backward() -> None:
        run.backward(kept)

    def full() -> None:
        run.before()
        y = run.forward()
        run.backward(y)

    iteration = {"forward": forward, "backward": backward, "full": full}[mode]
    peak = 0
    for _ in range(STEADY):
        torch.cuda.reset_peak_memory_stats()
        iteration()
        peak = torch.cuda.max_memory_allocated()
    return peak
