"""vramcast: how much GPU memory a job takes, before anyone rents the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vramcast.lazy import names
from vramcast.version import __version__

if TYPE_CHECKING:
    from vramcast.api import diagnose, plan, reconcile, replay, rl, serve, train
    from vramcast.api.tracing import assert_fits, simulate, trace, tune, vary
    from vramcast.notebook import load_ipython_extension
    from vramcast.sweeps.run import sweep
    from vramcast.watch.calibrate import calibrate
    from vramcast.watch.hook import record_memory

__all__ = [
    "__version__", "assert_fits", "calibrate", "diagnose", "load_ipython_extension", "plan", "reconcile",
    "record_memory", "replay", "rl", "serve", "simulate", "sweep", "trace", "train", "tune",
    "vary",
]


MODULES: Final = {
    **dict.fromkeys(("diagnose", "plan", "reconcile", "replay", "rl", "serve", "train"), "api"),
    **dict.fromkeys(("assert_fits", "simulate", "trace", "vary"), "api.tracing"),
    "tune": "api.tracing", "sweep": "sweeps.run", "record_memory": "watch.hook", "calibrate": "watch.calibrate",
    "load_ipython_extension": "notebook",
}
"""Name -> where it is, imported when it is first asked for."""

__getattr__ = names(__name__, MODULES)


def __dir__() -> list[str]:
    """What it offers, for those who look and for completion."""
    return __all__
