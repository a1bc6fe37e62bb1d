"""Runs one workload, step by step. A simulation runs the very same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from truth.measure.networks import NETWORKS, Network, Place
from truth.measure.table import Workload

STEPS: Final = 4
"""The first makes the optimizer states, the second is steady."""
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS: Final[Mapping[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw_foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "adamw_single": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


class Steps:
    """One workload, built, and run a step at a time."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self._workload, self._device = workload, device
        self.network: Network = NETWORKS[workload.network](Place(device, DTYPES[workload.dtype]), **workload.options)
        model = self.network.model
        model.train(workload.optimizer is not None)
        self._called: nn.Module = torch.compile(model) if workload.compiled else model
        self._optimizer = OPTIMIZERS[workload.optimizer](model.parameters()) if workload.optimizer else None
        self._scaler = torch.amp.GradScaler(device.type, enabled=workload.amp == "fp16")

    def step(self) -> None:
        """Forward; for training also backward and the optimizer. Nothing of the step is kept."""
        if self._optimizer is None:
            with torch.no_grad():
                self._loss()
            return
        for _ in range(self._workload.accumulate):
            loss = self._loss()
            self._scaler.scale(loss).backward()
        if self._workload.clips:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self.network.model.parameters(), 1.0)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=not self._workload.keeps_gradients)

    def _loss(self) -> Tensor:
        batch = self.network.make_batch()
        amp = self._workload.amp
        with torch.autocast(self._device.type, dtype=DTYPES[amp or "bf16"], enabled=amp is not None):
            return self.network.loss(self._called, batch)


def run(workload: Workload, device: torch.device, *, before: Callable[[], Any], after: Callable[[], Any]) -> Steps:
    """All steps.

    Args:
        workload: what to run
        device: where
        before: called before every step
        after: called after every step

    Returns: what is still alive
    """
    torch.manual_seed(0)
    steps = Steps(workload, device)
    for _ in range(STEPS):
        before()
        steps.step()
        after()
    return steps
