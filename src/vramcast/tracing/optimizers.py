"""Optimizers by name, as their libraries make them; what they hold follows from their own code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from vramcast.errors import InvalidSpec, UnknownName, Unsupported

LEARNING_RATE: Final = 1e-3
MOMENTUM: Final = 0.9

Make = Callable[..., torch.optim.Optimizer]

CLASSES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "sgd": ("SGD", {"lr": LEARNING_RATE}),
    "momentum": ("SGD", {"lr": LEARNING_RATE, "momentum": MOMENTUM}),
    "nesterov": ("SGD", {"lr": LEARNING_RATE, "momentum": MOMENTUM, "nesterov": True}),
    "adam": ("Adam", {}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "asgd": ("ASGD", {}),
    "rprop": ("Rprop", {}),
    "rmsprop": ("RMSprop", {}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
"""Name -> class of torch.optim and what it is made with."""

KERNELS: Final[Mapping[str, dict[str, Any]]] = {
    "fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False},
}
"""What may stand behind a name: how a step is computed. torch's own choice on a card is foreach."""

EIGHT_BIT: Final[Mapping[str, str]] = {
    "adam-8bit": "Adam8bit", "adamw-8bit": "AdamW8bit", "sgd-8bit": "SGD8bit", "lion-8bit": "Lion8bit",
    "adamw-8bit-paged": "PagedAdamW8bit",
}
"""Name -> class of bitsandbytes.optim."""


def make_optimizer(name: str, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a name or of module:Class.

    Raises: UnknownName with the nearest names, Unsupported where its library is missing
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidSpec("no parameter of the module needs a gradient; trace it with --eval")
    if ":" in name:
        found: Make = _own(name)
        return found(trained)
    if name in EIGHT_BIT:
        return getattr(_bitsandbytes(), EIGHT_BIT[name])(trained)
    plain, _, kernel = name.rpartition("-")
    if kernel not in KERNELS:
        plain, kernel = name, ""
    if plain not in CLASSES:
        raise UnknownName.of("optimizer", name, (*CLASSES, *EIGHT_BIT, *(f"adamw-{each}" for each in KERNELS)))
    class_name, values = CLASSES[plain]
    try:
        return getattr(torch.optim, class_name)(trained, **values, **KERNELS.get(kernel, {}))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSpec(f"optimizer={name}: torch.optim.{class_name} says: {error}") from None


def _own(name: str) -> Make:
    from vramcast.tracing.targets import found_object

    found = found_object(name)
    if not callable(found):
        raise InvalidSpec(f"optimizer={name} is no class or function that makes an optimizer")
    return found


def _bitsandbytes() -> Any:
    try:
        return importlib.import_module("bitsandbytes.optim")
    except ImportError:
        raise Unsupported("8-bit optimizers are those of bitsandbytes: pip install bitsandbytes") from None
