"""Tensor attributes and methods that ask for a device, answered for simulated tensors.

A number is a card; C++ would ask for the accelerator of a build that has none. Gradients that cross devices: C++ knows
every simulated tensor as one of the meta device and moves none of them.
[copy] pytorch tools/autograd/derivatives.yaml, `_to_copy`: the gradient goes where the original was
[assign] pytorch torch/csrc/autograd/python_variable.cpp, `THPVariable_set_grad`: compares devices
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, cast

import torch
from torch.jit._builtins import _get_builtin_table
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._device import DeviceContext, _device_constructors

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.memory import META
from vramcast.tracing.simulation import Simulation

REAL: Final = torch.device


class _Numbered(type):
    """Makes and knows devices as the class that it stands for; equal to it as a key."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            return REAL("cuda", args[0])
        return REAL(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, REAL)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is REAL

    def __hash__(cls) -> int:
        return hash(REAL)


def patch_devices(patches: Patches) -> None:
    """Let numbers name cards."""
    patches.set(torch, "device", _Numbered("device", (), {"__module__": "torch"}))


def numbered(value: Any) -> Any:
    """A card for a number, anything else as it is."""
    return REAL("cuda", value) if type(value) is int else value


def send_back(original: torch.Tensor, copy: torch.Tensor, simulation: Simulation) -> torch.Tensor:
    """A copy that may be on another simulated device; its gradient goes where the original was [copy]."""
    node = copy.grad_fn
    if node is None or copy is original:
        return copy
    home, there = simulation.memory.of(original), simulation.memory.of(copy)
    if home is not None and there is not None and home.device is not there.device:
        device = home.device

        def back(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
            return tuple(None if each is None else simulation.moved(each, device) for each in gradients)

        node.register_prehook(back)
    return copy


def patch_gradients(patches: Patches, simulation: Simulation) -> None:
    """Let weights of the host that are real take gradients that came from a card, as offloading does."""
    slot, device = torch._C.TensorBase.grad, torch._C.TensorBase.device

    def assign(self: torch.Tensor, gradient: torch.Tensor | None) -> None:
        if (
            isinstance(gradient, torch.Tensor) and device.__get__(self).type == "cpu"
            and device.__get__(gradient).type == "meta" and gradient.device.type == "cpu"
        ):
            gradient = _with_data(gradient, simulation)
        slot.__set__(self, gradient)

    patches.set(torch.Tensor, "grad", property(slot.__get__, assign, slot.__delete__))


def _with_data(tensor: torch.Tensor, simulation: Simulation) -> torch.Tensor:
    """A real tensor of the host of the same size: its values where they are known, else zeros."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):  # made of others, as a DTensor
        names, context = tensor.__tensor_flatten__()
        inner: dict[str, Any] = {name: getattr(tensor, name) for name in names}
        for name, part in inner.items():
            inner[name] = _with_data(part, simulation) if isinstance(part, torch.Tensor) else part
        made: Any = type(tensor)
        return cast(torch.Tensor, made.__tensor_unflatten__(inner, context, tensor.size(), tensor.stride()))
    known = simulation.values.of(tensor)
    if known is not None:
        return known
    with torch._C._DisableTorchDispatch():
        return torch.zeros(tensor.size(), dtype=tensor.dtype)


_ONE_STORAGE: Final = (torch.Tensor, torch.nn.Parameter)
FROM_DATA: Final = ("tensor", "as_tensor", "asarray", "sparse_coo_tensor")
"""Functions of torch that read Python data and then move it."""
STAYS_DENSE: Final = "data decides what to_sparse leaves out: its result is counted as dense"
LIKE: Final = (
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
)
"""Functions of torch that make a tensor like another one."""


def patch_tensors(patches: Patches, simulation: Simulation) -> None:
    """Let tensors and storages tell where they live, and move between simulated places."""
    base = torch._C.TensorBase
    real_device = base.device.__get__
    residents, kernels = simulation.memory.residents, simulation.kernels

    def device(self: torch.Tensor) -> torch.device:
        found: torch.device = real_device(self)
        if found == META and not kernels.is_running:
            resident = simulation.memory.of(self)
            if resident is not None:
                return resident.device.torch_device
            if type(self) not in _ONE_STORAGE and hasattr(self, "__tensor_flatten__"):
                # A tensor made of others, as a DTensor, lives where they do.
                return device(getattr(self, self.__tensor_flatten__()[0][0]))
        return found

    patches.set(torch.Tensor, "device", property(device))
    patches.set(torch.Tensor, "is_cuda", property(lambda self: device(self).type == "cuda"))
    patches.set(torch.Tensor, "is_cpu", property(lambda self: device(self).type == "cpu"))
    patches.set(torch.Tensor, "is_meta", property(lambda self: device(self).type == "meta"))
    patches.set(torch.Tensor, "get_device", lambda self: device(self).index if device(self).type == "cuda" else -1)
    patches.set(torch.UntypedStorage, "device", property(lambda self: _storage_device(self, residents)))
    patches.set(torch.UntypedStorage, "data_ptr", lambda self: _address(self, residents))
    patches.set(torch.Tensor, "data_ptr", lambda self: _tensor_address(self, residents))
    _patch_groups(patches)
    _patch_new(patches, simulation)
    _patch_sparse(patches, simulation)
    _patch_wrappers(patches)
    _patch_moves(patches, simulation)
    _patch_factories(patches, simulation)
    _patch_storages(patches, simulation)


def _storage_device(storage: torch.UntypedStorage, residents: Any) -> torch.device:
    resident = residents.get(storage._cdata)
    return torch._C.StorageBase.device.__get__(storage) if resident is None else resident.device.torch_device


def _address(storage: torch.UntypedStorage, residents: Any) -> int:
    """Of a block, its address in the simulated allocator."""
    resident = residents.get(storage._cdata)
    if resident is None:
        return torch._C.StorageBase.data_ptr(storage)
    return resident.block.handle if resident.block is not None else storage._cdata


def _tensor_address(tensor: torch.Tensor, residents: Any) -> int:
    storage = tensor.untyped_storage()
    if storage._cdata not in residents:
        return torch._C.TensorBase.data_ptr(tensor)
    return _address(storage, residents) + tensor.storage_offset() * tensor.itemsize


def _patch_new(patches: Patches, simulation: Simulation) -> None:
    """`gradient.new(indices, values, size)`, as SparseAdam makes updates: C++ knows no sparse meta tensors there;
    `new_tensor(data)`, which C++ would make on the meta device."""
    new, new_tensor = torch.Tensor.new, torch.Tensor.new_tensor

    def like(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.sparse_coo_tensor(*args) if self.is_sparse and len(args) == 3 else new(self, *args, **kwargs)

    def of_data(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if simulation.memory.of(self) is None and device is None:
            return new_tensor(self, data, dtype=dtype, **kwargs)
        place = self.device if device is None else device
        return torch.tensor(data, dtype=dtype or self.dtype, device=place, **kwargs)

    patches.set(torch.Tensor, "new", like)
    patches.set(torch.Tensor, "new_tensor", of_data)


def _patch_sparse(patches: Patches, simulation: Simulation) -> None:
    """Data decides what `to_sparse` leaves out: what it makes of a simulated tensor stays dense."""

    def dense(method: Any, act: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        @wraps(method)
        def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if self.layout is not torch.strided or simulation.memory.of(self) is None:
                return cast(torch.Tensor, method(self, *args, **kwargs))
            simulation.assumptions.note(STAYS_DENSE, simulation.origins.place())
            return act(self)

        return call

    for name in ("to_sparse", "to_sparse_csr", "to_sparse_csc", "to_sparse_coo"):
        patches.set(torch.Tensor, name, dense(getattr(torch.Tensor, name), torch.Tensor.clone))

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return torch.arange(tensor.size(0) + 1, device=tensor.device) * tensor.size(1)

    def coordinates(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros(tensor.dim(), tensor.numel(), dtype=torch.int64, device=tensor.device)

    parts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "coalesce": lambda tensor: tensor, "crow_indices": rows, "indices": coordinates, "values": torch.Tensor.flatten,
    }
    for name, act in parts.items():
        patches.set(torch.Tensor, name, dense(getattr(torch.Tensor, name), act))


def _patch_groups(patches: Patches) -> None:
    """Optimizers and clipping take lists apart by device to see whether foreach kernels exist: C++ says meta."""
    group = torch._C._group_tensors_by_device_and_dtype

    def by_device(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
        groups: dict[Any, Any] = {}
        for (named, dtype), (parts, indices) in group(lists, True).items():
            places = [_device_of_first(row, named) for row in zip(*filter(None, parts), strict=True)]
            for place in dict.fromkeys(places):
                here = [index for index, found in enumerate(places) if found == place]
                split = [[part[index] for index in here] if part else [] for part in parts]
                groups[place, dtype] = split, [indices[index] for index in here] if with_indices else []
        return groups

    patches.set(torch._C, "_group_tensors_by_device_and_dtype", by_device)


def _device_of_first(tensors: Any, named: torch.device) -> torch.device:
    first = next((tensor for tensor in tensors if tensor is not None), None)
    return named if first is None else first.device


def _patch_wrappers(patches: Patches) -> None:
    """Tensors made of others: C++ would look for the library of the device that they name."""
    make = torch.Tensor._make_wrapper_subclass

    def on_meta(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = META
        return make(cls, *args, **kwargs)

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(on_meta))


def _patch_moves(patches: Patches, simulation: Simulation) -> None:
    """`.to` and `.cuda`: C++ would ask the CUDA library for the current device."""
    to, to_host = torch._C.TensorBase.to, torch._C.TensorBase.cpu

    def moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        resident = simulation.memory.of(self)
        if resident is not None and _names_meta(args, kwargs):
            with simulation.placement.meta_wanted():
                return torch.empty_like(self, device=META)
        if args and isinstance(args[0], torch.Tensor):
            args = args[0].device, args[0].dtype, *args[1:]  # whose real device C++ would ask for
        args, kwargs = tuple(map(_indexed, args)), {name: _indexed(arg) for name, arg in kwargs.items()}
        if resident is not None:  # who is there already stays: C++ knows only that it is no meta device
            here = resident.device.torch_device
            args = tuple(None if _is_place(arg, here) else arg for arg in args)
            kwargs = {name: arg for name, arg in kwargs.items() if not _is_place(arg, here)}
        return send_back(self, to(self, *args, **kwargs), simulation)

    def cpu(self: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        return send_back(self, to_host(self, memory_format=memory_format), simulation)

    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> torch.Tensor:
        place = torch.device("cuda", device) if isinstance(device, int) else device or torch.device("cuda")
        return moved(self, device=place, non_blocking=non_blocking, memory_format=memory_format)

    parse = torch._C._nn._parse_to  # of `Module.to`

    def parsed(*args: Any, **kwargs: Any) -> Any:
        return parse(*map(_indexed, args), **{name: _indexed(arg) for name, arg in kwargs.items()})

    patches.set(torch._C._nn, "_parse_to", parsed)
    patches.set(torch.Tensor, "to", moved)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", cpu)
    lazy = UninitializedTensorMixin  # which lets nobody else touch the parameters of lazy modules
    patches.set(lazy, "_allowed_methods", [*lazy._allowed_methods, moved, cuda, cpu, torch.Tensor.get_device])


def _patch_factories(patches: Patches, simulation: Simulation) -> None:
    """Functions that make tensors: who asks for meta tensors means it; Python data is read on the host."""
    scripted = _get_builtin_table()  # what torch.jit.script takes for operators of its own
    for factory in (*_device_constructors(), *(getattr(torch, name) for name in LIKE)):
        name = factory.__name__
        if getattr(torch, name, None) is factory:
            ours = _built_on_host(factory, simulation) if name in FROM_DATA else _explicit(factory, simulation)
            patches.set(torch, name, ours)
            if id(factory) in scripted:
                patches.put(scripted, id(ours), scripted[id(factory)])
    make = DeviceContext.__torch_function__

    def make_there(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device.type == "meta":
            with simulation.placement.meta_wanted():
                return make(self, func, types, args, kwargs)
        if func in _device_constructors() and func.__name__ in FROM_DATA:
            return _built_on_host(func, simulation)(*args, **{"device": self.device, **(kwargs or {})})
        return make(self, func, types, args, kwargs)

    patches.set(DeviceContext, "__torch_function__", make_there)


def _explicit(function: Any, simulation: Simulation) -> Any:
    """The function; where a caller names the meta device, the result is none of the simulated tensors."""
    placement = simulation.placement

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if not _names_meta(args, kwargs):
            if kwargs.pop("pin_memory", False):  # C++ asks the CUDA library for such memory
                return function(*args, **kwargs).pin_memory()
            return function(*args, **kwargs)
        with placement.meta_wanted():
            return function(*args, **kwargs)

    return call


def _names_meta(args: Any, kwargs: Any) -> bool:
    named = kwargs.get("device") or next((arg for arg in args if isinstance(arg, (str, torch.device))), None)
    return named is not None and str(named).startswith("meta")


def _built_on_host(factory: Any, simulation: Simulation) -> Any:
    """C++ moves what it reads from Python data only to devices that it has, and reads numbers among them itself."""

    @wraps(factory)
    def build(*args: Any, **kwargs: Any) -> torch.Tensor:
        args = tuple(_read(arg, simulation) if isinstance(arg, (list, tuple)) else arg for arg in args)
        device = kwargs.pop("device", None)
        is_pinned = kwargs.pop("pin_memory", False)
        if device is None:
            built: torch.Tensor = factory(*args, **kwargs)
            return built.pin_memory() if is_pinned else built
        device = numbered(device)
        requires_grad = kwargs.pop("requires_grad", False)
        built = factory(*args, **kwargs).to(device)
        return built.requires_grad_() if requires_grad else built

    return build


def _read(values: Any, simulation: Simulation) -> Any:
    """Python data in which simulated tensors of one element are numbers of their dtype on the host."""
    if isinstance(values, (list, tuple)):
        if not any(isinstance(value, (list, tuple, torch.Tensor)) for value in values):
            return values
        return [_read(value, simulation) for value in values]
    if isinstance(values, torch.Tensor) and values.numel() == 1 and simulation.memory.of(values) is not None:
        return torch.tensor(values.item(), dtype=values.dtype)
    return values


def _indexed(value: Any) -> Any:
    """A CUDA device with its index: without one C++ asks the CUDA library for it. A bare index is a card's."""
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.device("cuda", value)
    if isinstance(value, str) and value.startswith("cuda"):
        value = torch.device(value)
    if isinstance(value, torch.device) and value.type == "cuda" and value.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return value


def _is_place(value: Any, here: torch.device) -> bool:
    return isinstance(value, (str, torch.device)) and torch.device(value) == here


def _patch_storages(patches: Patches, simulation: Simulation) -> None:
    """Storages that are resized and copied without a tensor around them."""
    resize, clone = torch._C.StorageBase.resize_, torch.UntypedStorage.clone
    memory, residents = simulation.memory, simulation.memory.residents

    def resized(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        resize(self, size)
        memory.resize(self, "storage.resize_")
        return self

    def cloned(self: torch.UntypedStorage) -> torch.UntypedStorage:
        resident = residents.get(self._cdata)
        if resident is None:
            return clone(self)
        place = resident.device.torch_device
        copy = torch.empty(self.nbytes(), dtype=torch.uint8, device=place).untyped_storage()
        if resident.twin is not None and copy._cdata in residents:
            residents[copy._cdata].twin = clone(resident.twin)
        return copy

    patches.set(torch.UntypedStorage, "resize_", resized)
    patches.set(torch.UntypedStorage, "clone", cloned)
