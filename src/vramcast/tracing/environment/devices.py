"""`torch.device(1)` and `device=1`: a number is a card; C++ would ask for the accelerator of a build that has none."""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches

REAL: Final = torch.device


class _Numbered(type):
    """Makes and knows devices as the class that it stands for; equal to it as a key."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            return REAL("cuda", args[0])
        return REAL(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, REAL)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is REAL

    def __hash__(cls) -> int:
        return hash(REAL)


def patch_devices(patches: Patches) -> None:
    """Let numbers name cards."""
    patches.set(torch, "device", _Numbered("device", (), {"__module__": "torch"}))


def numbered(value: Any) -> Any:
    """A card for a number, anything else as it is."""
    return REAL("cuda", value) if type(value) is int else value
