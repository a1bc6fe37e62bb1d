"""Models and optimizers inside what frameworks put around them, and what is known of them without a card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from vramcast.domain.observation import TorchSample
from vramcast.version import __version__


def higher(one: TorchSample | None, other: TorchSample) -> TorchSample:
    """The first, or if there is none the second, with the higher peaks of both."""
    if one is None:
        return other
    return replace(
        one, peak_allocated_bytes=_most(one.peak_allocated_bytes, other.peak_allocated_bytes),
        peak_reserved_bytes=_most(one.peak_reserved_bytes, other.peak_reserved_bytes),
    )


def _most(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def elements(shapes: dict[str, tuple[int, ...]]) -> int:
    """Numbers in the tensors of such shapes [count]."""
    total = 0
    for shape in shapes.values():
        count = 1
        for size in shape:
            count *= size
        total += count
    return total


def plain(optimizer: Any) -> Any:
    """The optimizer of torch inside those of accelerate, DeepSpeed and Lightning."""
    seen: set[int] = set()
    while id(optimizer) not in seen and hasattr(getattr(optimizer, "optimizer", None), "param_groups"):
        seen.add(id(optimizer))
        optimizer = optimizer.optimizer
    return optimizer


def inner(model: Any) -> Any:
    """The model inside DistributedDataParallel and torch.compile."""
    for name in ("module", "_orig_mod"):
        one = getattr(model, name, None)
        if one is not None and hasattr(one, "parameters"):
            return inner(one)
    return model


def device_of(model: Any) -> int | None:
    """The card that a model lies on, by its first parameter there; None where it lies on none."""
    parameters: Iterable[Any] = () if model is None else model.parameters()
    return next((one.device.index for one in parameters if one.is_cuda), None)


def compiling() -> bool:
    """Whether torch.compile reads this hook: then it is to find nothing in it."""
    import torch

    return bool(torch.compiler.is_compiling())


def versions() -> dict[str, str]:
    """What takes part in the recording."""
    import torch

    found = {"vramcast": __version__, "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found
