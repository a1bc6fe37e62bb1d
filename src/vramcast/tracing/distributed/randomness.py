"""Random operators of distributed tensors, which torch 2.13 runs within an operator of higher order.

[rng] torch._prims.rng_prims.run_dtensor_rng_op of torch 2.13: sets the offset of the card's generator before and after;
its state is a tensor of the host, so nothing is allocated beside what the operator takes
"""

from __future__ import annotations

from typing import Any

from torch._prims import rng_prims

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation


def patch_randomness(patches: Patches) -> None:
    """Run the operator within; earlier versions of torch have no such wrapper."""
    wrapper = getattr(rng_prims, "run_dtensor_rng_op", None)
    if wrapper is not None:
        patches.put(wrapper.python_key_table, Simulation, _run)


def _run(simulation: Simulation, _before: int, _after: int, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with simulation:
        return operator(*args, **kwargs)
