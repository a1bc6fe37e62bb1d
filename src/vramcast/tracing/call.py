"""What a rule gets: one operator call on a simulated device, and ways to say what it allocates; meta kernels.

Meta kernels written in Python are slow: their results are remembered by the layout of their inputs, so a layer that
repeats costs less than the first. They have words of their own for wrong shapes: refusals are in those that users know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch
from torch._decomp import global_decomposition_table

from vramcast.domain.program import Category
from vramcast.tracing.memory import META, Device
from vramcast.tracing.tape import Block

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation


MOST_REMEMBERED: Final = 20_000
WRITE_ONLY: Final = ("aten::_foreach_", "aten::_fused_")
"""Operators on lists of tensors: those that return nothing write in place, and their kernels look at every tensor."""
_NEW: Final = object()
_NOT_TOLD: Final = object()
_PLAIN: Final = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Kernels:
    """Answers operators with tensors without data."""

    def __init__(self) -> None:
        self.is_running = False  # meanwhile simulated tensors must answer as what they are
        self._remembered: dict[Any, Any] = {}
        # Operators whose meta kernel is written in Python: torch._meta_registrations.activate_meta
        self._slow = frozenset(op for kind in ("meta", "post_autograd") for op in global_decomposition_table[kind])

    @contextmanager
    def running(self, is_running: bool = True) -> Iterator[None]:
        """Within: simulated tensors answer as the meta tensors they are, or as those of the card again."""
        was_running, self.is_running = self.is_running, is_running
        try:
            yield
        finally:
            self.is_running = was_running

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator's outputs."""
        schema = func._schema
        if not schema.returns and schema.name.startswith(WRITE_ONLY):
            return None
        with self.running():
            if func not in self._slow:
                return func(*args, **kwargs)
            return func(*_all_meta(args), **kwargs) if schema.is_mutable else self._remembering(func, args, kwargs)

    def _remembering(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            key = func, _key(args), _key(kwargs.items()) if kwargs else ()
        except _NoKey:
            return func(*_all_meta(args), **kwargs)
        layout = self._remembered.get(key, _NEW)
        if layout is not _NEW and layout is not _NOT_TOLD:
            return _build(layout)
        out = func(*args, **kwargs)
        if layout is _NEW and len(self._remembered) < MOST_REMEMBERED:
            try:
                self._remembered[key] = _layout(out, args)
            except _NoKey:
                self._remembered[key] = _NOT_TOLD
        return out


def _all_meta(args: Any) -> Any:
    """The arguments; numbers in tensors of the host go with those of any device, but kernels in Python refuse them."""
    return [
        torch.empty_like(arg, device=META) if isinstance(arg, torch.Tensor) and not arg.dim() and not arg.is_meta
        else arg
        for arg in args
    ]


class _NoKey(Exception):
    """An argument whose layout cannot stand for it."""


def _key(values: Any) -> tuple[Any, ...]:
    parts: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if not value.is_meta or value.layout is not torch.strided:
                raise _NoKey
            parts.append((value.size(), value.stride(), value.dtype, value.storage_offset()))
        elif isinstance(value, (list, tuple)):
            parts.append(_key(value))
        elif value is None or isinstance(value, _PLAIN):
            parts.append((type(value), value))
        else:
            raise _NoKey
    return tuple(parts)


class _Layout(NamedTuple):
    """A tensor that fills its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _layout(out: Any, args: Any) -> Any:
    """How to build such outputs anew: layouts, plain values and lists of them.

    Raises: _NoKey where that cannot be told.
    """
    if isinstance(out, torch.Tensor):
        if out.layout is not torch.strided:
            raise _NoKey
        storage = out.untyped_storage()
        fits = out.storage_offset() == 0 and storage.nbytes() == _extent(out) * out.dtype.itemsize
        is_input = any(isinstance(arg, torch.Tensor) and arg.untyped_storage()._cdata == storage._cdata for arg in args)
        if not fits or is_input or type(out) is not torch.Tensor:
            raise _NoKey
        return _Layout(tuple(out.size()), out.stride(), out.dtype)
    if isinstance(out, (tuple, list)):
        return [_layout(part, args) for part in out]
    if out is None or isinstance(out, _PLAIN):
        return out
    raise _NoKey


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def _build(layout: Any) -> Any:
    if isinstance(layout, _Layout):
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device=META)
    return tuple(_build(part) for part in layout) if isinstance(layout, list) else layout


LARGEST_ELEMENTS: Final = 1 << 24
"""Calls with more are not tried: should the CPU's kernel accept one, it takes its time."""


def as_on_host(func: Any, args: Any, kwargs: dict[str, Any], error: RuntimeError) -> RuntimeError:
    """What the CPU's kernel says of tensors of the same sizes, else the meta kernel's own error.

    Operators that write into an argument are left alone: one element stands for each whole tensor.
    """
    if type(error) is not RuntimeError or func._schema.is_mutable:
        return error
    given = _Given()
    try:
        with torch._C._DisableTorchDispatch():
            func(*given.of(args), **{name: given.of(arg) for name, arg in kwargs.items()})
    except RuntimeError as words:
        return words if type(words) is RuntimeError else error
    except Exception:  # of what is no tensor here
        return error
    return error


class _TooMany(Exception):
    """More elements than are tried."""


class _Given:
    """Arguments of a call, as tensors of the host of one element each, seen in their sizes."""

    def __init__(self) -> None:
        self._elements = 0

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self._elements += value.numel()
            if self._elements > LARGEST_ELEMENTS:
                raise _TooMany
            return torch.zeros((), dtype=value.dtype).expand(value.size())
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        return torch.device("cpu") if isinstance(value, torch.device) else value


class Callee(Protocol):
    """What is called: an operator, or a function of a compiled module."""

    @property
    def func(self) -> Any:
        """The operator's overload; None for a function."""

    @property
    def name(self) -> str:
        """As it stands in ledgers."""


class Call:
    """One call of an operator whose tensors live on `device`."""

    __slots__ = ("_scratch", "args", "device", "func", "is_read", "kwargs", "name", "simulation")

    def __init__(
        self, simulation: Simulation, operator: Callee, args: Sequence[Any], kwargs: dict[str, Any], device: Device
    ) -> None:
        self.simulation, self.args, self.kwargs, self.device = simulation, args, kwargs, device
        self.func, self.name = operator.func, operator.name
        self.is_read = True  # False: its rule knows the outputs, nobody what else is allocated
        self._scratch: list[Block] = []

    def arg(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)

    def named(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the schema: overloads have it in different positions."""
        places = [argument.name for argument in self.func._schema.arguments]
        return self.arg(places.index(name), name, default) if name in places else default

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The meta kernel, of other arguments where given; its new outputs become blocks, in the order returned."""
        out = self.simulation.on_meta(self.func, args or self.args, kwargs or self.kwargs, self.device)
        self.simulation.adopt(out, self.device, self.name)
        return out

    def apart(self, key: Any) -> Any:
        """The operator's own kernel of that dispatch key; every operator within is seen alone."""
        with self.simulation, self.simulation.kernels.running(False):
            return self.func._op_dk(key, *self.args, **self.kwargs)

    def empty(
        self, size: Sequence[int], *, dtype: torch.dtype, strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A new tensor on the device, contiguous unless strides are given."""
        if strides is None:
            tensor = torch.empty(size, dtype=dtype, device="meta")
        else:
            tensor = torch.empty_strided(size, strides, dtype=dtype, device="meta")
        self.simulation.memory.adopt(tensor, self.device, self.name)
        return tensor

    def scratch(self, num_bytes: int, what: str) -> Block | None:
        """Memory the operator takes now and gives back when it returns, last taken first; none on the host [bytes]."""
        if self.device.is_cpu:
            return None
        block = self.device.take(num_bytes, self.name, category=Category.TEMPORARIES, name=what)
        if block is not None:
            self._scratch.append(block)
        return block

    def release(self, block: Block | None) -> None:
        """Give a scratch block back before the operator returns."""
        if block is not None:
            self._scratch.remove(block)
            self.device.give(block)

    def workspace(self, key: object, num_bytes: int, what: str) -> None:
        """Memory a library keeps from its first use on, per stream; none on the host [bytes]."""
        device = self.device
        if device.is_cpu:
            return
        place = key, device.stream
        held = device.workspaces.get(place)
        if held is None or held.num_bytes < num_bytes:
            block = device.take(num_bytes, self.name, category=Category.WORKSPACES, name=what)
            if block is not None:
                device.workspaces[place] = block
                if held is not None:
                    device.give(held)

    def finish(self) -> None:
        while self._scratch:
            self.device.give(self._scratch.pop())


Rule = Callable[[Call], Any]
"""Returns what the operator returns."""
