"""vramcast: how much GPU memory a job takes, before anyone rents the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramcast.version import __version__

if TYPE_CHECKING:
    from vramcast.api import diagnose, plan, reconcile, replay, serve, train
    from vramcast.api.tracing import assert_fits, simulate, trace
    from vramcast.sweeps.run import sweep
    from vramcast.watch.calibrate import calibrate
    from vramcast.watch.hook import record_memory

__all__ = [
    "__version__", "assert_fits", "calibrate", "diagnose", "plan", "reconcile", "record_memory", "replay", "serve",
    "simulate", "sweep", "trace", "train",
]


def __getattr__(name: str) -> Any:
    if name in ("diagnose", "plan", "reconcile", "replay", "serve", "train"):
        from vramcast import api

        return getattr(api, name)
    if name in ("assert_fits", "simulate", "trace"):
        from vramcast.api import tracing

        return getattr(tracing, name)
    if name == "sweep":
        from vramcast.sweeps.run import sweep

        return sweep
    if name == "record_memory":
        from vramcast.watch.hook import record_memory

        return record_memory
    if name == "calibrate":
        from vramcast.watch.calibrate import calibrate

        return calibrate
    raise AttributeError(f"module 'vramcast' has no attribute {name!r}")
