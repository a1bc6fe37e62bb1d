"""Reading and assigning what simulated tensors hold: lists, arrays, text, `.data =`, `torch.cuda.FloatTensor`.

`.data =` between real and simulated tensors: C++ refuses that, as their implementations differ; two tensors of one
Python type can swap them instead, so that `Module.to("cuda")` keeps its parameters and what ties them. Scalars are
read by an operator, see `unknowns`.
[swap] pytorch torch/csrc/autograd/python_variable.cpp, THPModule_swap_tensor_impl
"""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation, blank


def patch_reading(patches: Patches, simulation: Simulation) -> None:
    """Known values where they are, assumed ones elsewhere; text says which of both."""
    memory, unknowns = simulation.memory, simulation.unknowns
    for name in ("tolist", "numpy", "__array__", "__dlpack__"):
        patches.set(torch.Tensor, name, _on_values(getattr(torch.Tensor, name), simulation))
    text = torch._tensor_str._str

    def described(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if memory.of(self) is None:
            return text(self, tensor_contents=tensor_contents)
        return _text(self, simulation)

    patches.set(torch._tensor_str, "_str", described)
    contains = torch.Tensor.__contains__

    def holds(self: torch.Tensor, element: Any) -> bool:
        resident = memory.of(self)
        return contains(self if resident is None else unknowns.array(self), element)

    patches.set(torch.Tensor, "__contains__", holds)


def _on_values(method: Any, simulation: Simulation) -> Any:
    """The method, on a real tensor with the values."""
    memory, unknowns = simulation.memory, simulation.unknowns

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        resident = memory.of(self)
        if resident is None:
            return method(self, *args, **kwargs)
        if method.__name__ == "numpy" and not kwargs.get("force"):
            _check_host(self, on_host=resident.device is memory.host)
        return method(unknowns.array(self), *args, **kwargs)

    return call


def _check_host(tensor: torch.Tensor, *, on_host: bool) -> None:
    if not on_host:
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )
    if tensor.requires_grad:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


def _text(tensor: torch.Tensor, simulation: Simulation) -> str:
    known = simulation.values.of(tensor)
    device = f"device='{tensor.device}'"
    gradient = ", requires_grad=True" if tensor.requires_grad else ""
    if known is not None:
        return f"{repr(known.detach())[:-1]}, {device}{gradient})"
    return f"tensor(..., {device}, size={tuple(tensor.size())}, dtype={tensor.dtype}{gradient})"


def patch_parameters(patches: Patches, simulation: Simulation) -> None:
    """Assigning data works across the border, as it does from host to card."""
    memory = simulation.memory
    data = torch._C.TensorBase.data
    is_compatible = torch._has_compatible_shallow_copy_type

    def assign(self: torch.Tensor, value: torch.Tensor) -> None:
        if not isinstance(value, torch.Tensor) or is_compatible(self, value):
            data.__set__(self, value)
            return
        gradient, self.grad = self.grad, None
        other = value.detach()
        other = other.as_subclass(type(self)) if not isinstance(self, torch.nn.Parameter) else other
        torch._C._swap_tensor_impl(self, other.requires_grad_(self.requires_grad))
        if gradient is not None:  # of the kind of its tensor, until whoever assigns converts it too
            empty = blank(gradient) if self.is_meta or memory.of(self) is not None else torch.empty_like(gradient)
            if memory.of(self) is not None:
                memory.adopt(empty, memory.host, "aten.empty_like")
            self.grad = empty

    def compatible(input: torch.Tensor, from_: torch.Tensor) -> bool:  # names that torch.compile compares
        return is_compatible(input, from_) or (memory.of(input) is not None) != (memory.of(from_) is not None)

    patches.set(torch.Tensor, "data", property(data.__get__, assign, data.__delete__))
    patches.set(torch, "_has_compatible_shallow_copy_type", compatible)


def patch_pinning(patches: Patches, simulation: Simulation) -> None:
    """Pinned host memory: a copy on the host that says it is pinned, and is counted as the host's allocator does."""
    held = simulation.memory.pinned

    def pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if held.holds(self.untyped_storage()):
            return self
        copy = self.detach().clone()
        held.hold(copy.untyped_storage())
        return copy

    patches.set(torch.Tensor, "pin_memory", pin)
    patches.set(torch.Tensor, "is_pinned", lambda self, device=None: held.holds(self.untyped_storage()))


DTYPES: Final = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16,
    "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}


class _OfDtype(type):
    """Tensors of a dtype on a card are its instances."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype

    def __call__(cls, *given: Any, device: Any = "cuda") -> torch.Tensor:
        if len(given) == 1 and not isinstance(given[0], (int, torch.Size)):
            return torch.tensor(given[0], dtype=cls.dtype).to(device)
        return torch.empty(*given, dtype=cls.dtype, device=device)


def patch_legacy(patches: Patches) -> None:
    """Classes that make tensors on the card, `tensor.type(...)` that names them, and one of them as the default."""
    made = {f"torch.cuda.{name}": _OfDtype(name, (), {"dtype": dtype}) for name, dtype in DTYPES.items()}
    for name, kind in made.items():
        patches.set(torch.cuda, name.rpartition(".")[2], kind)
    change = torch.Tensor.type

    def typed(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        kind = made.get(dtype) if isinstance(dtype, str) else dtype if isinstance(dtype, _OfDtype) else None
        if kind is not None:
            return self.to("cuda", kind.dtype, non_blocking=non_blocking)
        if dtype is None and self.is_cuda:
            return next((name for name, each in made.items() if isinstance(self, each)), "torch.cuda.Tensor")
        return change(self, dtype, non_blocking, **kwargs) if dtype is not None else change(self)

    patches.set(torch.Tensor, "type", typed)
    choose, make = torch.set_default_tensor_type, torch.Tensor.__new__

    def chosen(kind: Any) -> None:
        """Of a card: its dtype, and factories and `torch.Tensor(...)` make tensors there."""
        kind = made.get(kind, kind) if isinstance(kind, str) else kind
        is_of_card = isinstance(kind, _OfDtype)

        def new(cls: Any, *given: Any, **named: Any) -> Any:
            return kind(*given, **named) if is_of_card and cls is torch.Tensor else make(cls, *given, **named)

        patches.set(torch.Tensor, "__new__", staticmethod(new))
        torch.set_default_device("cuda" if is_of_card else None)
        if is_of_card:
            torch.set_default_dtype(kind.dtype)
        else:
            choose(kind)

    patches.set(torch, "set_default_tensor_type", chosen)
