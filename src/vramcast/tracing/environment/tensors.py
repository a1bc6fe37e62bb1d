"""Tensor attributes and methods that ask for a device, answered for simulated tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

_META: Final = torch.device("meta")
FACTORIES: Final = ("tensor", "as_tensor", "asarray", "sparse_coo_tensor")
"""Functions of torch that read Python data and then move it: C++ asks for a real device there."""


def patch_tensors(patches: Patches, simulation: Simulation) -> None:
    """Let tensors and storages tell where they live, and move between simulated places."""
    base = torch._C.TensorBase
    real_device = base.device.__get__
    residents, kernels = simulation.memory.residents, simulation.kernels

    def device(self: torch.Tensor) -> torch.device:
        found: torch.device = real_device(self)
        if found == _META and not kernels.is_running:
            resident = residents.get(self.untyped_storage()._cdata)
            if resident is not None:
                return resident.device.torch_device
        return found

    patches.set(torch.Tensor, "device", property(device))
    patches.set(torch.Tensor, "is_cuda", property(lambda self: device(self).type == "cuda"))
    patches.set(torch.Tensor, "is_cpu", property(lambda self: device(self).type == "cpu"))
    patches.set(torch.Tensor, "is_meta", property(lambda self: device(self).type == "meta"))
    patches.set(torch.Tensor, "get_device", lambda self: device(self).index if device(self).type == "cuda" else -1)
    patches.set(torch.UntypedStorage, "device", property(lambda self: _storage_device(self, residents)))
    _patch_moves(patches)
    _patch_resize(patches, simulation)


def _storage_device(storage: torch.UntypedStorage, residents: Any) -> torch.device:
    resident = residents.get(storage._cdata)
    return torch._C.StorageBase.device.__get__(storage) if resident is None else resident.device.torch_device


def _patch_moves(patches: Patches) -> None:
    """`.to`, `.cuda` and factories from Python data: C++ would ask the CUDA library for the current device."""
    to = torch._C.TensorBase.to

    def moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return to(self, *(_indexed(arg) for arg in args), **{name: _indexed(arg) for name, arg in kwargs.items()})

    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> torch.Tensor:
        place = torch.device("cuda", device) if isinstance(device, int) else device or torch.device("cuda")
        return moved(self, device=place, non_blocking=non_blocking, memory_format=memory_format)

    patches.set(torch.Tensor, "to", moved)
    patches.set(torch.Tensor, "cuda", cuda)
    for name in FACTORIES:
        patches.set(torch, name, _built_on_host(getattr(torch, name)))


def _built_on_host(factory: Any) -> Any:
    def build(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.pop("device", None)
        if device is None:
            return factory(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        return factory(*args, **kwargs).to(device).requires_grad_(requires_grad)

    return build


def _indexed(value: Any) -> Any:
    """A CUDA device with its index: without one C++ asks the CUDA library for it."""
    if isinstance(value, str) and value.startswith("cuda"):
        value = torch.device(value)
    if isinstance(value, torch.device) and value.type == "cuda" and value.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return value


def _patch_resize(patches: Patches, simulation: Simulation) -> None:
    resize = torch._C.StorageBase.resize_

    def resized(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        resize(self, size)
        simulation.memory.resize(self, "storage.resize_")
        return self

    patches.set(torch.UntypedStorage, "resize_", resized)
