"""Checkpoints of FSDP1's optimizer states: parameters whose share of a rank is empty have states on other ranks only.

[optim] torch.distributed.fsdp._optim_utils of torch 2.13: _convert_state_with_orig_params
"""

from __future__ import annotations

from typing import Any, Final

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

OWN_ONLY: Final = "a checkpoint holds this rank's optimizer states: those of other ranks are not gathered"


def patch_checkpoints(patches: Patches, simulation: Simulation) -> None:
    """Gather where this rank has a part of every parameter, else give what it has."""
    from torch.distributed.fsdp import _optim_utils

    convert = _optim_utils._convert_state_with_orig_params

    def converted(keys: Any, local_keys: Any, infos: Any, states: Any, *args: Any, **kwargs: Any) -> Any:
        known = {name for key in keys for name in key.unflat_param_names}
        wanted = {name for name, info in infos.items() if info.param_requires_grad[info.param_indices[name]]}
        if wanted <= known:
            return convert(keys, local_keys, infos, states, *args, **kwargs)
        simulation.assumptions.note(OWN_ONLY, simulation.origins.place())
        return {key.unflat_param_names[0]: dict(states[local]) for key, local in local_keys.items()}

    patches.set(_optim_utils, "_convert_state_with_orig_params", converted)
