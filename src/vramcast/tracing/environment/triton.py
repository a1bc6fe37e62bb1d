"""Kernels that people write in Triton: launching one allocates nothing, so here none is compiled or run.

What it writes is not known afterwards. Autotuning takes its first configuration; like Triton's benchmark it takes a
buffer of the size of the card's cache on the way.
[run] triton python/triton/runtime/jit.py `JITFunction.run`, autotuner.py `Autotuner.run`
[bench] triton python/triton/testing.py `do_bench`, third_party/nvidia/backend/driver.py
`get_empty_cache_for_benchmark`: 256 MiB, to clear the cache between runs
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation
from vramcast.units import MIB

CLEARED_BYTES: Final = 256 * MIB
ANY_TIME: Final = (1.0, 1.0, 1.0)
"""What every configuration is said to take: the first one wins [ms]."""


def patch_triton(patches: Patches, simulation: Simulation) -> None:
    """Replace launches, if Triton is installed: torch's compiler, which is loaded by now, imports it."""
    jit, autotuner = (sys.modules.get(f"triton.runtime.{name}") for name in ("jit", "autotuner"))
    if jit is None or autotuner is None:
        return
    launch, tune = jit.JITFunction.run, autotuner.Autotuner.run
    chosen: dict[Any, Any] = {}  # of this simulation alone: on a card other configurations may be faster

    def launched(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        written = _simulated((*args, *kwargs.values()), simulation)
        if not written:
            return launch(self, *args, grid=grid, warmup=warmup, **kwargs)
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        for tensor in written:
            simulation.values.lose(tensor)
        return None

    def tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _simulated((*args, *kwargs.values()), simulation):
            return tune(self, *args, **kwargs)
        kept, self.cache = self.cache, chosen.setdefault(self, {})
        results, self.cache_results = self.cache_results, False  # written to a file otherwise
        try:
            return tune(self, *args, **kwargs)
        finally:
            self.cache, self.cache_results = kept, results

    patches.set(jit.JITFunction, "run", launched)
    patches.set(autotuner.Autotuner, "run", tuned)
    patches.set(autotuner.Autotuner, "_bench", _bench)


def _bench(self: Any, *args: Any, **_options: Any) -> tuple[float, ...]:
    """One configuration's time; `args` are the kernel's."""
    del self, args
    torch.empty(CLEARED_BYTES, dtype=torch.int8, device="cuda")
    return ANY_TIME


def _simulated(values: Iterable[Any], simulation: Simulation) -> list[torch.Tensor]:
    return [
        value for value in values if isinstance(value, torch.Tensor) and simulation.memory.of(value) is not None
    ]
