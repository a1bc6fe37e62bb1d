"""vramcast: how much GPU memory a job takes, before anyone rents the GPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vramcast.version import __version__

if TYPE_CHECKING:
    from vramcast.api import diagnose, plan, reconcile, replay, serve, train
    from vramcast.sweeps.run import sweep

__all__ = ["__version__", "diagnose", "plan", "reconcile", "replay", "serve", "sweep", "train"]


def __getattr__(name: str) -> Any:
    if name in ("diagnose", "plan", "reconcile", "replay", "serve", "train"):
        from vramcast import api

        return getattr(api, name)
    if name == "sweep":
        from vramcast.sweeps.run import sweep

        return sweep
    raise AttributeError(f"module 'vramcast' has no attribute {name!r}")


class _Root(ModuleType):
    """This module: a folder that is imported does not take the name of a function."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root
