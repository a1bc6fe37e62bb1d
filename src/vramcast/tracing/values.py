"""Small tensors whose values are known although they have no data: constants, masks, positions, loss scales.

Each keeps a real twin storage on the host with the same layout; operators whose inputs are all known run on the twins
as well. Where an input is not known, neither is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.memory import HOST, Memory

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
