"""Products and losses: autograd's formulas look at values, which it never does for tensors like subclasses.

Meta tensors are such, so that autograd keeps to formulas that are safe for all of them and take more memory. Here it
is assumed that no factor of a product is zero. binary_cross_entropy_with_logits: backward writes into the sigmoid
that it just made, and makes no new tensor a step. ctc_loss: lengths in tensors, on the host or on the card, are read
and handed on as numbers to the card's kernel.
[formula] pytorch torch/csrc/autograd/FunctionsManual.cpp: `prod_backward`, `cumprod_backward`, `reversed_cumsum`
[logits] pytorch torch/csrc/autograd/FunctionsManual.cpp `binary_cross_entropy_with_logits_backward` and
`..._target_backward`; the same operators in the same order are seen on the CPU
[ctc] pytorch aten/src/ATen/native/LossCTC.cpp `ctc_loss`: "Fast path (which accesses data_ptr)"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.composites.layers import apart
from vramcast.tracing.simulation import Simulation

NO_ZEROS: Final = "no factor of a product is zero"


def _below(operator: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """An operator without autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        result: torch.Tensor = operator(*args, **kwargs)
        return result


class _Product(torch.autograd.Function):
    """Of all elements, or of those along a dimension."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None
    ) -> torch.Tensor:
        if dim is None:
            result = _below(torch.ops.aten.prod.default, x, dtype=dtype)
        else:
            result = _below(torch.ops.aten.prod.dim_int, x, dim, keepdim, dtype=dtype)
        ctx.save_for_backward(x, result)
        ctx.dim, ctx.keepdim, ctx.dtype = dim, keepdim, x.dtype
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        gradient = gradients[0].to(ctx.dtype)
        if not x.dim():
            return (gradient * result).view_as(x), None, None, None
        if ctx.dim is None:
            _ = x == 0
            del _  # of whose coordinates there are none
            return gradient * (result / x), None, None, None
        if not ctx.keepdim:
            gradient, result = gradient.unsqueeze(ctx.dim), result.unsqueeze(ctx.dim)
        zeros = x == 0
        counts = zeros.sum(ctx.dim, keepdim=True)  # both live until the formula returns
        out = gradient * (result / x)
        del counts
        return out, None, None, None


class _Products(torch.autograd.Function):
    """Running products."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        result = _below(torch.ops.aten.cumprod.default, x, dim, dtype=dtype)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        gradient = gradients[0].to(x.dtype)
        if x.numel() <= 1:
            return gradient * result, None, None
        if x.size(ctx.dim) == 1:
            return gradient, None, None
        kept = result * gradient, x == 0  # until the formula returns
        return _sums_from_the_end(kept[0], ctx.dim).div(x), None, None


def _sums_from_the_end(x: torch.Tensor, dim: int) -> torch.Tensor:
    """All steps live until the last is made [formula `reversed_cumsum`]."""
    flipped = x.flip(dim)
    sums = flipped.cumsum(dim)
    return sums.flip(dim)


def _is_recorded(x: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def product(simulation: Simulation, x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    if not _is_recorded(x):
        return _below(torch.ops.aten.prod.default, x, dtype=dtype)
    _note(simulation)
    return _Product.apply(x, None, False, dtype)


def product_along(
    simulation: Simulation, x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if not _is_recorded(x):
        return _below(torch.ops.aten.prod.dim_int, x, dim, keepdim, dtype=dtype)
    _note(simulation)
    return _Product.apply(x, dim, keepdim, dtype)


def running_product(
    simulation: Simulation, x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if not _is_recorded(x):
        return _below(torch.ops.aten.cumprod.default, x, dim, dtype=dtype)
    _note(simulation)
    return _Products.apply(x, dim, dtype)


def _note(simulation: Simulation) -> None:
    simulation.assumptions.note(NO_ZEROS, simulation.origins.place())


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
        return _below(OPERATOR, x, target, weight, pos_weight, reduction)

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


def binary_cross_entropy_with_logits(
    _simulation: Simulation, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None, reduction: int = MEAN,
) -> torch.Tensor:
    """[logits]"""
    if not (torch.is_grad_enabled() and (x.requires_grad or target.requires_grad)):
        return _below(OPERATOR, x, target, weight, pos_weight, reduction)
    result: torch.Tensor = _Loss.apply(x, target, weight, pos_weight, reduction)
    return result


def ctc_loss(
    simulation: Simulation, log_probs: torch.Tensor, targets: torch.Tensor, steps: torch.Tensor,
    lengths: torch.Tensor, blank: int = 0, reduction: int = MEAN, zero_infinity: bool = False,
) -> torch.Tensor:
    """[ctc]"""
    known = [simulation.values.of(tensor) for tensor in (steps, lengths)]
    if any(each is None for each in known):  # the way on the card, which needs no values
        given = [tensor.to(log_probs.device) for tensor in (steps, lengths)]
        return apart(OF_TENSORS, log_probs, targets, *given, blank, reduction, zero_infinity)
    numbers = [each.tolist() for each in known if each is not None]
    result: torch.Tensor = OF_NUMBERS(log_probs, targets, *numbers, blank, reduction, zero_infinity)
    return result


COMPOSITES: Final[Mapping[str, Any]] = {
    "cumprod": running_product, "prod": product, "prod.dim_int": product_along,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits, "ctc_loss.Tensor": ctc_loss,
}
BACKWARD_ONLY: Final = frozenset(COMPOSITES) - {"ctc_loss.Tensor"}
"""Those that differ in backward only, and call the operator itself."""
