"""Losses of which torch goes another way for tensors like subclasses, as meta tensors are.

binary_cross_entropy_with_logits: backward writes into the sigmoid that it just made, and makes no new tensor a step.
ctc_loss: lengths in tensors, on the host or on the card, are read and handed on as numbers to the card's kernel.

[formula] pytorch torch/csrc/autograd/FunctionsManual.cpp `binary_cross_entropy_with_logits_backward` and
`..._target_backward`; the same operators in the same order are seen on the CPU
[ctc] pytorch aten/src/ATen/native/LossCTC.cpp `ctc_loss`: "Fast path (which accesses data_ptr)"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites.apart import apart

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

MEAN: Final = 1  # at::Reduction
OF_NUMBERS: Final = torch.ops.aten.ctc_loss.IntList
OF_TENSORS: Final = torch.ops.aten.ctc_loss.Tensor
OPERATOR: Final = torch.ops.aten.binary_cross_entropy_with_logits.default


class _Loss(torch.autograd.Function):
    """The operator with the formula of tensors with data."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, pos_weight: torch.Tensor | None,
        reduction: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, target, weight, pos_weight)
        ctx.reduction = reduction
        return _below(x, target, weight, pos_weight, reduction)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, target, weight, pos_weight = ctx.saved_tensors
        of_x = of_target = None
        if ctx.needs_input_grad[0]:
            of_x = _scaled(_of_input(x, target, pos_weight).mul_(gradients[0]), weight, ctx.reduction)
        if ctx.needs_input_grad[1]:
            of_target = _scaled(_of_target(x, pos_weight, gradients[0]), weight, ctx.reduction)
        return of_x, of_target, None, None, None


def _of_input(x: torch.Tensor, target: torch.Tensor, pos_weight: torch.Tensor | None) -> torch.Tensor:
    if pos_weight is None:
        return torch.sigmoid(x).sub_(target)
    scaled = pos_weight * target
    return scaled.add(1).sub_(target).mul_(torch.sigmoid(x)).sub_(scaled)


def _of_target(x: torch.Tensor, pos_weight: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    if pos_weight is None:
        return -x * gradient
    logsigmoid = torch.nn.functional.logsigmoid
    return logsigmoid(-x).sub_(logsigmoid(x).mul_(pos_weight)).mul_(gradient)


def _scaled(gradient: torch.Tensor, weight: torch.Tensor | None, reduction: int) -> torch.Tensor:
    if weight is not None:
        gradient.mul_(weight)
    return gradient.div_(gradient.numel()) if reduction == MEAN else gradient


def _below(*args: Any) -> torch.Tensor:
    """The operator without autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return OPERATOR(*args)


def binary_cross_entropy_with_logits(_simulation: Simulation) -> Callable[..., torch.Tensor]:
    """[formula]"""

    def run(
        x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None,
        pos_weight: torch.Tensor | None = None, reduction: int = MEAN,
    ) -> torch.Tensor:
        if not (torch.is_grad_enabled() and (x.requires_grad or target.requires_grad)):
            return _below(x, target, weight, pos_weight, reduction)
        result: torch.Tensor = _Loss.apply(x, target, weight, pos_weight, reduction)
        return result

    return run


def ctc_loss(simulation: Simulation) -> Callable[..., torch.Tensor]:
    """[ctc]"""
    values = simulation.values

    def run(
        log_probs: torch.Tensor, targets: torch.Tensor, steps: torch.Tensor, lengths: torch.Tensor, blank: int = 0,
        reduction: int = MEAN, zero_infinity: bool = False,
    ) -> torch.Tensor:
        known = [values.of(tensor) for tensor in (steps, lengths)]
        if any(each is None for each in known):  # the way on the card, which needs no values
            given = [tensor.to(log_probs.device) for tensor in (steps, lengths)]
            return apart(OF_TENSORS, log_probs, targets, *given, blank, reduction, zero_infinity)
        numbers = [each.tolist() for each in known if each is not None]
        result: torch.Tensor = OF_NUMBERS(log_probs, targets, *numbers, blank, reduction, zero_infinity)
        return result

    return run


HOST_COMPOSITES: Final[Mapping[str, Any]] = {"binary_cross_entropy_with_logits": binary_cross_entropy_with_logits}
COMPOSITES: Final[Mapping[str, Any]] = {**HOST_COMPOSITES, "ctc_loss.Tensor": ctc_loss}
BACKWARD_ONLY: Final = tuple(HOST_COMPOSITES)
