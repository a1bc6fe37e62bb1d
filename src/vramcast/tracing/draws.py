"""What random operators draw from the generators of simulated cards: how many numbers, and which.

Operators that are not listed leave the generator where it was; what follows them is as random as on the card, but not
the same. Numbers depend on seed, offset and, for tensors larger than one wave of threads, on the card's
multiprocessors.

[philox] Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011: Philox4x32-10
[curand] CUDA toolkit curand_kernel.h `curand_init`, curand_uniform.h `_curand_uniform`, curand_normal.h
`_curand_box_muller`
[dist] pytorch aten/src/ATen/native/cuda/DistributionTemplates.h `calc_execution_policy`,
`distribution_elementwise_grid_stride_kernel`, `uniform_kernel`, `random_from_to_kernel`
[dropout] pytorch aten/src/ATen/native/cuda/Dropout.cu: as many draws as [dist]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from vramcast.catalogue.gpus import multiprocessors, threads
from vramcast.tracing.memory import HOST, Device
from vramcast.tracing.values import LARGEST_ELEMENTS
from vramcast.units import ceil_div

if TYPE_CHECKING:
    from vramcast.tracing.operators import Operator


BLOCK: Final = 256  # threads
DRAWN: Final = 4  # words a thread draws at once, and what the offset grows by for each draw
ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
WORD: Final = 0xFFFFFFFF
TO_UNIT: Final = 2.0**-32
TO_CIRCLE: Final = TO_UNIT * 6.283185482025146  # 2 pi in fp32


class State(NamedTuple):
    """Of a generator, and the card that its kernels run on."""

    seed: int
    offset: int  # numbers that each thread has drawn so far
    multiprocessors: int
    threads: int  # of a multiprocessor

    def wave(self, count: int) -> int:
        """Threads of the kernel that makes so many numbers [dist]."""
        return BLOCK * min(ceil_div(count, BLOCK), self.multiprocessors * (self.threads // BLOCK))

    def increment(self, count: int, at_once: int = DRAWN) -> int:
        """By how much making so many numbers moves the offset; a thread makes 2 of 64 bits of one draw, else 4."""
        return ceil_div(count, self.wave(count) * at_once) * DRAWN if count else 0


def words(count: int, state: State) -> torch.Tensor:
    """Random words of 32 bits, one for each element of a contiguous tensor, as int64."""
    return _words(count, state).flatten()[:count]


def uniform(count: int, state: State, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of up to 32 bits in [0, 1): to the bit those of the card."""
    unit = (words(count, state).to(torch.float32) * TO_UNIT + TO_UNIT / 2).to(dtype)
    return torch.where(unit == 1, torch.zeros_like(unit), unit)


def normal(count: int, state: State) -> torch.Tensor:
    """fp32, within 2e-6 of the card's, whose sine and cosine are approximations [curand]."""
    drawn = _words(count, state).to(torch.float64)
    radius = (drawn[0::2] * TO_UNIT + TO_UNIT / 2).to(torch.float32).log().mul(-2).sqrt()
    angle = (drawn[1::2] * TO_CIRCLE + TO_CIRCLE / 2).to(torch.float32)
    return torch.stack((angle.sin() * radius, angle.cos() * radius), dim=1).flatten()[:count]


def integers(count: int, low: int, high: int, state: State) -> torch.Tensor:
    """int64 in [low, high), which are less than 2**28 apart: to the bit those of the card."""
    return words(count, state) % (high - low) + low


def _words(count: int, state: State) -> torch.Tensor:
    """One row for every element that a thread makes, one column for every thread [dist]."""
    threads = state.wave(count)
    draws = ceil_div(count, threads * DRAWN)
    thread = torch.arange(threads, device=HOST).expand(draws, threads)
    counter = torch.arange(draws, device=HOST).unsqueeze(1) + state.offset // DRAWN
    low, high = ((counter >> shift & WORD).expand_as(thread) for shift in (0, 32))
    parts = _encrypted([low, high, thread, torch.zeros_like(thread)], state.seed)
    return torch.stack(parts, dim=1).flatten(0, 1)


def _encrypted(counter: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """[philox] Products wrap around at 64 bits, as their lower halves need."""
    key = [seed & WORD, seed >> 32 & WORD]
    for _ in range(ROUNDS):
        first, second = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = [
            (second >> 32 & WORD) ^ counter[1] ^ key[0], second & WORD,
            (first >> 32 & WORD) ^ counter[3] ^ key[1], first & WORD,
        ]
        key = [word + step & WORD for word, step in zip(key, KEY_STEPS, strict=True)]
    return counter


WIDE_RANGE: Final = 1 << 28  # integers this far apart are made of 64 bits [dist]
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


def drawn(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> torch.Tensor | None:
    """The numbers that a factory makes on a card, where they are few and known; the generator moves on in any case."""
    dtype = _dtype(operator, args, kwargs)
    count = _count(operator, args) * (2 if dtype.is_complex else 1)  # their real and imaginary parts [dist]
    generator = _generator(kwargs, device) if count else None
    state = None if generator is None else _state(generator, device)
    if generator is None or state is None:
        return None
    is_wide = _is_wide(operator, args, dtype)
    moved = state.increment(count, at_once=2 if is_wide else DRAWN)
    generator.set_offset(state.offset + (BY_TENSOR if _is_by_tensor(operator, args) else moved))
    make = MAKERS.get(operator.name)
    if make is None or is_wide or dtype.is_complex or count > LARGEST_ELEMENTS:
        return None
    bounds = [arg for arg in args if isinstance(arg, int)]
    return make(count, bounds, state, dtype).view(_size(args))


MAKERS: Final[dict[str, Callable[[int, list[int], State, torch.dtype], torch.Tensor]]] = {
    "aten.rand": lambda count, _bounds, state, dtype: uniform(count, state, dtype),
    "aten.randn": lambda count, _bounds, state, dtype: normal(count, state).to(dtype),
    "aten.randint": lambda count, bounds, state, dtype: (
        integers(count, bounds[0] if len(bounds) > 1 else 0, bounds[-1], state).to(dtype)
    ),
}


def _generator(kwargs: dict[str, Any], device: Device) -> Any:
    given, index = kwargs.get("generator"), device.torch_device.index
    if given is not None:
        return device.generators.get(given._cdata)
    return torch.cuda.default_generators[index] if index < len(torch.cuda.default_generators) else None


def _state(generator: Any, device: Device) -> State | None:
    """None for a card whose multiprocessors nobody has listed."""
    count = multiprocessors(device.gpu.name) if device.gpu is not None else None
    if device.gpu is None or count is None:
        return None
    chip = count, threads(device.gpu.compute_capability)
    return State(generator.initial_seed(), generator.get_offset(), *chip)


def _count(operator: Operator, args: tuple[Any, ...]) -> int:
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
