"""Names that today's packages removed and older scripts still use: what took their place answers, and it is told.

A script of 2020 traced with the torch of today would otherwise end at an import. Only what has an equal is here: a name
whose meaning changed is left to fail.
[six] torch 1.13 torch/_six.py
[numpy] numpy 1.24, 2.0 and 2.4 release notes, "Expired deprecations"
[pillow] Pillow 10 release notes, "Constants"
[librosa] librosa 0.10 release notes: arguments that were positional go by name
[stft] pytorch torch/functional.py `stft`: without return_complex real and imaginary parts came as a last dimension
"""

from __future__ import annotations

import collections.abc
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch

from vramcast.errors import Note
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.packages import is_installed_at
from vramcast.tracing.simulation import Simulation, running

REMOVED: Final = "{} has no {} any more, which the script uses: {} takes its place"
POSITIONAL: Final = "{} takes its arguments by name only now, and the script gives them by position"
REAL_STFT: Final = "torch.stft asks for return_complex now, which the script leaves out: real numbers come, as they did"
OF_SAMPLER: Final = "torch's Sampler takes no data any more, which the script gives it: it goes without them"
OF_NUMPY: Final[Mapping[str, Any]] = {
    "float": float, "int": int, "object": object, "str": str, "complex": complex, "float_": np.float64,
    "complex_": np.complex128, "bool8": np.bool_, "Inf": math.inf, "Infinity": math.inf, "infty": math.inf,
    "NaN": math.nan, "NINF": -math.inf, "PINF": math.inf, "product": np.prod, "cumproduct": np.cumprod,
    "sometrue": np.any,
    "alltrue": np.all, "string_": np.bytes_, "unicode_": np.str_, "trapz": getattr(np, "trapezoid", None),
    "in1d": np.isin, "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype), "msort": lambda a: np.sort(a, 0),
}
OF_PACKAGES: Final = ("bool8",)
"""What older packages that are installed ask for beyond a look which version is there [gym 0.26]."""
OF_SIX: Final[Mapping[str, Any]] = {
    "container_abcs": collections.abc, "string_classes": (str, bytes), "int_classes": int, "inf": math.inf,
    "nan": math.nan, "FileNotFoundError": FileNotFoundError, "PY3": True, "PY37": True,
}
OF_PILLOW: Final = {"ANTIALIAS": "LANCZOS", "CUBIC": "BICUBIC", "LINEAR": "BILINEAR"}
BY_NAME: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "librosa.filters": {"mel": ("sr", "n_fft", "n_mels", "fmin", "fmax")},
    "librosa.util.utils": {"pad_center": ("data", "size")},
    "librosa.core.audio": {"resample": ("y", "orig_sr", "target_sr")},
}
"""Module -> its functions whose parameters had these positions."""


def patch_older(patches: Patches, simulation: Simulation) -> None:
    """What torch and the packages that it loads had."""
    six = ModuleType("torch._six")
    _answer(patches, six, OF_SIX, is_for_all=True)
    patches.put(sys.modules, six.__name__, six)
    _answer(patches, np, OF_NUMPY)
    gone = {name: value for name, value in vars(collections.abc).items() if not hasattr(collections, name)}
    _answer(patches, collections, gone)
    stft = torch.stft

    @wraps(stft)
    def transformed(input: Any, *args: Any, return_complex: bool | None = None, **how: Any) -> Any:
        window = how.get("window", args[3] if len(args) > 3 else None)
        is_real = not input.is_complex() and not (isinstance(window, torch.Tensor) and window.is_complex())
        if return_complex is not None or len(args) > 8 or not is_real:
            named = {} if return_complex is None else {"return_complex": return_complex}
            return stft(input, *args, **named, **how)
        simulation.assumptions.note(REAL_STFT, simulation.origins.place())
        return torch.view_as_real(stft(input, *args, return_complex=True, **how))

    patches.set(torch, "stft", transformed)
    sampler: Any = torch.utils.data.Sampler

    def of_data(self: Any, data_source: Any = None) -> None:
        if data_source is not None:  # which it was asked for until torch 2.2, and never kept
            simulation.assumptions.note(OF_SAMPLER, simulation.origins.place())

    if sampler.__init__ is object.__init__:
        patches.set(sampler, "__init__", of_data)
    batches: Any = torch.utils.data.dataloader._BaseDataLoaderIter

    def following(self: Any) -> Any:  # until torch 1.13
        simulation.assumptions.note(Note(REMOVED, "torch's iterator of a DataLoader", "next", "next(iterator)"),
                                    simulation.origins.place())
        return next(self)

    if not hasattr(batches, "next"):
        patches.set(batches, "next", following)


def _answer(patches: Patches, module: Any, names: Mapping[str, Any], *, is_for_all: bool = False) -> None:
    """Let a module have them, where it lacks them."""
    patches.set(module, "__getattr__", _fallback(module, names, is_for_all=is_for_all))


def _fallback(module: Any, names: Mapping[str, Any], *, is_for_all: bool = False) -> Callable[[str], Any]:
    """What is asked for names that it lacks; installed packages look so which version is there, and keep its answer."""
    before: Callable[[str], Any] | None = vars(module).get("__getattr__")

    def get(name: str) -> Any:
        found, simulation = names.get(name), running()
        is_meant = is_for_all or name in OF_PACKAGES or not is_installed_at(sys._getframe(1).f_code.co_filename)
        if found is None or simulation is None or not is_meant:
            if before is not None:
                return before(name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        told = getattr(found, "__name__", str(found))
        simulation.assumptions.note(Note(REMOVED, module.__name__, name, told), simulation.origins.place())
        return found

    return get


def names_of_pillow(module: ModuleType) -> None:
    """Of `PIL.Image`."""
    names = {old: getattr(module, new) for old, new in OF_PILLOW.items() if not hasattr(module, old)}
    vars(module)["__getattr__"] = _fallback(module, names)


def no_bits(_simulation: Simulation, posterize: Any, /, image: Any, bits: int) -> Any:
    """`PIL.ImageOps.posterize`: images of no bits are black, as they were before Pillow refused them."""
    return posterize(image, bits) if bits else image.point(lambda _value: 0)


def _by_position(
    path: str, parameters: tuple[str, ...], simulation: Simulation, function: Any, /, *args: Any, **kwargs: Any
) -> Any:
    if len(args) < 2:
        return function(*args, **kwargs)
    simulation.assumptions.note(Note(POSITIONAL, path), simulation.origins.place())
    return function(**dict(zip(parameters, args, strict=False)), **kwargs)


POSITIONS: Final = {
    module: {name: partial(_by_position, f"{module}.{name}", parameters) for name, parameters in functions.items()}
    for module, functions in BY_NAME.items()
}
"""What answers for them."""
