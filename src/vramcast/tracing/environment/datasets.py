"""torchvision's small data sets where their files are not there: as many images of the same size, all black.

[mnist] torchvision datasets/mnist.py, `MNIST` and its kin: 60,000 and 10,000 images of 28 x 28, ten labels
[cifar] torchvision datasets/cifar.py, `CIFAR10`, `CIFAR100`: 50,000 and 10,000 images of 32 x 32 x 3
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import torch

from vramcast.tracing.simulation import running

STANDS_IN: Final = "{}: its files are not there; as many black images of the same size stand in"
LABELS: Final = {"CIFAR100": 100}  # of classes; ten of all others


def _note(dataset: Any) -> None:
    simulation = running()
    if simulation is not None:
        simulation.assumptions.note(STANDS_IN.format(type(dataset).__name__), simulation.origins.place())


@contextmanager
def digits(module: ModuleType) -> Iterator[None]:
    """Around `torchvision.datasets.mnist`."""
    yield
    kind: Any = module.MNIST
    exists, download, load = kind._check_exists, kind.download, kind._load_data

    def loaded(self: Any) -> Any:
        if running() is None or exists(self):
            return load(self)
        _note(self)
        count = 60_000 if self.train else 10_000
        return torch.zeros((count, 28, 28), dtype=torch.uint8), torch.arange(count) % 10

    kind._check_exists = lambda self: running() is not None or exists(self)
    kind.download = lambda self: None if running() is not None else download(self)
    kind._load_data = loaded


@contextmanager
def small_images(module: ModuleType) -> Iterator[None]:
    """Around `torchvision.datasets.cifar`."""
    yield
    kind: Any = module.CIFAR10
    make, base = kind.__init__, kind.__mro__[1]

    def made(
        self: Any, root: Any, train: bool = True, transform: Any = None, target_transform: Any = None,
        download: bool = False,
    ) -> None:
        base.__init__(self, root, transform=transform, target_transform=target_transform)
        if running() is None or self._check_integrity():
            make(self, root, train, transform, target_transform, download)
            return
        _note(self)
        labels = LABELS.get(type(self).__name__, 10)
        count, self.train = 50_000 if train else 10_000, train
        self.data = vars(module)["np"].zeros((count, 32, 32, 3), dtype="uint8")
        self.targets = [index % labels for index in range(count)]
        self.classes = [str(label) for label in range(labels)]
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}

    kind.__init__ = made
