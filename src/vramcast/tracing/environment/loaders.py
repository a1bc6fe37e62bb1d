"""Data loaders: their workers' work is done in the process itself, so nothing is pickled and nothing runs ahead."""

from __future__ import annotations

from copy import copy
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

IN_PROCESS: Final = "data loader workers run in the process itself"


def patch_loaders(patches: Patches, simulation: Simulation) -> None:
    """Replace the iterator with worker processes."""
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
        """Another epoch of a persistent iterator."""
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
