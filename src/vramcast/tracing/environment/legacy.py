"""`torch.cuda.FloatTensor` and its kin, which old code still writes."""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches

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
        if len(given) == 1 and not isinstance(given[0], int):
            return torch.tensor(given[0], dtype=cls.dtype).to(device)
        return torch.empty(*given, dtype=cls.dtype, device=device)


def patch_legacy(patches: Patches) -> None:
    """Classes that make tensors on the card, and `tensor.type(...)` that names them."""
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
