"""Data loaders, `torch.nn.DataParallel`, threads and processes: all in this process, one after the other.

Workers of data loaders do their work in the process itself, so nothing is pickled and nothing runs ahead. The native
scatter and gather of DataParallel exist in CUDA builds only.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from copy import copy
from functools import partial
from itertools import count
from multiprocessing.context import BaseContext
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import torch
from torch.nn.parallel import comm
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

IN_PROCESS: Final = "data loader workers run in the process itself"
IN_TURN: Final = "what a pool of processes would do is done in the process itself, one after the other"


def patch_loaders(patches: Patches, simulation: Simulation) -> None:
    real = DataLoader._get_iterator

    def iterator(self: DataLoader[Any]) -> Any:
        if self.num_workers == 0:
            return real(self)
        simulation.assumptions.note(IN_PROCESS)
        return InProcess(self)

    patches.set(DataLoader, "_get_iterator", iterator)


class InProcess(_SingleProcessDataLoaderIter):
    """Iterates as if there were one worker, without a process for it."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(_alone(loader))
        if loader.worker_init_fn is not None:
            worker._worker_info = worker.WorkerInfo(
                id=0, num_workers=1, seed=torch.initial_seed(), dataset=loader.dataset
            )
            try:
                loader.worker_init_fn(0)
            finally:
                worker._worker_info = None

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        alone = _alone(loader)
        super()._reset(alone, first_iter)
        self._dataset_fetcher = _DatasetKind.create_fetcher(
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )


def _alone(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader without workers; `copy` keeps its sampler and dataset."""
    alone = copy(loader)
    vars(alone).update(num_workers=0, timeout=0)
    return alone


SPAWNED: Final = "of the processes that torch.multiprocessing starts, one is traced"
AUTOCAST: Final = torch._C.DispatchKey.AutocastCUDA


def patch_parallel(patches: Patches, simulation: Simulation) -> None:
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
    """`torch.multiprocessing.spawn` runs the function of one rank in the process itself, as does the first process
    that is given something of the card, or a function of the script where processes are spawned, as CUDA asks; those
    of that kind which follow are taken to do the same."""

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_args: Any, **_kwargs: Any) -> None:
        if nprocs > 1:
            simulation.assumptions.note(SPAWNED, simulation.origins.place())
        fn(int(os.environ.get("LOCAL_RANK", "0")), *args)

    for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set(owner, "start_processes", spawn)
        patches.set(owner, "spawn", spawn)

    def on_card(given: Any) -> bool:
        tensors = given.parameters() if isinstance(given, torch.nn.Module) else [given]
        return any(isinstance(tensor, torch.Tensor) and tensor.is_cuda for tensor in tensors)

    def is_rank(target: Any) -> bool:
        method = multiprocessing.get_start_method(allow_none=True)
        return method == "spawn" and getattr(target, "__module__", "") == "__main__"

    class Process(multiprocessing.Process):
        """One of `multiprocessing`, unless it is given something of a card or is a rank."""

        started: ClassVar = count()
        exitcode = property(lambda self: super().exitcode if self._within is None else 0)
        _within: Any = None

        def start(self) -> None:
            given: Any = self
            if not any(map(on_card, (*given._args, *given._kwargs.values()))) and not is_rank(given._target):
                return super().start()
            self._within = next(self.started)
            if not self._within:
                simulation.assumptions.note(SPAWNED, simulation.origins.place())
                self.run()
            return None

        def join(self, timeout: float | None = None) -> None:
            if self._within is None:
                super().join(timeout)

        def is_alive(self) -> bool:
            return super().is_alive() if self._within is None else False

    def pool(_context: Any, *args: Any, **kwargs: Any) -> InTurn:
        simulation.assumptions.note(IN_TURN)
        return InTurn(*args, **kwargs)

    patches.set(BaseContext, "Pool", pool)
    for module in (torch.multiprocessing, multiprocessing):
        patches.set(module, "Process", Process)
        patches.set(module, "Pool", partial(pool, None))


class InTurn:
    """What `multiprocessing.Pool` makes, without processes: forks of a simulation wait for threads they have not."""

    def __init__(
        self, processes: int | None = None, initializer: Any = None, initargs: Any = (), *_rest: Any, **_how: Any
    ) -> None:
        if initializer is not None:
            initializer(*initargs)

    def imap(self, func: Any, iterable: Any, chunksize: int = 1) -> Any:
        return map(func, iterable)

    imap_unordered = imap

    def map(self, func: Any, iterable: Any, chunksize: int | None = None) -> list[Any]:
        return [func(each) for each in iterable]

    def starmap(self, func: Any, iterable: Any, chunksize: int | None = None) -> list[Any]:
        return [func(*each) for each in iterable]

    def apply(self, func: Any, args: Any = (), kwds: Any = None) -> Any:
        return func(*args, **(kwds or {}))

    def apply_async(
        self, func: Any, args: Any = (), kwds: Any = None, callback: Any = None, error_callback: Any = None
    ) -> Any:
        return _done(lambda: self.apply(func, args, kwds), callback)

    def map_async(self, func: Any, iterable: Any, chunksize: Any = None, callback: Any = None, *_rest: Any) -> Any:
        return _done(lambda: self.map(func, iterable), callback)

    def starmap_async(self, func: Any, iterable: Any, chunksize: Any = None, callback: Any = None, *_rest: Any) -> Any:
        return _done(lambda: self.starmap(func, iterable), callback)

    def close(self) -> None:
        """Nothing is open."""

    join = terminate = close

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


def _done(act: Callable[[], Any], callback: Callable[[Any], None] | None) -> Any:
    """What `AsyncResult` is once its work is done."""
    value = act()
    if callback is not None:
        callback(value)
    return SimpleNamespace(
        get=lambda timeout=None: value, wait=lambda timeout=None: None, ready=lambda: True, successful=lambda: True
    )


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
