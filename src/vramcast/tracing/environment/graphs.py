"""CUDA graphs: what is captured runs once, as if there were no graph.

Left out: the private pool of a capture, which keeps its memory; blocks come from the default pool.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from vramcast.tracing.simulation import Simulation

NO_POOL: Final = "CUDA graphs are captured in the default pool: a private pool's memory is not kept apart"


def make_graph_class(simulation: Simulation) -> type:
    """What stands for `torch.cuda.CUDAGraph`."""
    pools = count(1)

    class CUDAGraph:
        """A graph whose replay does nothing: the capture was the run."""

        def __init__(self, *_given: Any, **_named: Any) -> None:
            self._pool = (0, next(pools))

        def capture_begin(self, *_given: Any, **_named: Any) -> None:
            simulation.assumptions.note(NO_POOL, simulation.origins.place())

        def capture_end(self) -> None:
            """Nothing was kept apart."""

        def instantiate(self) -> None:
            """Nothing to make."""

        def replay(self) -> None:
            """Uses the memory of the capture."""

        def reset(self) -> None:
            """Nothing to give back."""

        def pool(self) -> tuple[int, int]:
            return self._pool

        def enable_debug_mode(self) -> None:
            """Nothing to print."""

        def debug_dump(self, *_given: Any, **_named: Any) -> None:
            """Nothing to print."""

    return CUDAGraph


def no_graphed_callables(simulation: Simulation) -> Any:
    """What stands for `torch.cuda.make_graphed_callables`: the callables as they are."""

    def make(callables: Any, *_args: Any, **_kwargs: Any) -> Any:
        simulation.assumptions.note(NO_POOL, simulation.origins.place())
        return callables

    return make
