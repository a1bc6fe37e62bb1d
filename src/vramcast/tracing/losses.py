"""From what a forward returns to the scalar that backward begins at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch
from torch.nn import functional

from vramcast.errors import InvalidSpec, UnknownName

Loss = Callable[[Any], torch.Tensor]


def make_loss(name: str) -> Loss:
    """The loss of a name or of module:function, which is given what the forward returned.

    Raises: UnknownName with the nearest names
    """
    if ":" in name:
        from vramcast.tracing.targets import found_object

        found = found_object(name)
        if not callable(found):
            raise InvalidSpec(f"loss={name} is no function; give one that takes what the forward returns")
        return lambda output: _scalar(found(output), name)
    if name not in LOSSES:
        raise UnknownName.of("loss", name, LOSSES)
    return lambda output: _scalar(LOSSES[name](output), name)


def default_loss(output: Any, family: str) -> str:
    """The loss that an output calls for."""
    if _own_loss(output) is not None:
        return "own"
    first = first_tensor(output)
    if family in ("timm", "torchvision") and first is not None and first.dim() in (2, 4):
        return "cross_entropy"
    return "mean"


def _own(output: Any) -> torch.Tensor:
    found = _own_loss(output)
    if found is None:
        raise InvalidSpec("loss=own: the forward returns no loss; give --loss, for example --loss mean")
    return found


def _own_loss(output: Any) -> torch.Tensor | None:
    """A model's own loss: an attribute or key, a dict of losses, or a scalar."""
    if isinstance(output, torch.Tensor):
        return output if output.dim() == 0 else None
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    parts = list(output.values()) if isinstance(output, Mapping) and output else []
    if parts and all(isinstance(part, torch.Tensor) and part.dim() == 0 for part in parts):
        return torch.stack(parts).sum()  # detection models of torchvision
    return None


def _cross_entropy(output: Any) -> torch.Tensor:
    scores = _prediction(output)
    target = torch.zeros((scores.shape[0], *scores.shape[2:]), dtype=torch.int64).to(scores.device)
    return functional.cross_entropy(scores, target)


def _mse(output: Any) -> torch.Tensor:
    scores = _prediction(output)
    return functional.mse_loss(scores, torch.zeros(scores.shape, dtype=scores.dtype).to(scores.device))


def _prediction(output: Any) -> torch.Tensor:
    found = first_tensor(output)
    if found is None:
        raise InvalidSpec("the forward returns no tensor of floats; give --loss module:function that makes one of it")
    return found


def first_tensor(output: Any, *, with_dimensions: bool = False) -> torch.Tensor | None:
    """The first tensor of floats in what a forward returned; where asked, behind a loss of one number."""
    floats = [tensor for tensor in _tensors(output) if tensor.is_floating_point()]
    wanted = [tensor for tensor in floats if tensor.dim()] if with_dimensions else []
    return next(iter(wanted or floats), None)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from _tensors(part)
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors(part)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from _tensors(getattr(output, field.name))


def _scalar(loss: Any, name: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InvalidSpec(f"loss={name} gives {what}, but backward begins at a scalar; reduce it, or give --loss mean")
    return loss


LOSSES: Final[Mapping[str, Callable[[Any], torch.Tensor]]] = {
    "own": _own, "cross_entropy": _cross_entropy, "mse": _mse,
    "sum": lambda output: _prediction(output).sum(), "mean": lambda output: _prediction(output).mean(),
}
