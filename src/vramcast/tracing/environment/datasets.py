"""torchvision's data sets where their files are not there: as many images of the same size, all black.

Folders of images that are not there are taken for ImageNet's: 1,000 classes, images of 500 x 375.
Files of tokens that NumPy should map and that are not there hold zeros.
[mnist] torchvision datasets/mnist.py, `MNIST` and its kin: 60,000 and 10,000 images of 28 x 28, ten labels
[cifar] torchvision datasets/cifar.py, `CIFAR10`, `CIFAR100`: 50,000 and 10,000 images of 32 x 32 x 3
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch

from vramcast.errors import Note
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.environment.rows import picture
from vramcast.tracing.simulation import Simulation, running

STANDS_IN: Final = "{}: its files are not there; as many black images of the same size stand in"
NO_FOLDER: Final = "{}: there is no such folder; {} black images of {} x {} of {} classes stand in"
NO_TOKENS: Final = "{}: there is no such file; {:,} zeros stand in for its tokens"
CLASSES, IMAGES, WIDTH, HEIGHT = 1000, 2048, 500, 375
TOKENS: Final = 1 << 22
LABELS: Final = {"CIFAR100": 100}  # of classes; ten of all others


def _note(dataset: Any) -> None:
    simulation = running()
    if simulation is not None:
        simulation.assumptions.note(Note(STANDS_IN, type(dataset).__name__), simulation.origins.place())


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


@contextmanager
def folders(module: ModuleType) -> Iterator[None]:
    """Around `torchvision.datasets.folder`."""
    yield
    kind: Any = module.ImageFolder
    make, base = kind.__init__, kind.__mro__[2]

    def made(self: Any, root: Any, transform: Any = None, target_transform: Any = None, *args: Any, **how: Any) -> None:
        size = _stand_in(root)
        if size is None:
            make(self, root, transform, target_transform, *args, **how)
            return
        base.__init__(self, root, transform=transform, target_transform=target_transform)
        image: Any = import_module("PIL.Image")
        self.loader = lambda _path: image.new("RGB", size)
        self.classes = [str(number) for number in range(CLASSES)]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = self.imgs = [("", number % CLASSES) for number in range(IMAGES)]
        self.targets = [label for _, label in self.samples]

    kind.__init__ = made


@contextmanager
def folders_of_timm(module: ModuleType) -> Iterator[None]:
    """Around `timm.data.readers.reader_factory`, whose readers give a file and its class."""
    yield
    create = module.create_reader
    readers: Any = import_module("timm.data.readers.reader")

    def created(name: str, root: Any = None, *args: Any, **how: Any) -> Any:
        size = _stand_in(root) if root and not re.search(":|/|^(?:hfds|tfds|wds)", name) else None
        if size is None:
            return create(name, root, *args, **how)
        black = picture(*size)
        return type("BlackImages", (readers.Reader,), {
            "__len__": lambda _self: IMAGES, "_filename": lambda _self, index, *_, **_how: f"{index}.png",
            "__getitem__": lambda _self, index: (io.BytesIO(black), index % CLASSES),
        })()

    vars(module)["create_reader"] = created


def _stand_in(root: Any) -> tuple[int, int] | None:
    """Width and height of images that stand in for those of a folder that is not there; None for one that is."""
    simulation = running()
    if simulation is None or Path(root).is_dir():
        return None
    side = simulation.data.get("image")
    width, height = (side, side) if side else (WIDTH, HEIGHT)
    simulation.assumptions.note(Note(NO_FOLDER, root, IMAGES, width, height, CLASSES), simulation.origins.place())
    return width, height


def patch_tokens(patches: Patches, simulation: Simulation) -> None:
    """Replace `numpy.memmap`'s opening of a file that is not there, as of tokens that a script of its own prepares."""
    kind = np.memmap
    make: Any = kind.__new__

    def mapped(subtype: Any, filename: Any, dtype: Any = np.uint8, mode: str = "r+", *args: Any, **how: Any) -> Any:
        is_named = isinstance(filename, (str, Path)) and str(filename).endswith((".bin", ".npy"))
        if mode != "r" or not is_named or Path(filename).exists():
            return make(subtype, filename, dtype, mode, *args, **how)
        simulation.assumptions.note(Note(NO_TOKENS, filename, TOKENS), simulation.origins.place())
        return np.zeros(TOKENS, dtype=dtype).view(subtype)

    patches.set(kind, "__new__", staticmethod(mapped))
