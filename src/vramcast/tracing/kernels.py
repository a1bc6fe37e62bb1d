"""Running meta kernels.

Those written in Python are slow: their results are remembered by the layout of their inputs, so a layer that repeats
costs less than the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch._decomp import global_decomposition_table

META: Final = torch.device("meta")
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
