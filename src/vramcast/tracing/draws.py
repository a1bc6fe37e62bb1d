"""What random operators draw from the generators of simulated cards: how many numbers, and which.

Operators that are not listed leave the generator where it was; what follows them is as random as on the card, but not
the same.

[dist] pytorch aten/src/ATen/native/cuda/DistributionTemplates.h
[dropout] pytorch aten/src/ATen/native/cuda/Dropout.cu: as many draws as [dist]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.catalogue.multiprocessors import multiprocessors, threads
from vramcast.tracing import philox
from vramcast.tracing.memory import Device
from vramcast.tracing.values import LARGEST_ELEMENTS

if TYPE_CHECKING:
    from vramcast.tracing.operators import Operator

WIDE_RANGE: Final = 1 << 28
"""Integers this far apart are made of 64 bits [dist]."""
BY_TENSOR: Final = 12
"""By how much `bernoulli_` with a tensor of probabilities moves the offset: 10, up to the next multiple of 4 [dist]."""
SIZED: Final = frozenset({"aten.rand", "aten.randn", "aten.randint"})
"""Are told how many numbers to make."""
LIKE: Final = frozenset(
    f"aten.{name}"
    for name in (
        "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "native_dropout", "normal_", "rand_like",
        "randint_like", "randn_like", "random_", "uniform_",
    )
)
"""Draw a number for each element of their first tensor."""


Bounds = list[int]


def drawn(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> torch.Tensor | None:
    """The numbers that a factory makes on a card, where they are few and known; the generator moves on in any case."""
    dtype = _dtype(operator, args, kwargs)
    count = _count(operator, args) * (2 if dtype.is_complex else 1)  # their real and imaginary parts [dist]
    generator = _generator(kwargs, device) if count else None
    state = None if generator is None else _state(generator, device)
    if generator is None or state is None:
        return None
    is_wide = _is_wide(operator, args, dtype)
    moved = state.increment(count, at_once=2 if is_wide else philox.DRAWN)
    generator.set_offset(state.offset + (BY_TENSOR if _is_by_tensor(operator, args) else moved))
    make = MAKERS.get(operator.name)
    if make is None or is_wide or dtype.is_complex or count > LARGEST_ELEMENTS:
        return None
    bounds = [arg for arg in args if isinstance(arg, int)]
    return make(count, bounds, state, dtype).view(_size(args))


def _uniform(count: int, _bounds: Bounds, state: philox.State, dtype: torch.dtype) -> torch.Tensor:
    return philox.uniform(count, state, dtype)


def _normal(count: int, _bounds: Bounds, state: philox.State, dtype: torch.dtype) -> torch.Tensor:
    return philox.normal(count, state).to(dtype)


def _integers(count: int, bounds: Bounds, state: philox.State, dtype: torch.dtype) -> torch.Tensor:
    low, high = bounds if len(bounds) > 1 else (0, bounds[0])
    return philox.integers(count, low, high, state).to(dtype)


MAKERS: Final[dict[str, Callable[[int, Bounds, philox.State, torch.dtype], torch.Tensor]]] = {
    "aten.rand": _uniform, "aten.randn": _normal, "aten.randint": _integers,
}


def _generator(kwargs: dict[str, Any], device: Device) -> Any:
    """The one that was given, else that of the card."""
    given, index = kwargs.get("generator"), device.torch_device.index
    if given is not None:
        return device.generators.get(given._cdata)
    return torch.cuda.default_generators[index] if index < len(torch.cuda.default_generators) else None


def _state(generator: Any, device: Device) -> philox.State | None:
    """None for a card whose multiprocessors nobody has listed."""
    count = multiprocessors(device.gpu.name) if device.gpu is not None else None
    if device.gpu is None or count is None:
        return None
    chip = count, threads(device.gpu.compute_capability)
    return philox.State(generator.initial_seed(), generator.get_offset(), *chip)


def _count(operator: Operator, args: tuple[Any, ...]) -> int:
    """Numbers that an operator draws."""
    if operator.name in SIZED:
        return prod(_size(args))
    if operator.name in LIKE and not (operator.name == "aten.native_dropout" and args[2] is False):
        return int(args[0].numel())
    return 0


def _is_by_tensor(operator: Operator, args: tuple[Any, ...]) -> bool:
    """Whether each element has a probability of its own."""
    return operator.name == "aten.bernoulli_" and len(args) > 1 and isinstance(args[1], torch.Tensor)


def _size(args: tuple[Any, ...]) -> Sequence[int]:
    """That a factory is told, behind the bounds of its numbers."""
    return next(arg for arg in args if isinstance(arg, (list, tuple)))


def _dtype(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """Of the numbers."""
    given: torch.dtype | None = kwargs.get("dtype")
    if given is not None:
        return given
    if args and isinstance(args[0], torch.Tensor):
        return args[0].dtype
    return torch.int64 if operator.name == "aten.randint" else torch.get_default_dtype()


def _is_wide(operator: Operator, args: tuple[Any, ...], dtype: torch.dtype) -> bool:
    """Whether numbers take 64 bits each: doubles and wide ranges."""
    numbers = [arg for arg in args if isinstance(arg, int)]
    if operator.name == "aten.randint":
        return bool(numbers) and numbers[-1] - sum(numbers[:-1]) >= WIDE_RANGE
    if operator.name == "aten.random_" and not numbers:
        return dtype in (torch.float64, torch.int64)
    return dtype in (torch.float64, torch.complex128)


__all__ = ["drawn"]
