"""`torch.nn.DataParallel` and threads.

The native scatter and gather exist in CUDA builds only; replicas run one after the other instead of in threads.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final

import torch
from torch.nn.parallel import comm

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

SPAWNED: Final = "of the processes that torch.multiprocessing starts, one is traced"
AUTOCAST: Final = torch._C.DispatchKey.AutocastCUDA


def patch_parallel(patches: Patches, simulation: Simulation) -> None:
    """Several simulated cards in one process."""
    for name, function in (
        ("scatter", _scatter), ("gather", _gather), ("broadcast_coalesced", _broadcast_coalesced),
        ("reduce_add_coalesced", _reduce_add_coalesced),
    ):
        patches.set(comm, name, function)
    for name in ("torch.nn.parallel.parallel_apply", "torch.nn.parallel.data_parallel", "torch.nn.parallel"):
        # by name: as attributes of the package the first two are the functions that they define
        patches.set(sys.modules[name], "parallel_apply", _apply_in_turn)


def patch_threads(patches: Patches, simulation: Simulation) -> None:
    """A thread that the script starts sees the simulated devices, too: modes belong to a thread."""
    start = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin(self: threading.Thread) -> None:
        torch._C._dispatch_tls_set_dispatch_key_included(AUTOCAST, True)
        with simulation:
            start(self)

    patches.set(threading.Thread, "_bootstrap_inner", begin)


def patch_processes(patches: Patches, simulation: Simulation) -> None:
    """`torch.multiprocessing.spawn` runs the function of one rank in the process itself."""

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_args: Any, **_kwargs: Any) -> None:
        if nprocs > 1:
            simulation.assumptions.note(SPAWNED, simulation.origins.place())
        fn(int(os.environ.get("LOCAL_RANK", "0")), *args)

    for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set(owner, "start_processes", spawn)
        patches.set(owner, "spawn", spawn)


def _scatter(
    tensor: torch.Tensor, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> Any:
    parts = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return tuple(part.to(torch.device("cuda", index)) for part, index in zip(parts, devices, strict=False))


def _gather(tensors: Any, dim: int = 0, destination: Any = None) -> torch.Tensor:
    place = torch.device("cuda", torch.cuda._utils._get_device_index(destination, True))
    return torch.cat([tensor.to(place) for tensor in tensors], dim)


def _broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
    return [[tensor.to(torch.device("cuda", index)) for tensor in tensors] for index in devices]


def _reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> Any:
    place = torch.device("cuda", torch.cuda._utils._get_device_index(destination, True))
    totals = []
    for parts in zip(*inputs, strict=True):
        total = parts[0].to(place)
        for part in parts[1:]:
            total = total + part.to(place)
        totals.append(total)
    return totals


def _apply_in_turn(modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None) -> list[Any]:
    outputs = []
    for index, module in enumerate(modules):
        given = inputs[index] if isinstance(inputs[index], (list, tuple)) else (inputs[index],)
        with torch.cuda.device(devices[index] if devices else index):
            outputs.append(module(*given, **(kwargs_tup[index] if kwargs_tup else {})))
    return outputs
