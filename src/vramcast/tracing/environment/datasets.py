"""torchvision's data sets where their files are not there: as many images of the same size, all black.

Folders of images that are not there are taken for ImageNet's: 1,000 classes, images of 500 x 375.
Files of tokens that NumPy should map and that are not there hold zeros; so do those of a pattern that finds none,
behind the header of llm.c's files [llm.c dev/data/data_common.py `write_datafile`: 256 int32, then uint16].
[mnist] torchvision datasets/mnist.py, `MNIST` and its kin: 60,000 and 10,000 images of 28 x 28, ten labels
[cifar] torchvision datasets/cifar.py, `CIFAR10`, `CIFAR100`: 50,000 and 10,000 images of 32 x 32 x 3
"""

from __future__ import annotations

import glob
import io
import re
import sys
from collections.abc import Mapping
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from vramcast.errors import Note
from vramcast.tracing.environment.patches import Answer, Patches
from vramcast.tracing.environment.rows import SEQUENCE, picture
from vramcast.tracing.simulation import Simulation

STANDS_IN: Final = "{}: its files are not there; as many black images of the same size stand in"
NO_FOLDER: Final = "{}: there is no such folder; {:,} black images of {} x {} of {} classes stand in"
NO_TOKENS: Final = "{}: there is no such file; {:,} zeros stand in for its tokens"
NO_SHARDS: Final = "{}: no file is named so; two files of {:,} zeros stand in for their tokens"
NO_PICTURES: Final = "{}: its files are not there; {:,} black images of {} x {} stand in"
CLASSES, IMAGES, WIDTH, HEIGHT = 1000, 1 << 16, 500, 375  # images as many as fill the largest batches of a cluster
TOKENS: Final = 1 << 22
SHOWN: Final = 2
"""Classes of a folder whose images are shown: a script may know fewer of its own data than ImageNet has."""
LABELS: Final = {"CIFAR100": 100}  # of classes; ten of all others
HEADER: Final = (20_240_520, 1)
"""Magic number and version of llm.c's tokens of GPT-2 [llm.c dev/data/data_common.py `HEADERS_INFO`]."""
END_OF_TEXT: Final = 50_256
MASK: Final = "mask"
ATTRIBUTES: Final = 40
PICTURES: Final[dict[str, tuple[int, int, int | str]]] = {
    "CelebA": (178, 218, "attributes"), "DTD": (500, 500, 47), "EuroSAT": (64, 64, 10), "Flowers102": (667, 500, 102),
    "Food101": (512, 512, 101), "ImageNet": (WIDTH, HEIGHT, CLASSES), "OxfordIIITPet": (WIDTH, HEIGHT, 37),
    "Places365": (256, 256, 365), "STL10": (96, 96, 10), "SVHN": (32, 32, 10), "VOCSegmentation": (WIDTH, HEIGHT, MASK),
}
"""Data set of torchvision -> width and height of its images, which are of many sizes in the larger ones, and what is
known of each: one of so many classes, a mask, or attributes."""


def _note(dataset: Any, simulation: Simulation) -> None:
    simulation.assumptions.note(Note(STANDS_IN, type(dataset).__name__), simulation.origins.place())


def _label(dataset: Any, classes: int, count: int) -> None:
    """Give it as many classes in turn."""
    dataset.classes = [str(number) for number in range(classes)]
    dataset.class_to_idx = {name: number for number, name in enumerate(dataset.classes)}
    dataset.targets = [number % max(1, classes) for number in range(count)]


def _make_root(root: Any, is_fetched: Any) -> None:
    """The folder that fetching them would make, as scripts keep more there."""
    if is_fetched:
        Path(root).mkdir(parents=True, exist_ok=True)


def _digits(simulation: Simulation, load: Any, /, self: Any) -> Any:
    if self._check_exists.__wrapped__(self):
        return load(self)
    _note(self, simulation)
    count = 60_000 if self.train else 10_000
    return torch.zeros((count, 28, 28), dtype=torch.uint8), torch.arange(count) % 10


def _small_images(
    simulation: Simulation, make: Any, /, self: Any, root: Any, train: bool = True, transform: Any = None,
    target_transform: Any = None, download: bool = False,
) -> None:
    vision().__init__(self, root, transform=transform, target_transform=target_transform)
    if self._check_integrity():
        make(self, root, train, transform, target_transform, download)
        return
    _note(self, simulation)
    _make_root(root, download)
    labels = LABELS.get(type(self).__name__, 10)
    count, self.train = 50_000 if train else 10_000, train
    self.data = np.zeros((count, 32, 32, 3), dtype="uint8")
    _label(self, labels, count)


def _folder(
    simulation: Simulation, make: Any, /, self: Any, root: Any, transform: Any = None,
    target_transform: Any = None, *args: Any, **how: Any,
) -> None:
    size = _stand_in(root, simulation)
    if size is None:
        make(self, root, transform, target_transform, *args, **how)
        return
    vision().__init__(self, root, transform=transform, target_transform=target_transform)
    image: Any = import_module("PIL.Image")
    self.loader = lambda _path: image.new("RGB", size)
    _label(self, CLASSES, IMAGES)
    self.imgs = [("", label) for label in self.targets]
    self.samples = [("", label % SHOWN) for label in self.targets]


def _pictures(
    name: str, simulation: Simulation, make: Any, /, self: Any, *args: Any, **how: Any
) -> None:
    (*size, target), given = PICTURES[name], signature(make).bind(self, *args, **how).arguments
    rest = given.pop("kwargs", {})
    given.pop("self")
    try:
        make(self, **{**given, **({"download": False} if "download" in given else {})}, **rest)
        return
    except (OSError, RuntimeError):
        pass  # whichever way it says that they are not there
    words = {**given, **rest}
    vision().__init__(
        self, words["root"], **{name: words.get(name) for name in ("transforms", "transform", "target_transform")}
    )
    simulation.assumptions.note(Note(NO_PICTURES, name, IMAGES, *size), simulation.origins.place())
    _make_root(words["root"], words.get("download"))
    is_mask = target == MASK or words.get("target_types") == "segmentation"
    _label(self, target if isinstance(target, int) else 0, IMAGES)
    self.labels = self.targets
    image: Any = import_module("PIL.Image")

    def item(self: Any, index: int) -> Any:
        known = image.new("L", size) if is_mask else self.targets[index % IMAGES]
        known = known if self.classes or is_mask else torch.zeros(ATTRIBUTES, dtype=torch.int64)
        shown = image.new("RGB", size)
        return (shown, known) if self.transforms is None else self.transforms(shown, known)

    kind = getattr(import_module("torchvision.datasets"), name)
    self.__class__ = type(name, (kind,), {"__getitem__": item, "__len__": lambda _self: IMAGES})


def _reader(
    simulation: Simulation, create: Any, /, name: str, root: Any = None, *args: Any, **how: Any
) -> Any:
    """One of timm, which gives a file and its class."""
    size = _stand_in(root, simulation) if root and not re.search(":|/|^(?:hfds|tfds|wds)", name) else None
    if size is None:
        return create(name, root, *args, **how)
    black = picture(*size)
    readers: Any = import_module("timm.data.readers.reader")
    return type("BlackImages", (readers.Reader,), {
        "__len__": lambda _self: IMAGES, "_filename": lambda _self, index, *_, **_how: f"{index}.png",
        "__getitem__": lambda _self, index: (io.BytesIO(black), index % SHOWN),
    })()


def vision() -> Any:
    return import_module("torchvision.datasets.vision").VisionDataset


ANSWERS: Final[Mapping[str, Mapping[str, Answer]]] = {
    "torchvision.datasets.mnist": {
        "MNIST._check_exists": lambda _simulation, _exists, _self: True, "MNIST._load_data": _digits,
        "MNIST.download": lambda _simulation, _download, self: _make_root(self.root, True),
    },
    "torchvision.datasets.cifar": {"CIFAR10.__init__": _small_images},
    "torchvision.datasets.folder": {"ImageFolder.__init__": _folder},
    "torchvision.datasets": {f"{name}.__init__": partial(_pictures, name) for name in PICTURES},
    "timm.data.readers.reader_factory": {"create_reader": _reader},
}
"""Module -> what is answered of it."""


def _stand_in(root: Any, simulation: Simulation) -> tuple[int, int] | None:
    """Width and height of images that stand in for those of a folder that is not there; None for one that is."""
    if Path(root).is_dir():
        return None
    side = simulation.data.get("image")
    width, height = (side, side) if side else (WIDTH, HEIGHT)
    simulation.assumptions.note(Note(NO_FOLDER, root, IMAGES, width, height, CLASSES), simulation.origins.place())
    return width, height


def patch_tokens(patches: Patches, simulation: Simulation) -> None:
    """Replace `numpy.memmap`'s opening of a file that is not there, as of tokens that a script of its own prepares, and
    the search for files of that kind where none is found."""
    kind = np.memmap
    make: Any = kind.__new__
    folder = simulation.folder / "tokens"

    def mapped(subtype: Any, filename: Any, dtype: Any = np.uint8, mode: str = "r+", *args: Any, **how: Any) -> Any:
        is_named = isinstance(filename, (str, Path)) and str(filename).endswith((".bin", ".npy"))
        is_there = is_named and Path(filename).exists() and Path(filename).parent != folder
        if mode != "r" or not is_named or is_there:
            return make(subtype, filename, dtype, mode, *args, **how)
        if Path(filename).parent != folder:  # told already of those
            simulation.assumptions.note(Note(NO_TOKENS, filename, TOKENS), simulation.origins.place())
        return np.zeros(TOKENS, dtype=dtype).view(subtype)

    def stood_in(pattern: Any) -> list[str]:
        is_a_librarys = "site-packages" in Path(sys._getframe(2).f_code.co_filename).parts
        if is_a_librarys or not re.search(r"\*[^/]*\.bin$", str(pattern)):
            return []
        simulation.assumptions.note(Note(NO_SHARDS, pattern, TOKENS), simulation.origins.place())
        folder.mkdir(exist_ok=True)
        named = Path(str(pattern)).name.replace("*", "{:06}")
        return [_shard(folder / named.format(*[number] * named.count("{")), simulation) for number in range(2)]

    found, found_in = glob.glob, Path.glob
    patches.set(glob, "glob", wraps(found)(lambda name, **how: found(name, **how) or stood_in(name)))
    patches.set(Path, "glob", wraps(found_in)(
        lambda self, name, **how: iter([*found_in(self, name, **how)] or map(Path, stood_in(name)))
    ))
    patches.set(kind, "__new__", staticmethod(mapped))


def _shard(path: Path, simulation: Simulation) -> str:
    """A file of tokens whose texts are as long as those that stand in for a hub's."""
    header = np.zeros(256, dtype=np.int32)
    header[:3] = *HEADER, TOKENS
    tokens = np.zeros(TOKENS, dtype=np.uint16)
    tokens[:: simulation.data.get("seq", SEQUENCE)] = END_OF_TEXT
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return str(path)
