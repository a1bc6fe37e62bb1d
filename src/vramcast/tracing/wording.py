"""Refusals in the words that users know: meta kernels written in Python have words of their own for wrong shapes."""

from __future__ import annotations

from typing import Any, Final

import torch

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
