"""Small tensors whose values are known although they have no data: constants, masks, positions, loss scales.

Each keeps a real twin storage on the host with the same layout; operators whose inputs are all known run on the twins
as well. Where an input is not known, neither is the result.
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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from vramcast.catalogue.gpus import multiprocessors, threads
from vramcast.tracing.memory import HOST, Device, Memory
from vramcast.units import ceil_div

if TYPE_CHECKING:
    from vramcast.tracing.operators import Operator


LARGEST_ELEMENTS: Final = 1 << 16  # tensors of floats above keep no twin [elements]
LARGEST_KNOWN_INTEGERS: Final = 1 << 20
"""Tensors of integers and truth values above keep no twin: routing of experts, masks [elements]."""
RANDOM_FACTORIES: Final = frozenset({"aten.rand", "aten.randn", "aten.randint", "aten.randperm"})
"""Where `draws` does not know the card's numbers, small results hold what a generator on the host gives."""
DRAWN_ON_HOST: Final = frozenset({"aten.randperm"})
"""Short permutations are the host's own, also for a card: pytorch aten/src/ATen/native/cuda/Randperm.cu."""
UNWRITTEN: Final = frozenset({("aten._amp_foreach_non_finite_check_and_unscale_", 1)})
"""Operator and argument that keeps its value: whether a gradient overflowed. On the normal path none does."""
OVERWRITING: Final = frozenset({"aten.copy_", "aten.zero_", "aten.fill_"})
"""Operators after which nothing is left of what their first tensor held."""
ABSORBING: Final = {
    "aten.bitwise_and": False, "aten.bitwise_or": True, "aten.logical_and": False, "aten.logical_or": True,
}
"""Operators on truth values -> which of them decides the result, whatever the other is."""


def _steps(start: float, end: float | None = None, step: float = 1) -> float:
    return abs(start if end is None else end - start) / (abs(step) or 1)


MADE: Final[dict[str, Callable[..., float]]] = {
    "aten.arange": _steps,
    "aten.eye": lambda rows, columns=None, *_: rows * (rows if columns is None else columns),
    "aten.linspace": lambda _start, _end, steps=1, *_: steps,
    "aten.tril_indices": lambda rows, columns, *_: rows * columns,
    "aten.triu_indices": lambda rows, columns, *_: rows * columns,
}
"""Factories that are told numbers instead of a size -> at most how many elements they make."""


class Unknown(Exception):
    """An argument's values are not known."""


class Values:
    """Twins of simulated storages."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._random = torch.Generator(HOST).manual_seed(0).get_state()

    @contextmanager
    def generator_apart(self) -> Iterator[None]:
        """Within: random numbers come from a generator of its own; the host's goes on afterwards as if none had."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self._random)
        try:
            yield
        finally:
            self._random = torch.default_generator.get_state()
            torch.default_generator.set_state(before)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor with its values, None where they are not known."""
        resident = self._memory.of(tensor)
        if resident is None:
            return tensor if tensor.device.type == "cpu" else None
        if resident.twin is None or tensor.is_sparse:
            return None
        with torch._C._DisableTorchDispatch():  # else the view would be simulated, too
            view = torch.empty(0, dtype=tensor.dtype)
            return view.set_(resident.twin, tensor.storage_offset(), tensor.size(), tensor.stride())

    def set(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """The simulated tensor's values become known, if it is small."""
        resident = None if tensor.is_sparse else self._memory.of(tensor)
        if resident is not None and tensor.numel() <= most_known(tensor.dtype) and _same_layout(tensor, values):
            resident.twin = values.untyped_storage()

    def of_call(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operator gives on the known values; None where something is not known or the result is large.

        In-place operators change the twins on the way.
        """
        if operator.name in OVERWRITING:
            self._start(args[0])
        is_factory = operator.is_fill or operator.name in RANDOM_FACTORIES
        if (operator.is_random and not is_factory) or (not is_factory and not self._starts_known(args)):
            return None
        try:
            known_args = tuple(self._known(arg, operator) for arg in args)
            known = {name: self._known(arg, operator) for name, arg in kwargs.items() if name != "device"}
        except Unknown:
            return None
        if operator.makes:
            known["device"] = HOST
            if not known_args or _elements(known_args[0]) > LARGEST_ELEMENTS or _counted(operator, known_args):
                return None
        if any(isinstance(arg, (list, tuple)) and _elements(arg) > LARGEST_ELEMENTS for arg in known_args):
            return None  # sizes: of a gradient in front of a slice, of new zeros
        try:
            return operator.func(*known_args, **known)
        except (RuntimeError, NotImplementedError):
            return None  # no CPU kernel: nothing is known then

    def absorbed(self, operator: Operator, args: tuple[Any, ...]) -> torch.Tensor | None:
        """True or anything is true, false and anything is false; None where the values that are known do not decide."""
        decides, pair = ABSORBING[operator.name], args[:2]
        if not all(isinstance(arg, torch.Tensor) and arg.dtype is torch.bool for arg in pair):
            return None
        size = torch.broadcast_shapes(*(arg.size() for arg in pair))
        if size.numel() > LARGEST_KNOWN_INTEGERS:
            return None
        known = (self.of(arg) for arg in pair)
        if any(one is not None and bool((one == decides).all()) for one in known):
            return torch.full(size, decides)
        return None

    def keep(self, known: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor) and isinstance(known, torch.Tensor):
            resident = self._memory.of(out)
            if resident is not None and resident.twin is None:
                self.set(out, known)
        elif isinstance(out, (tuple, list)) and isinstance(known, (tuple, list)):
            for one, other in zip(out, known, strict=False):
                self.keep(other, one)

    def forget(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for index, name in operator.mutates:
            if (operator.name, index) in UNWRITTEN:
                continue
            written = args[index] if index < len(args) else kwargs.get(name)
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if isinstance(tensor, torch.Tensor):
                    self.lose(tensor)

    def lose(self, tensor: torch.Tensor) -> None:
        resident = self._memory.of(tensor)
        if resident is not None:
            resident.twin = None

    def _start(self, tensor: torch.Tensor) -> None:
        """A small tensor that is about to be overwritten: whatever it held, its values may be known afterwards."""
        resident = self._memory.of(tensor)
        if resident is None or resident.twin is not None or tensor.numel() > LARGEST_ELEMENTS:
            return
        num_bytes = tensor.untyped_storage().nbytes()
        if num_bytes == tensor.numel() * tensor.dtype.itemsize:
            resident.twin = torch.UntypedStorage(num_bytes)

    def _starts_known(self, args: tuple[Any, ...]) -> bool:
        """Whether the first tensor is known: the quick way out of nearly all calls."""
        for arg in args:
            first = arg[0] if isinstance(arg, (list, tuple)) and arg else arg
            if isinstance(first, torch.Tensor):
                resident = self._memory.of(first)
                return first.numel() <= most_known(first.dtype) if resident is None else resident.twin is not None
        return False

    def _known(self, arg: Any, operator: Operator) -> Any:
        if isinstance(arg, torch.Tensor):
            known = self.of(arg)
            if known is None and operator.is_fill and arg.numel() <= most_known(arg.dtype) and not operator.mutates:
                return torch.empty_strided(arg.size(), arg.stride(), dtype=arg.dtype)
            if known is None or known.numel() > most_known(known.dtype):
                raise Unknown
            return known.detach()
        if isinstance(arg, (list, tuple)):
            return type(arg)(self._known(part, operator) for part in arg)
        return arg


def most_known(dtype: torch.dtype) -> int:
    """Up to how many elements the values of a tensor are kept."""
    return LARGEST_ELEMENTS if dtype.is_floating_point or dtype.is_complex else LARGEST_KNOWN_INTEGERS


def _same_layout(tensor: torch.Tensor, values: torch.Tensor) -> bool:
    return (
        tensor.size() == values.size() and tensor.stride() == values.stride() and tensor.dtype == values.dtype
        and tensor.storage_offset() == values.storage_offset()
    )


def _counted(operator: Operator, args: tuple[Any, ...]) -> bool:
    """Whether a factory that is told numbers instead of a size makes too much to be kept."""
    scalars = (arg.item() if isinstance(arg, torch.Tensor) and not arg.dim() else arg for arg in args)
    numbers = [arg for arg in scalars if isinstance(arg, (int, float))]
    made = MADE.get(operator.name)
    return made is not None and bool(numbers) and made(*numbers) > LARGEST_KNOWN_INTEGERS


def _elements(first: Any) -> int:
    if isinstance(first, torch.Tensor):
        return first.numel()
    if isinstance(first, (list, tuple)):
        count = 1
        for size in first:
            count *= size if isinstance(size, int) else 1
        return count
    return 1


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
