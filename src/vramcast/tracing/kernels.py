"""Running meta kernels.

Those written in Python are slow: their results are remembered by the layout of their inputs, so a layer that repeats
costs less than the first.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._decomp import global_decomposition_table

META: Final = torch.device("meta")
MOST_REMEMBERED: Final = 20_000
_PLAIN: Final = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Kernels:
    """Answers operators with tensors without data."""

    def __init__(self) -> None:
        self.is_running = False  # meanwhile simulated tensors must answer as what they are
        self._remembered: dict[Any, Any] = {}
        # Operators whose meta kernel is written in Python: torch._meta_registrations.activate_meta
        self._slow = frozenset(op for kind in ("meta", "post_autograd") for op in global_decomposition_table[kind])

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator's outputs."""
        was_running, self.is_running = self.is_running, True
        try:
            if func not in self._slow or func._schema.is_mutable:
                return func(*args, **kwargs)
            try:
                key = func, _key(args), _key(kwargs.items()) if kwargs else (), torch.is_grad_enabled()
                layout = self._remembered.get(key)
            except _NoKey:
                return func(*args, **kwargs)
            if layout is not None:
                return _build(layout)
            out = func(*args, **kwargs)
            layout = _layout(out, args)
            if layout is not None and len(self._remembered) < MOST_REMEMBERED:
                self._remembered[key] = layout
            return out
        finally:
            self.is_running = was_running


class _NoKey(Exception):
    """An argument whose layout cannot stand for it."""


def _key(values: Any) -> tuple[Any, ...]:
    parts: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                raise _NoKey
            parts.append((value.size(), value.stride(), value.dtype, value.storage_offset()))
        elif isinstance(value, (list, tuple)):
            parts.append(_key(value))
        elif value is None or isinstance(value, _PLAIN):
            parts.append((type(value), value))
        else:
            raise _NoKey
    return tuple(parts)


def _layout(out: Any, args: Any) -> Any:
    """How to build such outputs anew; None where that cannot be told."""
    if isinstance(out, torch.Tensor):
        storage = out.untyped_storage()
        fits = out.storage_offset() == 0 and storage.nbytes() == _extent(out) * out.dtype.itemsize
        is_input = any(isinstance(arg, torch.Tensor) and arg.untyped_storage()._cdata == storage._cdata for arg in args)
        is_new = fits and not is_input and type(out) is torch.Tensor
        return (tuple(out.size()), out.stride(), out.dtype) if is_new else None
    if isinstance(out, (tuple, list)):
        parts = [_layout(part, args) for part in out]
        return None if None in parts else [*parts]
    return None


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def _build(layout: Any) -> Any:
    if isinstance(layout, list):
        return tuple(_build(part) for part in layout)
    size, stride, dtype = layout
    return torch.empty_strided(size, stride, dtype=dtype, device=META)
