"""Tensors counted by what they are for: weights, gradients, states of optimizers.

Each storage counts once, rounded up to the blocks of the caching allocator, on the card alone. Of sharded tensors the
part of this rank counts. Left out: what quantised weights keep beside their tensor (bitsandbytes' scales), and masters
that a distributed optimizer hides from `param_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from vramcast.domain.program import ALLOCATION_GRANULARITY
from vramcast.units import ceil_div

MOST_ARGUMENTS: Final = 16
"""Arguments of a forward whose shapes are noted; a batch of more is not described whole."""


def parts(tensor: Any) -> Iterator[Any]:
    """The plain tensors that hold a tensor's memory on this rank."""
    sharded = getattr(tensor, "ds_tensor", None)  # DeepSpeed ZeRO-3 empties the parameter itself
    local = sharded if sharded is not None else getattr(tensor, "_local_tensor", tensor)
    if hasattr(local, "__tensor_flatten__"):
        for name in local.__tensor_flatten__()[0]:
            yield from parts(getattr(local, name))
        return
    yield local


def held_bytes(tensors: Iterable[Any], seen: set[int]) -> int:
    """Blocks of the storages on a card that were not seen before; they are seen afterwards [bytes]."""
    total = 0
    for tensor in tensors:
        for part in parts(tensor):
            if not part.is_cuda:
                continue
            storage = part.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                total += ceil_div(storage.nbytes(), ALLOCATION_GRANULARITY) * ALLOCATION_GRANULARITY
    return total


def weights(model: Any) -> Iterator[Any]:
    """Parameters and buffers of a module."""
    yield from model.parameters()
    yield from model.buffers()


def gradients(model: Any) -> Iterator[Any]:
    """Gradients that are there now."""
    return (parameter.grad for parameter in model.parameters() if parameter.grad is not None)


def states(optimizers: Iterable[Any]) -> Iterator[Any]:
    """States of optimizers, and parameters of theirs that may be masters of the model's."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
        for state in optimizer.state.values():
            yield from _tensors(state)


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


def counts(model: Any) -> tuple[int, int, tuple[str, ...]]:
    """Parameters on this rank, those that are trained, and their dtypes, the most numerous first."""
    by_dtype: dict[str, int] = {}
    trainable = 0
    for parameter in model.parameters():
        count = sum(part.numel() for part in parts(parameter))
        name = str(parameter.dtype).removeprefix("torch.")
        by_dtype[name] = by_dtype.get(name, 0) + count
        trainable += count if parameter.requires_grad else 0
    ordered = sorted(by_dtype, key=lambda name: -by_dtype[name])
    return sum(by_dtype.values()), trainable, tuple(ordered)


def shapes(given: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors among the arguments of a forward, or in a batch, by name or position."""
    if hasattr(given, "shape"):
        given = [given]
    named = given.items() if hasattr(given, "items") else enumerate(given) if isinstance(given, (list, tuple)) else ()
    found = {str(name): tuple(map(int, value.shape)) for name, value in named if hasattr(value, "shape")}
    return dict(list(found.items())[:MOST_ARGUMENTS])
