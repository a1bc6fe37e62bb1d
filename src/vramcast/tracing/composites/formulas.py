"""Products and extrema: autograd's formulas look at values, which it never does for tensors like subclasses.

Meta tensors are such, so that autograd keeps to formulas that are safe for all of them and take more memory. Here it is
assumed that no factor is zero and no extremum is NaN.
[formula] pytorch torch/csrc/autograd/FunctionsManual.cpp: `prod_backward`, `cumprod_backward`, `reversed_cumsum`,
`evenly_distribute_backward`, whose other branch cards take, too
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
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


class _Extremum(torch.autograd.Function):
    """Of all elements."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, operator: Any) -> torch.Tensor:
        result = _below(operator, x)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        mask = x == result
        return gradients[0].new_zeros(x.size(), dtype=x.dtype).masked_fill_(mask, gradients[0] / mask.sum()), None


def _is_recorded(x: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def product(simulation: Simulation) -> Callable[..., torch.Tensor]:
    """`prod` of all elements."""

    def run(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        if not _is_recorded(x):
            return _below(torch.ops.aten.prod.default, x, dtype=dtype)
        _note(simulation)
        return _Product.apply(x, None, False, dtype)

    return run


def product_along(simulation: Simulation) -> Callable[..., torch.Tensor]:
    """`prod` along a dimension."""

    def run(
        x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        if not _is_recorded(x):
            return _below(torch.ops.aten.prod.dim_int, x, dim, keepdim, dtype=dtype)
        _note(simulation)
        return _Product.apply(x, dim, keepdim, dtype)

    return run


def running_product(simulation: Simulation) -> Callable[..., torch.Tensor]:
    """`cumprod`."""

    def run(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        if not _is_recorded(x):
            return _below(torch.ops.aten.cumprod.default, x, dim, dtype=dtype)
        _note(simulation)
        return _Products.apply(x, dim, dtype)

    return run


def _note(simulation: Simulation) -> None:
    simulation.assumptions.note(NO_ZEROS, simulation.origins.place())


def _extremum(operator: Any) -> Callable[[Simulation], Callable[..., torch.Tensor]]:
    def make(_simulation: Simulation) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            if not _is_recorded(x):
                return _below(operator, x)
            return _Extremum.apply(x, operator)

        return run

    return make


COMPOSITES: Final[Mapping[str, Any]] = {
    "cumprod": running_product, "prod": product, "prod.dim_int": product_along,
}
"""On every device."""
HOST_COMPOSITES: Final[Mapping[str, Any]] = {
    name: _extremum(getattr(torch.ops.aten, name).default) for name in ("max", "median", "min", "nanmedian")
}
"""Which cards take apart as tensors like subclasses are."""
