"""What torch says of one process: its allocator's counters, the driver's free memory, and its tensors by what they are
for. Nothing here waits for the card.

`memory_stats` reads counters that the allocator keeps anyway; `cudaMemGetInfo` asks the driver and synchronises nothing
[torch] torch/cuda/memory.py, c10/cuda/CUDACachingAllocator.cpp. Each storage counts once, rounded up to the blocks of
the caching allocator, on the card alone. Of sharded tensors the part of this rank counts. Left out: what quantised
weights keep beside their tensor (bitsandbytes' scales), and masters that a distributed optimizer hides from
`param_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.observation import TorchSample
from vramcast.domain.program import ALLOCATION_GRANULARITY
from vramcast.units import ceil_div
from vramcast.version import __version__


class Place(NamedTuple):
    """The process and the card that samples are of."""

    pid: int
    device: int
    gpu_uuid: str
    gpu: str  # as torch names it
    simulated: bool
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1


def the_torch() -> Any:
    """Of the process that records: nothing else here needs it."""
    import torch

    return torch


def ready() -> bool:
    """Whether this process uses CUDA already: a hook must not be what makes a context on a card."""
    torch = the_torch()
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def place_of(device: int | None, pid: int, ranks: tuple[int, int, int]) -> Place:
    """The card by its number in torch, None for the current one; `ranks` are rank, local rank and world size."""
    torch = the_torch()
    index = torch.cuda.current_device() if device is None else device
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return Place(
        pid, index, f"GPU-{uuid}" if uuid else "", properties.name,
        type(properties).__module__.startswith("vramcast."), *ranks,
    )


def read(place: Place, *, time_s: float, step: int, phase: str) -> TorchSample:
    """The counters now; peaks are since they were last reset."""
    torch = the_torch()
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(place.device)
    free, total = torch.cuda.mem_get_info(place.device)
    allocated, reserved = _all(stats, "allocated_bytes"), _all(stats, "reserved_bytes")
    return TorchSample(
        time_s=time_s, pid=place.pid, gpu_uuid=place.gpu_uuid, step=step, phase=phase, device=place.device,
        rank=place.rank, local_rank=place.local_rank, allocated_bytes=allocated.get("current"),
        peak_allocated_bytes=allocated.get("peak"), reserved_bytes=reserved.get("current"),
        peak_reserved_bytes=reserved.get("peak"), active_bytes=_all(stats, "active_bytes").get("current"),
        inactive_split_bytes=_all(stats, "inactive_split_bytes").get("current"),
        num_alloc_retries=stats.get("num_alloc_retries"), num_ooms=stats.get("num_ooms"),
        device_used_bytes=total - free, device_total_bytes=total,
    )


def forget_peaks(place: Place) -> None:
    """Peaks count from here."""
    torch = the_torch()
    torch.cuda.reset_peak_memory_stats(place.device)


def _all(stats: dict[str, Any], name: str) -> dict[str, int]:
    found: dict[str, int] = stats.get(name, {}).get("all", {})
    return found


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


def plain_optimizer(optimizer: Any) -> Any:
    """The optimizer of torch inside those of accelerate, DeepSpeed and Lightning."""
    seen: set[int] = set()
    while id(optimizer) not in seen and hasattr(getattr(optimizer, "optimizer", None), "param_groups"):
        seen.add(id(optimizer))
        optimizer = optimizer.optimizer
    return optimizer


def plain_model(model: Any) -> Any:
    """The model inside DistributedDataParallel and torch.compile."""
    for name in ("module", "_orig_mod"):
        one = getattr(model, name, None)
        if one is not None and hasattr(one, "parameters"):
            return plain_model(one)
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
    torch = the_torch()
    found = {"vramcast": __version__, "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found
